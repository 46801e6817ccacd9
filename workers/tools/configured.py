"""The settings of this process, as its tools see them."""

from functools import cache

from toolpool.contract.settings import Settings


@cache
def settings() -> Settings:
    """Read on first use, so that importing a tools module needs no valid environment."""
    return Settings()
