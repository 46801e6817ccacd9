"""Every text that a model reads."""
