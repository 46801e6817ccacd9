"""Decides and collects: parses, validates, queues, and classifies. Never imports a tool or worker."""
