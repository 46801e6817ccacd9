"""The web tool, kept away from the worker's own network."""
