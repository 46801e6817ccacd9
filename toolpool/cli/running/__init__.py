"""`toolpool run`: responses in, answers out."""
