"""Every text that a model reads, and the classification of results."""
