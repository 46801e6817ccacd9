"""Runs tools: claims calls from Celery, runs each to exactly one outcome, settles it."""
