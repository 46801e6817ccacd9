"""The Celery worker that hosts the service: its queues, pool and messages."""
