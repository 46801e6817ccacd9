"""Tasks and threads that tools leave behind are told when they become many."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from toolpool.workers.running.leak_check import OWN_TASK, Leftovers
from toolpool.workers.worker_observer import LeftBehind


@pytest.fixture
def ending() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def looks(leftovers: Leftovers, *looked: tuple[float, float]) -> list[LeftBehind]:
    """What is told at such times, with the oldest call of such times."""
    return [left for now, oldest in looked for left in leftovers.look(now, oldest)]


async def _polls_for_ever() -> None:
    await asyncio.sleep(3600)


def started(what: str, count: int, ending: threading.Event) -> list[Any]:
    if what == "tasks":
        return [asyncio.ensure_future(_polls_for_ever()) for _ in range(count)]
    threads = [threading.Thread(target=ending.wait, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("what", ["tasks", "threads"])
async def test_a_growing_count_is_logged_each_time_it_doubles(
    what: str, ending: threading.Event
) -> None:
    leftovers = Leftovers()
    alive = started(what, 110, ending)
    await asyncio.sleep(0)
    [left] = looks(leftovers, (0.0, 0.0), (61.0, 60.0))
    assert left.what == what
    assert 110 <= left.count < 200, "other tests may have left some too"
    assert ("_polls_for_ever" if what == "tasks" else "in wait") in left.stack
    assert not looks(leftovers, (122.0, 121.0), (183.0, 182.0)), "it grows no more"
    alive += started(what, 150, ending)
    [left] = looks(leftovers, (244.0, 243.0), (305.0, 304.0))
    assert 260 <= left.count < 400
    assert not looks(leftovers, (306.0, 306.0)), "once a minute"


async def test_what_calls_still_use_and_what_a_pool_has_is_not_left_behind(
    ending: threading.Event,
) -> None:
    leftovers = Leftovers()
    alive = started("tasks", 300, ending)
    began = -1.0
    assert not looks(leftovers, (0.0, began), (61.0, began), (122.0, began)), "a call has them"
    for task in alive:
        task.cancel()
    await asyncio.gather(*alive, return_exceptions=True)
    pool = started("threads", 64, ending)
    assert not looks(leftovers, (183.0, 183.0), (244.0, 244.0)), "a pool"
    assert len(pool) == 64


async def test_what_waits_for_child_processes_is_not_left_behind(
    ending: threading.Event,
) -> None:
    """There is a task a child, and on some systems a thread."""
    leftovers = Leftovers()
    tasks = [asyncio.create_task(_polls_for_ever(), name=OWN_TASK) for _ in range(150)]
    threads = [
        threading.Thread(target=ending.wait, name=f"asyncio-waitpid-{n}", daemon=True)
        for n in range(150)
    ]
    for thread in threads:
        thread.start()
    told = looks(leftovers, (0.0, 0.0), (61.0, 60.0))
    assert all(left.count < 150 for left in told), "other tests may have left some"
    for task in tasks:
        task.cancel()
