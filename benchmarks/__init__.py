"""Speed and memory beside bare Celery, as ratios measured side by side in one run."""
