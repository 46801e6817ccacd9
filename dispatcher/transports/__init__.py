"""How messages reach workers and replies return."""
