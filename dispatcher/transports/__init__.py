"""How messages get to workers and replies come back."""
