"""Observers of a dispatcher."""
