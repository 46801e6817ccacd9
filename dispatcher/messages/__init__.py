"""Everything that a model reads, and the class of every result."""
