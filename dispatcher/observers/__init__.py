"""What hangs beside the road of a call: each listens, and none can change or delay one."""
