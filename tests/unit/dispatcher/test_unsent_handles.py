"""A handle of a call that its dispatcher never sent: another dispatcher sends it, or ends it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.twins import alone, second
from tests.waiting import eventually
from toolpool import Code, Dispatcher, Executed, State, tool
from toolpool.dispatcher.calls.rate_gate import RateGate

RAN: list[int] = []


@tool(effects="write", concurrency=1, concurrency_scope="fleet")
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return f"paid {amount}"


@asynccontextmanager
async def handed_over(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Dispatcher, str]]:
    """Another dispatcher than the one that gave the handle, which never sends the call."""
    RAN.clear()
    async with alone([pay], background_wait=0.05) as frozen, second(frozen) as other:
        gate = frozen._in_flight._rate_gate
        with monkeypatch.context() as patch:
            patch.setattr(gate, "_wait_for_place", lambda *_: None)
            call = {"id": "c-1", "name": "pay", "input": {"amount": 5}}
            [waits] = await frozen.dispatch([call], session="s", turn="t", wait=0.05)
        assert isinstance(gate, RateGate)
        assert waits.handle and not frozen._server.records
        await eventually(lambda: frozen._server.handles, "the handle is stored")
        yield other, waits.handle


async def test_whoever_asks_for_it_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with handed_over(monkeypatch) as (other, handle):
        told = await other.task_result(handle, session="s", wait=10)
    assert told is not None
    assert (told.ok, told.data, RAN) == (True, "paid 5", [5])


async def test_whoever_cancels_it_knows_that_it_did_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with handed_over(monkeypatch) as (other, handle):
        told = await other.task_cancel(handle, session="s")
    assert (told.state, told.code) == (State.FAILED, Code.CANCELLED)
    assert (told.executed, RAN) == (Executed.NO, [])
