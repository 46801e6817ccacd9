"""What is measured, and how: every side does the same with its own client.

Imported by the peers' own environment too, so it needs nothing but the standard library.
"""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

WORK_SECONDS = 0.005
WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Load:
    """One form of load."""

    task: str
    """`echo` gives back a text, `work` keeps a processor busy, `wait` sleeps."""
    in_flight: int
    text_bytes: int = 5
    is_one_wave: bool = False
    """All at once and once, not again and again for some seconds."""
    is_isolated: bool = False
    """Each call has a process to itself while it runs, so that its death harms no other call."""

    @property
    def argument(self) -> Any:
        """What the task is called with."""
        return {"echo": "x" * self.text_bytes, "work": WORK_SECONDS, "wait": WAIT_SECONDS}[
            self.task
        ]


LOADS = {
    "no-op": Load("echo", 500),
    "no-op, isolated": Load("echo", 500, is_isolated=True),
    "1 KB": Load("echo", 500, text_bytes=1_000),
    "64 KB": Load("echo", 100, text_bytes=64_000),
    "5 ms of a processor": Load("work", 100),
    "2 s of waiting": Load("wait", 1_000, is_one_wave=True),
    "one at a time": Load("echo", 1),
}


def work(seconds: float) -> float:
    """Keep a processor busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return seconds


@dataclass
class Figures:
    """Of one load at one side."""

    calls: int
    seconds: float
    latencies: list[float]
    """Of each call, in seconds."""

    def line(self) -> str:
        """As one line of JSON for the harness."""
        ordered = sorted(self.latencies)
        return json.dumps(
            {
                "calls": self.calls,
                "seconds": self.seconds,
                "calls_per_second": self.calls / self.seconds,
                "p50_ms": ordered[len(ordered) // 2] * 1000,
                "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
            }
        )


async def measure(ask: Callable[[Any], Awaitable[Any]], load: Load, seconds: float) -> Figures:
    """Ask again and again for some seconds; `ask` returns the task's result."""
    latencies: list[float] = []
    argument = load.argument
    began = time.perf_counter()

    async def ask_on() -> None:
        is_first = True
        while is_first or (not load.is_one_wave and time.perf_counter() - began < seconds):
            is_first = False
            start = time.perf_counter()
            answer = await ask(argument)
            latencies.append(time.perf_counter() - start)
            assert answer == argument, f"answered {str(answer)[:60]!r}"

    await asyncio.gather(*(ask_on() for _ in range(load.in_flight)))
    return Figures(len(latencies), time.perf_counter() - began, latencies)


def measure_blocking(
    send: Callable[[Any], Any], result_of: Callable[[Any], Any], load: Load, seconds: float
) -> Figures:
    """The same with a client that blocks: the oldest call is awaited, and another is sent."""
    latencies: list[float] = []
    waiting: deque[tuple[float, Any]] = deque()
    argument = load.argument

    def take() -> None:
        start, sent = waiting.popleft()
        answer = result_of(sent)
        latencies.append(time.perf_counter() - start)
        assert answer == argument, f"answered {str(answer)[:60]!r}"

    began = time.perf_counter()
    left = load.in_flight if load.is_one_wave else sys.maxsize
    while left and (load.is_one_wave or time.perf_counter() - began < seconds):
        if len(waiting) >= load.in_flight:
            take()
        waiting.append((time.perf_counter(), send(argument)))
        left -= 1
    while waiting:
        take()
    return Figures(len(latencies), time.perf_counter() - began, latencies)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a side's client on uvloop, where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


async def answer_orders(
    measured: Callable[[Load, float], Awaitable[Figures]], versions: dict[str, str]
) -> None:
    """Say that this side is ready, then measure each load that a line on standard input names."""
    print(json.dumps({"versions": versions}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        figures = await measured(LOADS[order["load"]], order["seconds"])
        print(figures.line(), flush=True)
