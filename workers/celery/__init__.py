"""The Celery worker around it: its queues, its pool and its messages."""
