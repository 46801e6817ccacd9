"""What hangs beside the road of a dispatcher: it is told, and cannot be felt."""
