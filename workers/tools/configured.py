"""The settings of this process, as its tools see them."""

from functools import cache

from toolpool.contract.settings import Settings


@cache
def settings() -> Settings:
    """Read on first use, so that a tools module can be imported without a valid environment."""
    return Settings()
