"""The order service."""

__version__ = "1.4.0"
