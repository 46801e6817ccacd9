"""Two releases of one tools module: tools added, removed, and changed so that old calls fail."""
