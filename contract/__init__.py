"""What both sides of toolpool agree on: data, bytes, names and errors. Imports neither side."""
