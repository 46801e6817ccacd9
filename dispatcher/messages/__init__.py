"""Builds every text that a model reads."""
