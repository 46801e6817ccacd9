"""Runs tools: claims calls from Celery and settles exactly one outcome for each."""
