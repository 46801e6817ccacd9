"""`make bench-peers`: toolpool, other task queues, and the limits that no queue passes."""
