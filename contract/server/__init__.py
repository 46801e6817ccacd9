"""How to reach the Redis server, and what must not be seen of it."""
