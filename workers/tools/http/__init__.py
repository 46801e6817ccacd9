"""The web tool, kept away from the network that the worker itself is in."""
