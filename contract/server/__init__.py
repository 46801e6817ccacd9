"""Connections to the Redis server, and protection of its credentials."""
