"""Publishes, follows, recovers and answers accepted calls."""
