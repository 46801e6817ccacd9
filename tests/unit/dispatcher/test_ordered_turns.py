"""The calls of one turn: in order, together where they may be, each to its result (R1, R32)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.dispatcher.samples import Hand, turns
from tests.waiting import eventually
from toolpool.contract.envelope import Envelope
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import Effects, ToolSpec, sealed
from toolpool.dispatcher.dispatch import Dispatcher
from toolpool.dispatcher.transports.memory import MemoryTransport
from toolpool.dispatcher.turn_result import TurnResult

SPECS = [
    sealed(ToolSpec(name="read", effects=Effects.READ)),
    sealed(ToolSpec(name="write", effects=Effects.WRITE)),
    sealed(ToolSpec(name="slow", effects=Effects.READ, background=True)),
    sealed(ToolSpec(name="build", effects=Effects.WRITE, background=True)),
]
NAMES = {"r": "read", "w": "write", "s": "slow", "b": "build"}
STILL_RUNS = failure(Code.TIMEOUT, "", Executed.UNKNOWN, worker="w-1", still_running=True)


@dataclass
class Bench:
    """A dispatcher and a worker in the test's hand."""

    server: MemoryServer
    dispatcher: Dispatcher
    hand: Hand

    def dispatch(
        self, calls: str, session: str = "s-1", **options: Any
    ) -> asyncio.Task[TurnResult]:
        """A turn of calls, each named by its kind and a number: `r1 w2`."""
        blocks = [{"id": key, "name": NAMES[key[0]], "input": {}} for key in calls.split()]
        return asyncio.create_task(self.dispatcher.dispatch(blocks, session=session, **options))

    async def assert_has(self, ids: str) -> None:
        """The worker was sent these calls in this order, and is sent no other."""
        await eventually(lambda: set(ids.split()) <= set(self.hand.ids), f"it has {ids}")
        await turns(50)
        assert self.hand.ids == ids.split()


@asynccontextmanager
async def bench_with(**settings: Any) -> AsyncIterator[Bench]:
    server = MemoryServer()
    hand = Hand(server)
    work = asyncio.create_task(hand.run())
    async with Dispatcher(
        MemoryTransport(server),
        settings=Settings(**settings),
        envelope=Envelope(Keyring.local()),
        specs=SPECS,
    ) as dispatcher:
        yield Bench(server, dispatcher, hand)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with bench_with() as made:
        yield made


def said(result: TurnResult) -> list[tuple[str, bool, Code | None, Executed]]:
    return [(one.call_id, one.ok, one.code, one.executed) for one in result]


def went_well(ids: str) -> list[tuple[str, bool, Code | None, Executed]]:
    return [(key, True, None, Executed.YES) for key in ids.split()]


CANCELLED = (False, Code.CANCELLED, Executed.NO)


# Order.


async def test_reads_run_side_by_side_and_are_answered_in_the_order_they_were_asked(
    bench: Bench,
) -> None:
    turn = bench.dispatch("r1 r2 r3")
    await bench.assert_has("r1 r2 r3")
    for key in ("r3", "r1", "r2"):
        await bench.hand.end(key)
    assert said(await turn) == went_well("r1 r2 r3")
    assert [result.data for result in await turn] == ["r1", "r2", "r3"]


async def test_a_write_waits_for_what_came_before_it_and_holds_what_comes_after(
    bench: Bench,
) -> None:
    turn = bench.dispatch("r1 r2 w3 r4")
    await bench.assert_has("r1 r2")
    await bench.hand.end("r1")
    await bench.assert_has("r1 r2")
    await bench.hand.end("r2")
    await bench.assert_has("r1 r2 w3")
    await bench.hand.end("w3")
    await bench.assert_has("r1 r2 w3 r4")
    await bench.hand.end("r4")
    assert said(await turn) == went_well("r1 r2 w3 r4")


async def test_in_strict_order_a_write_makes_all_calls_wait_in_line() -> None:
    async with bench_with(turn_order="strict") as bench:
        turn = bench.dispatch("r1 r2 w3")
        await bench.assert_has("r1")
        await bench.hand.end("r1")
        await bench.assert_has("r1 r2")
        await bench.hand.end("r2")
        await bench.hand.end("w3")
        assert said(await turn) == went_well("r1 r2 w3")


