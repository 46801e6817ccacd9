"""Who has a place under a fleet-wide concurrency: whatever runs, until it ends."""

import asyncio
import threading
from typing import Any

import pytest

from tests.waiting import eventually
from toolpool import Code, Dispatcher, tool

ENDS = threading.Event()
RUNNING: list[str] = []


@tool(run_in="thread", concurrency=1, concurrency_scope="fleet", effects="read", timeout=0.3)
def stays(name: str) -> str:
    """Go on until it is told to end, whatever its timeout."""
    RUNNING.append(name)
    ENDS.wait(20)
    return name


async def test_a_thread_that_goes_on_after_its_timeout_or_a_cancel_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ENDS.clear()
    RUNNING.clear()

    async def ask(dispatcher: Dispatcher, name: str) -> Code | None:
        call = {"id": name, "name": "stays", "input": {"name": name}}
        return (await dispatcher.dispatch([call], session=name, turn="t"))[0].code

    async with Dispatcher.in_memory([stays]) as dispatcher:
        assert await ask(dispatcher, "late") is Code.TIMEOUT
        waiting = asyncio.ensure_future(ask(dispatcher, "next"))
        rates, looks = dispatcher._server.rates, 0
        take = rates.take

        async def counted(*args: Any, **more: Any) -> Any:
            nonlocal looks
            looks += 1
            return await take(*args, **more)

        monkeypatch.setattr(rates, "take", counted)
        await eventually(lambda: looks >= 3, "it looks for a place again and again")
        assert RUNNING == ["late"]
        ENDS.set()
        assert await waiting is None
        await eventually(lambda: RUNNING == ["late", "next"], "the next one has its place")
