"""Breaks everything that can break, and checks the one promise: see `docs/reliability.md`."""
