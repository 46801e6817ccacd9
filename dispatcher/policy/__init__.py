"""What a host and its people decide: whether a call may run, and what a model is told of it."""
