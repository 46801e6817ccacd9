"""The watchdog tells of what blocks an event loop, and of nothing else."""

import asyncio
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import wait_until
from toolpool.contract.settings import Settings
from toolpool.workers.supervision import loop_watchdog
from toolpool.workers.supervision.loop_watchdog import LoopWatchdog, is_waiting
from toolpool.workers.worker_observer import Blocked, WorkerObserver, WorkerObservers


class Pager(WorkerObserver):
    """Keeps what it is told."""

    is_quick = True

    def __init__(self) -> None:
        self.told: list[Blocked] = []

    def blocked(self, blocked: Blocked) -> None:
        """A loop is blocked."""
        self.told.append(blocked)


@contextmanager
def loop_in_a_thread() -> Iterator[tuple[asyncio.AbstractEventLoop, threading.Thread]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop, thread
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def watching(thread: threading.Thread, pager: Pager) -> Iterator[Callable[[], int]]:
    """A watchdog to which the loop seems to be late all the time; how often it has looked."""
    looks = 0

    def lag() -> float:
        nonlocal looks
        looks += 1
        return 5.0

    observers = WorkerObservers([pager], settings=Settings(), tools={})
    observers.start()
    watch = LoopWatchdog(thread=thread, loop_lag=lag, warn=1.0, limit=60.0, observers=observers)
    watch.start()
    try:
        yield lambda: looks
    finally:
        watch.stop()
        observers.close()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watchdog, "_CHECK_SECONDS", 0.001)


def test_a_loop_that_is_late_and_waits_for_events_is_not_blocked() -> None:
    """As where the machine is busy, or has stood still: nobody is to be woken."""
    pager = Pager()
    with loop_in_a_thread() as (_, thread):
        wait_until(lambda: is_waiting(sys._current_frames()[thread.ident or 0]), "it waits")
        with watching(thread, pager) as looks:
            wait_until(lambda: looks() > 20, "it has looked")
    assert pager.told == []


def read_from(end: socket.socket, count: int) -> None:
    end.recv(count)


def select_from(end: socket.socket, _: int) -> None:
    """As `subprocess` does where a tool waits for a program."""
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        selector.select(20.0)


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (read_from, "in read_from\n"),
        (select_from, "in select_from\n"),
        (socket.socket.recv, "in _run\n"),  # it has no frame of its own
    ],
    ids=["code", "a selector of its own", "built in"],
)
def test_a_blocked_loop_is_reported_once_with_its_stack(
    block: Callable[..., object], shown: str
) -> None:
    pager = Pager()
    here, there = socket.socketpair()
    with here, there, loop_in_a_thread() as (loop, thread):
        loop.call_soon_threadsafe(block, there, 1)
        with watching(thread, pager) as looks:
            wait_until(lambda: pager.told, "it is told")
            before = looks()
            wait_until(lambda: looks() > before + 20, "it has looked again")
            here.send(b".")
    (told,) = pager.told
    assert (told.tool, told.seconds, told.is_fatal) == (None, 5.0, False)
    assert shown in told.stack
