"""Notes of turns that the server did not take at once (R50)."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.integration.conversations import UNKNOWN, gated, response_of, said, use
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.outcome import Executed
from toolpool.dispatcher import resume
from toolpool.dispatcher.transports.base import NoteBatch, TurnNote
from toolpool.dispatcher.transports.memory import MemoryTransport

MESSAGE = said(use("call_0", "x"))


def is_unknown(resumed: list[Any]) -> bool:
    """Whether the call is answered as one that may have run."""
    return UNKNOWN in str(resumed).replace("'", '"').replace(" ", "")


class Outage:
    """While `is_on`, no note is written; else each takes `seconds`."""

    def __init__(self) -> None:
        self.is_on = False
        self.refused = 0
        self.seconds = 0.0


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    state, write = Outage(), MemoryTransport.note_turns

    async def note_turns(self: MemoryTransport, batches: Sequence[NoteBatch]) -> None:
        if state.is_on:
            state.refused += 1
            raise ServerUnavailable("step", sent=True, reason="(away)")
        await asyncio.sleep(state.seconds)
        await write(self, batches)

    monkeypatch.setattr(MemoryTransport, "note_turns", note_turns)
    yield state
    state.is_on = False


async def test_an_equal_call_has_no_earlier_result_though_notes_were_delayed(
    outage: Outage,
) -> None:
    """The note that the host has the first one's answer came in an outage."""
    gate = Gate()
    async with alone([gated(gate, "write")]) as old, second(old) as new:
        asked = asyncio.ensure_future(old.dispatch(response_of(MESSAGE), session="s", turn="t"))
        await eventually(lambda: gate.came, "it runs")
        outage.is_on = True
        gate.open()
        await asked
        await eventually(lambda: outage.refused, "the note was refused")
        outage.is_on = False
        await eventually(lambda: not old._parts.resumer.is_behind, "it is written")
        assert is_unknown(await new.resume([MESSAGE], session="s"))
    assert gate.came == ["x"]


async def test_a_turn_that_the_server_has_lost_is_noted_again() -> None:
    """Else another dispatcher would run calls that were told `no`, as calls of an unknown turn."""
    gate = Gate()
    gate.open()
    refused = {**response_of(MESSAGE), "stop_reason": "refusal"}
    async with alone([gated(gate, "read")]) as old, second(old) as new:
        old._server.begin_epoch("first")
        await eventually(lambda: old._parts.in_flight.ended_calls._epoch, "it is followed")
        (result,) = await old.dispatch(refused, session="s", turn="t")
        assert result.executed is Executed.NO
        noted = old._parts.resumer._transport._turns
        await eventually(lambda: noted and old._parts.resumer._sending is None, "it is noted")
        old._server.forget()
        noted.clear()
        old._server.begin_epoch("second")
        await eventually(lambda: noted, "the turn is noted again")
        await new.resume([MESSAGE], session="s")
    assert not gate.came, "it ran after it was told that it had not"


async def test_the_sessions_next_call_waits_for_notes_that_were_delayed(outage: Outage) -> None:
    gate = Gate()
    gate.open()
    outage.is_on = True
    async with alone([gated(gate, "write")]) as dispatcher:
        await dispatcher.dispatch(response_of(MESSAGE), session="s", turn="t1")
        await eventually(lambda: outage.refused > 1, "the note is tried again")
        following = asyncio.ensure_future(
            dispatcher.dispatch(response_of(MESSAGE), session="s", turn="t2")
        )
        other = await dispatcher.dispatch(response_of(MESSAGE), session="other", turn="t")
        assert other.ok
        assert not following.done()
        assert gate.came == ["x", "x"]
        outage.is_on = False
        assert (await following).ok


async def test_the_dispatcher_itself_knows_its_notes_in_the_outage(outage: Outage) -> None:
    gate = Gate()
    outage.is_on = True
    async with alone([gated(gate, "write")]) as dispatcher:
        asked = asyncio.ensure_future(
            dispatcher.dispatch(response_of(MESSAGE), session="s", turn="t")
        )
        await eventually(lambda: gate.came, "it runs")
        dispatcher._parts.resumer._flush = _at_once  # type: ignore[method-assign]
        resuming = asyncio.ensure_future(dispatcher.resume([MESSAGE], session="s"))
        gate.open()
        turn = await asked
        assert await resuming == [MESSAGE, *turn.messages()]
        outage.is_on = False


async def _at_once(seconds: float) -> None:
    """Wait for nothing."""