async def test_a_write_that_failed_does_not_keep_the_rest_from_running(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2")
    await bench.hand.end("w1", failure(Code.RAISED, "x", Executed.YES, worker="w-1"))
    await bench.hand.end("r2")
    assert said(await turn) == [("w1", False, Code.RAISED, Executed.YES), *went_well("r2")]


async def test_turns_of_one_session_do_not_wait_for_each_other(bench: Bench) -> None:
    first, second = bench.dispatch("w1"), bench.dispatch("w2")
    await bench.assert_has("w1 w2")
    for key in ("w1", "w2"):
        await bench.hand.end(key)
    assert said(await first) + said(await second) == went_well("w1 w2")


async def test_the_times_of_a_call_begin_when_it_has_left_its_barrier() -> None:
    """However long the write before it took."""
    async with bench_with(queue_timeout=0.2) as bench:
        turn = bench.dispatch("w1 r2")
        await bench.assert_has("w1")
        over = time.monotonic() + 0.2
        await eventually(lambda: time.monotonic() > over, "the first queue wait is over")
        await bench.hand.end("w1")
        await bench.hand.end("r2")
        assert said(await turn) == went_well("w1 r2")


# A write that was answered and may still run.


async def test_what_comes_after_a_write_waits_for_its_end(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2")
    await bench.hand.end("w1", STILL_RUNS)
    await bench.assert_has("w1")
    bench.hand.say_ended("w1")
    await bench.hand.end("r2")
    written, read = await turn
    assert (written.code, written.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert (read.ok, read.note) == (True, None)


async def test_an_unobserved_end_of_a_write_is_reported_to_the_model() -> None:
    """In the results of the stage after it, and of no other."""
    async with bench_with(lease_ttl=0.02) as bench:
        turn = bench.dispatch("w1 r2 w3")
        await bench.hand.end("w1", STILL_RUNS)
        await bench.hand.end("r2")
        await bench.hand.end("w3")
        _, read, last = await turn
        assert read.note is not None
        assert "write" in read.note
        assert last.note is None


async def test_a_read_that_was_answered_and_may_still_run_holds_nothing(bench: Bench) -> None:
    turn = bench.dispatch("r1 w2")
    await bench.hand.end("r1", STILL_RUNS)
    await bench.hand.end("w2")
    assert said(await turn)[1:] == went_well("w2")


async def test_a_background_read_is_not_mentioned_to_the_model() -> None:
    async with bench_with(background_wait=0.0) as bench:
        turn = bench.dispatch("s1 w2")
        await bench.hand.end("w2")
        slow, written = await turn
        assert slow.handle
        assert (written.data, written.note) == ("w2", None)


async def test_a_background_write_blocks_nothing_and_is_reported_to_the_model() -> None:
    """It may go on for a day."""
    async with bench_with(background_wait=0.0) as bench:
        turn = bench.dispatch("b1 r2")
        await bench.hand.end("r2")
        written, read = await turn
        assert written.handle
        assert read.data == "r2"
        assert read.note is not None
        assert "build" in read.note


# Cancelling.


async def test_one_call_ahead_is_cancelled_and_the_others_go_on(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2 r3")
    await bench.assert_has("w1")
    assert await bench.dispatcher.cancel("s-1", call_id="r2") == 1
    await bench.hand.end("w1")
    await bench.hand.end("r3")
    assert said(await turn) == [*went_well("w1"), ("r2", *CANCELLED), *went_well("r3")]
    assert "r2" not in bench.hand.ids


async def test_a_whole_turn_is_cancelled_with_what_is_ahead_in_it(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2 w3")
    await bench.assert_has("w1")
    assert await bench.dispatcher.cancel("s-1") == 3
    assert said(await turn) == [
        ("w1", False, Code.CANCELLED, Executed.UNKNOWN), ("r2", *CANCELLED), ("w3", *CANCELLED),
    ]  # fmt: skip
    assert bench.hand.ids == ["w1"]


async def test_turns_of_other_sessions_are_not_cancelled(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2", session="s-2")
    await bench.assert_has("w1")
    assert await bench.dispatcher.cancel("s-1") == 0
    await bench.hand.end("w1")
    await bench.hand.end("r2")
    assert said(await turn) == went_well("w1 r2")


async def test_the_end_of_a_write_is_not_waited_for_where_nothing_ahead_is_wanted() -> None:
    async with bench_with(lease_ttl=60.0) as bench:
        turn = bench.dispatch("w1 r2 r3")
        await bench.hand.end("w1", STILL_RUNS)
        await eventually(lambda: bench.dispatcher.in_flight() == 0, "the write is answered")
        await bench.dispatcher.cancel("s-1", call_id="r2")
        await turns(50)
        assert not turn.done(), "one is still wanted"
        await bench.dispatcher.cancel("s-1", call_id="r3")
        await eventually(turn.done, "nobody waits for the end of the write")
        assert said(await turn)[1:] == [("r2", *CANCELLED), ("r3", *CANCELLED)]


async def test_nothing_is_kept_of_a_turn_that_is_over(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2")
    await bench.hand.end("w1")
    await bench.hand.end("r2")
    await turn
    assert await bench.dispatcher.cancel("s-1") == 0
    assert bench.dispatcher._turns.running == set()


# Wait budgets.


async def test_a_call_that_outlives_its_wait_budget_is_answered_with_a_handle(
    bench: Bench,
) -> None:
    (result,) = await bench.dispatch("r1", wait=0.0)
    assert (result.ok, result.executed) == (True, Executed.UNKNOWN)
    assert result.handle
    assert result.data["handle"] == result.handle
    await bench.hand.end("r1")
    final = await bench.dispatcher.task_result(result.handle, session="s-1", wait=10.0)
    assert final is not None
    assert final.data == "r1"


async def test_a_call_that_ends_within_its_wait_budget_has_its_result(bench: Bench) -> None:
    turn = bench.dispatch("r1", wait=60.0)
    await bench.hand.end("r1")
    (result,) = await turn
    assert (result.data, result.handle) == ("r1", None)


async def test_only_background_tools_are_handed_over_where_no_budget_is_asked_for() -> None:
    async with bench_with(background_wait=0.0) as bench:
        turn = bench.dispatch("s1 r2")
        await bench.assert_has("s1 r2")
        assert not turn.done()
        await bench.hand.end("r2")
        slow, read = await turn
        assert slow.handle
        assert (read.data, read.handle) == ("r2", None)


async def test_a_budget_that_is_asked_for_counts_for_background_tools_too() -> None:
    async with bench_with(background_wait=0.0) as bench:
        turn = bench.dispatch("s1", wait=60.0)
        await bench.hand.end("s1")
        (slow,) = await turn
        assert (slow.data, slow.handle) == ("s1", None)


# A dispatch that is cancelled.


async def test_the_calls_of_a_cancelled_dispatch_are_cancelled(bench: Bench) -> None:
    turn = bench.dispatch("r1 r2")
    await bench.assert_has("r1 r2")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert bench.dispatcher.in_flight() == 0
    assert bench.server.waiting("cancel:w-1") == 2


async def test_what_is_ahead_in_a_cancelled_dispatch_is_never_sent(bench: Bench) -> None:
    turn = bench.dispatch("w1 r2")
    await bench.assert_has("w1")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await bench.assert_has("w1")
    assert bench.dispatcher._turns.running == set()


async def test_a_call_that_another_dispatch_waits_for_too_goes_on(bench: Bench) -> None:
    first = bench.dispatch("r1", turn="t-1")
    await bench.assert_has("r1")
    second = bench.dispatch("r1", turn="t-1")
    await turns(50)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert bench.server.waiting("cancel:w-1") == 0
    await bench.hand.end("r1")
    assert said(await second) == went_well("r1")


async def test_the_same_call_asked_twice_at_once_runs_once(bench: Bench) -> None:
    both = [bench.dispatch("r1", turn="t-1") for _ in range(2)]
    await bench.assert_has("r1")
    await bench.hand.end("r1", Outcome(ok=True, data="once", worker="w-1"))
    assert [(await turn)[0].data for turn in both] == ["once", "once"]


async def test_a_failure_counts_once_however_many_asked_for_the_call(bench: Bench) -> None:
    """It would be a loop, else, of a call that the model made a single time."""
    for number in range(3):
        both = [bench.dispatch(f"r{number}", turn=f"t-{number}") for _ in range(2)]
        await bench.hand.end(f"r{number}", failure(Code.RAISED, "x", Executed.YES, worker="w-1"))
        codes = [(await turn)[0].code for turn in both]
        assert codes == [Code.RAISED, Code.RAISED]
