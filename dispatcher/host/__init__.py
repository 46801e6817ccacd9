"""Calls functions of the host without blocking the event loop."""
