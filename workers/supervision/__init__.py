"""Starts a worker, monitors it, and restarts it."""
