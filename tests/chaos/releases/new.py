"""The release that takes its place."""

from typing import Any, Literal

from tests.chaos.tools import TIMEOUT, coroutine, work
from toolpool import tool

_DECLARED: dict[str, Any] = {"effects": "write", "timeout": TIMEOUT}


@tool(**_DECLARED)
async def kept_loop(key: str, seconds: float) -> str:
    """Note the start, sleep, and note the end."""
    return await coroutine(key, seconds)  # type: ignore[no-any-return]


@tool(**_DECLARED)
async def changed_loop(key: str, seconds: float, unit: Literal["g", "kg"], amount: str) -> str:
    """Note the start, sleep, and note the end."""
    assert unit and amount
    return await coroutine(key, seconds)  # type: ignore[no-any-return]


@tool(run_in="thread", **_DECLARED)
def changed_thread(key: str, seconds: float, unit: Literal["g", "kg"], amount: str) -> str:
    """Note the start, sleep, and note the end."""
    assert unit and amount
    return work("thread", key, seconds)  # type: ignore[no-any-return]


@tool(**_DECLARED)
async def added_loop(key: str, seconds: float) -> str:
    """Note the start, sleep, and note the end."""
    return await coroutine(key, seconds)  # type: ignore[no-any-return]
