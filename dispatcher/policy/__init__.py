"""The decisions of a host and its people: whether a call may run, and what a model reads of it."""
