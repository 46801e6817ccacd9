"""Decides and collects: parses, validates, queues, classifies. Never imports a tool or worker."""
