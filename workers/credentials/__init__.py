"""The secrets of tools: where a worker has them from, and how they come to a call."""
