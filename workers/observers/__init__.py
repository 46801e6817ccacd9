"""What hangs beside a worker's calls: each listens, and none can change or delay one."""
