"""Observers of a dispatcher: logs, metrics, traces, events and the session record."""