async def test_a_session_of_which_notes_were_dropped_is_known_to_have_a_hole(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "_NOTES_AT_MOST", 1)
    gate = Gate()
    async with alone([gated(gate, "write")]) as old, second(old) as new:
        asked = [asyncio.ensure_future(old.dispatch(response_of(MESSAGE), session="s", turn="t"))]
        await eventually(lambda: len(gate.came) == 1, "it is noted, and runs")
        outage.is_on = True
        asked.append(
            asyncio.ensure_future(old.dispatch(response_of(MESSAGE), session="s2", turn="t"))
        )
        await eventually(lambda: outage.refused, "the note of another is being written")
        gate.open()
        await asyncio.gather(*asked)  # and there is no room for the note that "s" has its answer
        outage.is_on = False
        await eventually(lambda: not old._parts.resumer.is_behind, "it is written")
        assert is_unknown(await new.resume([MESSAGE], session="s"))


async def test_a_dispatcher_that_is_closed_writes_its_notes_first(outage: Outage) -> None:
    """Else the host's next one would take the answered call for an open one."""
    gate = Gate()
    async with alone([gated(gate, "write")]) as server:
        async with second(server) as old:
            asked = asyncio.ensure_future(old.dispatch(response_of(MESSAGE), session="s", turn="t"))
            await eventually(lambda: gate.came, "it is noted, and runs")
            outage.seconds = 0.3
            gate.open()
            await asked
        async with second(server) as new:
            assert is_unknown(await new.resume([MESSAGE], session="s"))


async def test_a_call_whose_turn_cannot_be_looked_up_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under another turn it would run again, with another idempotency key."""

    async def away(self: MemoryTransport, session: str) -> list[TurnNote]:
        raise ServerUnavailable("step", sent=True, reason="(away)")

    gate = Gate()
    gate.open()
    async with alone([gated(gate, "read")]) as old, second(old, queue_timeout=0.3) as new:
        await old.dispatch(response_of(MESSAGE), session="s", turn="t")
        with monkeypatch.context() as outage:
            outage.setattr(MemoryTransport, "turns", away)
            resumed = await new.resume([MESSAGE], session="s")
    assert is_unknown(resumed)
    assert "queue_unreachable" in str(resumed)
    assert gate.came == ["x"]


async def test_few_written_notes_are_remembered_while_more_keep_coming(outage: Outage) -> None:
    async with alone([gated(Gate(), "read")]) as dispatcher:
        resumer = dispatcher._parts.resumer
        for number in range(5_000):
            resumer._remember(TurnNote("s", f"t{number}", "n"))
            if not number % 100:
                await asyncio.sleep(0)
        await eventually(lambda: resumer._sending is None, "they are written")
        assert sum(len(batch.notes) for batch in resumer._written) == resumer._remembered
        last = len(resumer._written[-1].notes)
        assert resumer._remembered <= max(resume._REMEMBERED_AT_MOST, last)


async def test_notes_that_are_written_again_keep_their_order_before_new_ones(
    outage: Outage,
) -> None:
    """Also in an outage; what was noted meanwhile is written with them."""
    async with alone([gated(Gate(), "read")]) as dispatcher:
        resumer, noted = dispatcher._parts.resumer, dispatcher._parts.resumer._transport._turns
        for turn in ("a", "b"):
            resumer._remember(TurnNote("s", turn, "n"))
            await eventually(lambda: resumer._sending is None, "it is written")
        noted.clear()
        outage.is_on = True
        resumer.write_again()
        await eventually(lambda: outage.refused, "it is tried")
        resumer._remember(TurnNote("s", "c", "n"))
        assert [note.turn for note in resumer._being_restored("s")] == ["a", "b"]
        outage.is_on = False
        await eventually(lambda: resumer._sending is None, "all are written")
        assert [note.turn for note in noted if note.session == "s"] == ["a", "b", "c"]


async def test_notes_that_were_written_as_the_epoch_changed_are_written_again() -> None:
    async with alone([gated(Gate(), "read")]) as dispatcher:
        resumer = dispatcher._parts.resumer
        server, write = resumer._transport, resumer._transport.note_turns
        batches: list[Sequence[NoteBatch]] = []

        async def note_turns(given: Sequence[NoteBatch]) -> None:
            batches.append(list(given))
            await write(given)
            if len(batches) == 1:
                dispatcher._server.begin_epoch("another")

        server.note_turns = note_turns
        resumer._remember(TurnNote("s", "a", "n"))
        await eventually(lambda: resumer._sending is None, "it is written")
    assert [[batch.at for batch in given] for given in batches] == [[batches[0][0].at]] * 2
