"""A conversation resumed while its calls still run, by several at once, and after others."""

import asyncio

import pytest

from tests.integration.conversations import (
    OWN,
    UNKNOWN,
    gated,
    gemini,
    ollama,
    response_of,
    said,
    use,
)
from tests.integration.fleet import call
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import tool

MESSAGES = {
    "own ids": said(use(f"{OWN}a", "x")),
    "ids from 0": said(use("call_0", "x")),
    "ollama": ollama("x"),
    "gemini": gemini("x"),
}


@pytest.mark.parametrize("effects", ["read", "write"])
@pytest.mark.parametrize("form", MESSAGES)
async def test_what_still_runs_is_known_and_waited_for(form: str, effects: str) -> None:
    """Also a call without an id of its own: nobody has its answer yet."""
    gate, message = Gate(), MESSAGES[form]
    async with alone([gated(gate, effects)]) as old, second(old) as new:
        running = asyncio.ensure_future(old.dispatch(response_of(message), session="s", turn="t"))
        await eventually(lambda: gate.came, "it runs")
        resuming = [
            asyncio.ensure_future(each.resume([message], session="s")) for each in (new, old, new)
        ]
        await eventually(lambda: new.in_flight() == 1, "it is asked for again")
        gate.open()
        turn = await running
        resumed = await asyncio.gather(*resuming)
    assert gate.came == ["x"]
    assert turn.ok
    assert resumed == [[message, *turn.messages()]] * 3


@pytest.mark.parametrize("form", MESSAGES)
async def test_a_read_that_nothing_is_known_of_runs_once_for_all_who_resume(form: str) -> None:
    gate, message = Gate(), MESSAGES[form]
    async with alone([gated(gate, "read")]) as one, second(one) as other:
        resuming = [
            asyncio.ensure_future(each.resume([message], session="s"))
            for each in (one, other, one, other)
        ]
        await eventually(lambda: gate.came and other.in_flight() and one.in_flight(), "it runs")
        gate.open()
        resumed = await asyncio.gather(*resuming)
    assert gate.came == ["x"]
    assert "did x" in str(resumed[0])
    assert resumed == [resumed[0]] * 4


@pytest.mark.parametrize("form", ["ids from 0", "ollama", "gemini"])
async def test_a_call_of_a_cut_history_does_not_get_an_earlier_call_s_result(form: str) -> None:
    """The first one's turn is not in the history any more, and the second was never dispatched."""
    gate, message = Gate(), MESSAGES[form]
    gate.open()
    async with alone([gated(gate, "write")]) as dispatcher:
        await dispatcher.dispatch(response_of(message), session="s", turn="t")
        resumed = await dispatcher.resume([message], session="s")
    assert UNKNOWN in str(resumed).replace("'", '"').replace(" ", "")
    assert "did x" not in str(resumed)
    assert gate.came == ["x"]


@pytest.mark.parametrize("form", ["ids from 0", "ollama", "gemini"])
async def test_an_equal_read_of_a_later_turn_is_run_for_itself(form: str) -> None:
    """Though neither was dispatched, and the second is resumed right after the first."""
    gate, message = Gate(), MESSAGES[form]
    gate.open()
    async with alone([gated(gate, "read")]) as dispatcher:
        first = await dispatcher.resume([message], session="s")
        await dispatcher.resume([*first, message], session="s")
    assert gate.came == ["x", "x"]


async def test_what_a_resume_answered_is_not_the_next_equal_call_s() -> None:
    gate = Gate()
    async with alone([gated(gate, "write")]) as old, second(old) as new:
        running = asyncio.ensure_future(
            old.dispatch(response_of(ollama("x")), session="s", turn="t")
        )
        await eventually(lambda: gate.came, "it runs")
        running.cancel()
        await asyncio.wait({running})
        first = await new.resume([ollama("x")], session="s")
        again = await new.resume([ollama("x")], session="s")
    assert "aborted.cancelled" in str(first)
    assert "aborted.cancelled" not in str(again)


async def test_a_read_after_an_answered_write_is_not_answered_by_a_result_from_before_it() -> None:
    """The host has stored the answer of the write, and died before the one of the read."""
    gate, reads = Gate(), []
    gate.open()

    @tool(effects="read", cache_seconds=60)
    async def look() -> int:
        """Look."""
        reads.append("look")
        return len(reads)

    message = said(use(f"{OWN}a", "x"), {**use(f"{OWN}b", "x"), "name": "look", "input": {}})
    async with alone([gated(gate, "write"), look]) as first:
        await first.dispatch(call("look"), session="s", turn="before")
        turn = await first.dispatch(response_of(message), session="s", turn="t")
        assert [result.data for result in turn][1] == 2
        [answers] = turn.messages()
        stored = [message, {**answers, "content": answers["content"][:1]}]
        first._server.records.clear()  # an hour later
        await first.dispatch(call("look"), session="s", turn="elsewhere")
        async with second(first) as other:
            resumed = await other.resume(stored, session="s")
    assert resumed[-1]["content"][-1]["content"] == "4", "the third began before the resume"


async def test_a_complete_history_is_not_looked_up(caplog: pytest.LogCaptureFixture) -> None:
    """Also if one answer stands in a place where the provider does not take it."""
    gate = Gate()
    gate.open()
    message = MESSAGES["own ids"]
    async with alone([gated(gate, "read")]) as dispatcher:
        turn = await dispatcher.dispatch(response_of(message), session="s", turn="t")
        [answer] = turn.messages()
        history = [message, {"role": "user", "content": "and?"}, answer]
        resumed = await dispatcher.resume(history, session="s")
    assert resumed != history
    assert "turns_not_looked_up" not in caplog.text
