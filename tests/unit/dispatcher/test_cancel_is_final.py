"""After `task_cancel` no road says that the call still waits or runs (R34, R35, R66)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import toolpool
from tests.unit.dispatcher.samples import Hand
from tests.waiting import eventually
from toolpool.contract.envelope import Envelope
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import Effects, ToolSpec, sealed
from toolpool.dispatcher.dispatch import Dispatcher
from toolpool.dispatcher.transports.memory import MemoryTransport

SPECS = [
    sealed(ToolSpec(name="write", effects=Effects.WRITE, background=True)),
    sealed(ToolSpec(name="retried", effects=Effects.READ, background=True, retries=3)),
    sealed(ToolSpec(name="approved", effects=Effects.WRITE, approval=True)),
]
ENVELOPE = Envelope(Keyring.local())


@asynccontextmanager
async def dispatcher(server: MemoryServer, reply: str) -> AsyncIterator[Dispatcher]:
    async with Dispatcher(
        MemoryTransport(server, reply),
        settings=Settings(background_wait=0.0),
        envelope=ENVELOPE,
        specs=SPECS,
    ) as made:
        yield made


async def asked(by: Dispatcher, tool: str, **arguments: Any) -> Any:
    """The data of a call of the pool's own tools."""
    [result] = await by.dispatch([{"id": "k", "name": tool, "input": arguments}], session="s")
    return result.data


@pytest.mark.parametrize(
    ("tool", "state"),
    [
        ("write", "RUNNING"),
        ("write", "QUEUED"),
        ("retried", "RUNNING"),
        ("approved", "WAITING"),
    ],
)
async def test_a_cancelled_call_is_reported_as_cancelled_on_every_road(
    tool: str, state: str
) -> None:
    server = MemoryServer()
    hand = Hand(server)
    work = asyncio.create_task(hand.run()) if state == "RUNNING" else None
    call = [{"id": "c", "name": tool, "input": {}}]
    async with dispatcher(server, "owner") as owner, dispatcher(server, "other") as other:
        [handed] = await owner.dispatch(call, session="s", turn="t")

        async def has_come_so_far() -> bool:
            [task] = await owner.task_list(session="s")
            waits = await owner.approvals.waiting() if tool == "approved" else [task]
            return task["state"] == state and len(waits) == 1

        await eventually(has_come_so_far, f"it is {state}")
        told = await asked(owner, "task_cancel", handle=handed.handle)
        assert (told["state"], told["code"]) == ("FAILED", "aborted.cancelled")
        for by in (owner, other):
            assert (await asked(by, "task_result", handle=handed.handle, wait=0)) == told
            assert [task["state"] for task in await asked(by, "task_list")] == ["FAILED"]
            result = await by.task_result(handed.handle or "", session="s", wait=0)
            assert result is not None
            assert result.code is Code.CANCELLED
            [again] = await by.dispatch(call, session="s", turn="t")
            assert again.code is Code.CANCELLED
            assert (await asked(by, "task_cancel", handle=handed.handle)) == told
            assert by.in_flight() == 0
    if work is not None:
        work.cancel()


async def test_a_call_that_ends_by_itself_meanwhile_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()

    @toolpool.tool(effects="write")
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "done"

    async with toolpool.Dispatcher.in_memory([work]) as dispatcher:
        call = {"id": "c", "name": "work", "input": {}}
        asked = asyncio.create_task(dispatcher.dispatch([call], session="s"))
        await eventually(lambda: dispatcher.in_flight() == 1, "it is in flight")
        transport = dispatcher._background._transport
        close_calls = transport.close_calls

        async def too_late(*closings: Any, **options: Any) -> Any:
            gate.set()
            await eventually(asked.done, "it has ended")
            return await close_calls(*closings, **options)

        monkeypatch.setattr(transport, "close_calls", too_late)
        assert await dispatcher.cancel("s") == 0
        assert (await asked).ok
