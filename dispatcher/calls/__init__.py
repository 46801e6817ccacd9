"""Accepted calls on their way: published, followed, recovered, answered."""
