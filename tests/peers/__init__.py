"""Real servers and checkers of others, each in an environment of its own: `make test-peers`."""
