"""A host's and its people's decisions about calls, and about the results that models read."""
