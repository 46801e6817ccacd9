"""Order, limits, and every way to end."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from tests.waiting import eventually
from toolpool.cli.running.answer import AnsweredLine
from toolpool.cli.running.lines import Line
from toolpool.cli.running.stream import Stream


class Bench:
    """A stream whose answers come when the test says so."""

    def __init__(self, count: int, concurrency: int) -> None:
        self.doors = [asyncio.Event() for _ in range(count)]
        self.running: set[int] = set()
        self.started: list[int] = []
        self.delivered: list[int] = []
        self.writes = 0
        self.stream = Stream(self._answer, self._deliver, concurrency=concurrency)
        self.numbers: Iterable[int] = range(count)

    async def lines(self) -> AsyncIterator[Line]:
        for number in self.numbers:
            yield Line(number, b"", 0)

    async def _answer(self, line: Line) -> AnsweredLine:
        self.running.add(line.number)
        self.started.append(line.number)
        try:
            await self.doors[line.number].wait()
        finally:
            self.running.discard(line.number)
        return AnsweredLine(line=line, text=b"", results=())

    async def _deliver(self, answers: list[AnsweredLine]) -> None:
        self.writes += 1
        self.delivered += [answer.line.number for answer in answers]

    def run(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.stream.run(self.lines()))


async def test_answers_leave_in_order_and_as_soon_as_their_turn_has_come() -> None:
    bench = Bench(4, concurrency=4)
    run = bench.run()
    await eventually(lambda: len(bench.running) == 4, "four turns in flight")
    for number in (2, 1):
        bench.doors[number].set()
    await eventually(lambda: len(bench.running) == 2, "two turns done")
    assert bench.delivered == []
    bench.doors[0].set()
    await eventually(lambda: bench.delivered == [0, 1, 2], "what waited left at once")
    assert bench.writes == 1
    bench.doors[3].set()
    await run
    assert bench.delivered == [0, 1, 2, 3]


async def test_at_most_concurrency_turns_run_and_a_slow_first_one_does_not_stop_reading_early() -> (
    None
):
    bench = Bench(100, concurrency=2)
    for door in bench.doors[1:]:
        door.set()
    run = bench.run()
    await eventually(lambda: len(bench.started) == 16, "the window is full")
    await asyncio.sleep(0.02)
    assert len(bench.started) == 16  # 8 times the concurrency: what waits to be written is bounded
    assert bench.running == {0}
    bench.doors[0].set()
    await run
    assert bench.delivered == list(range(100))


async def test_no_lines_end_at_once() -> None:
    bench = Bench(0, concurrency=2)
    await asyncio.wait_for(bench.run(), 5)
    assert bench.writes == 0


@pytest.mark.parametrize("done", [(), (0,), (1,), (0, 1, 2)])
async def test_a_stop_delivers_what_is_done_and_names_the_rest(done: tuple[int, ...]) -> None:
    bench = Bench(3, concurrency=3)
    run = bench.run()
    await eventually(lambda: len(bench.running) == 3, "three turns in flight")
    for number in done:
        bench.doors[number].set()
    await eventually(lambda: len(bench.running) == 3 - len(done), "those are done")
    bench.stream.stop()
    await asyncio.wait_for(run, 5)
    assert bench.delivered == list(done)
    assert bench.stream.given_up == [number for number in range(3) if number not in done]
    assert not bench.running


async def test_a_stop_ends_a_stream_that_waits_for_its_next_line() -> None:
    bench = Bench(1, concurrency=1)

    async def silent() -> AsyncIterator[Line]:
        await asyncio.Event().wait()
        yield Line(0, b"", 0)

    run = asyncio.create_task(bench.stream.run(silent()))
    await asyncio.sleep(0.01)
    bench.stream.stop()
    await asyncio.wait_for(run, 5)


async def test_a_stop_before_the_start_reads_nothing() -> None:
    bench = Bench(3, concurrency=3)
    bench.stream.stop()
    await asyncio.wait_for(bench.run(), 5)
    assert bench.started == []


async def test_a_fault_of_reading_comes_after_what_was_read() -> None:
    bench = Bench(2, concurrency=2)
    bench.doors[0].set()

    async def broken() -> AsyncIterator[Line]:
        yield Line(0, b"", 0)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(bench.stream.run(broken()), 5)
    assert bench.delivered == [0]


async def test_a_fault_of_delivering_leaves_no_turn_running() -> None:
    bench = Bench(5, concurrency=5)
    bench.doors[0].set()

    async def full(answers: list[AnsweredLine]) -> None:
        raise OSError("full")

    stream = Stream(bench._answer, full, concurrency=5)
    with pytest.raises(OSError, match="full"):
        await asyncio.wait_for(stream.run(bench.lines()), 5)
    assert not bench.running


async def test_a_fault_of_answering_ends_the_stream() -> None:
    async def misconfigured(line: Line) -> AnsweredLine:
        raise RuntimeError("no server")

    async def deliver(answers: list[AnsweredLine]) -> None:
        raise AssertionError

    stream = Stream(misconfigured, deliver, concurrency=2)
    with pytest.raises(RuntimeError, match="no server"):
        await asyncio.wait_for(stream.run(Bench(9, concurrency=2).lines()), 5)
