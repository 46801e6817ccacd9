"""Metrics, traces and reports to Sentry of dispatchers and workers."""
