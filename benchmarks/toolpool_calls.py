"""toolpool's side: validated, claimed, run, stored, signed, and awaited."""

import asyncio
import time
from typing import Any

from toolpool import Dispatcher


def _response(tool: str, number: int) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg-{number}",
        "content": [{"type": "tool_use", "id": "call", "name": tool, "input": {"text": "hello"}}],
    }


async def throughput(dispatcher: Dispatcher, tool: str, calls: int, in_flight: int) -> float:
    """Calls a second, results awaited, `in_flight` at once."""
    numbers = iter(range(calls))

    async def ask() -> None:
        for number in numbers:
            turn = await dispatcher.dispatch(_response(tool, number))
            assert turn.ok, turn[0]

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(in_flight)))
    return calls / (time.perf_counter() - began)


async def latencies(dispatcher: Dispatcher, tool: str, calls: int) -> list[float]:
    """Seconds from response to result, one call at a time."""
    found = []
    for number in range(calls):
        began = time.perf_counter()
        turn = await dispatcher.dispatch(_response(tool, number))
        found.append(time.perf_counter() - began)
        assert turn.ok
    return found
