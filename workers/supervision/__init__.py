"""Starts a worker, watches over it, and starts it again."""
