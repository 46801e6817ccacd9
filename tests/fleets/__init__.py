"""Tools modules that test workers load."""
