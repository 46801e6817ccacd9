"""The release that runs."""

from typing import Any

from tests.chaos.tools import TIMEOUT, coroutine, work
from toolpool import tool

_DECLARED: dict[str, Any] = {"effects": "write", "timeout": TIMEOUT}


@tool(**_DECLARED)
async def kept_loop(key: str, seconds: float) -> str:
    """Note the start, sleep, and note the end."""
    return await coroutine(key, seconds)  # type: ignore[no-any-return]


@tool(**_DECLARED)
async def changed_loop(key: str, seconds: float, grams: int) -> str:
    """Note the start, sleep, and note the end."""
    assert grams > 0
    return await coroutine(key, seconds)  # type: ignore[no-any-return]


@tool(run_in="thread", **_DECLARED)
def changed_thread(key: str, seconds: float, grams: int) -> str:
    """Note the start, sleep, and note the end."""
    assert grams > 0
    return work("thread", key, seconds)  # type: ignore[no-any-return]


@tool(**_DECLARED)
async def removed_loop(key: str, seconds: float) -> str:
    """Note the start, sleep, and note the end."""
    return await coroutine(key, seconds)  # type: ignore[no-any-return]
