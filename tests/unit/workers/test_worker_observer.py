"""How a worker tells its observers (R43): at once, or many moments of its calls in a row."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from toolpool.contract.envelope import Batch, CallMessage
from toolpool.contract.observer_dispatch import moments
from toolpool.contract.outcome import Executed, Outcome
from toolpool.contract.settings import Settings
from toolpool.workers.worker_observer import RunFacts, WorkerObserver, WorkerObservers

CALL = CallMessage(key="k", id="c", tool="t", digest="d", arguments={}, timeout=1.0)
BATCH = Batch(id="b", reply="r", calls=(CALL,))
DONE = Outcome(ok=True, data=1, executed=Executed.YES, worker="w")


class Recording(WorkerObserver):
    """Records every moment."""

    is_quick = True

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []


def _hearing(moment: str) -> Callable[..., None]:
    def hear(self: Recording, *facts: Any) -> None:
        self.heard.append((moment, facts))

    return hear


for _moment in moments(WorkerObserver):
    setattr(Recording, _moment, _hearing(_moment))


@pytest.fixture
def observer() -> Recording:
    return Recording()


@pytest.fixture
def observers(observer: Recording) -> WorkerObservers:
    told = WorkerObservers([observer], settings=Settings(), tools={})
    told.start()
    return told


async def test_a_quick_observer_is_told_each_moment_where_it_happens(
    observer: Recording, observers: WorkerObservers, caplog: pytest.LogCaptureFixture
) -> None:
    facts = observers.started(CALL, BATCH, 10, 1.0)
    observers.ended(CALL, DONE, 0.5, facts)
    lost = threading.Thread(target=observers.notify, args=("server_lost", "refused"))
    lost.start()
    lost.join()
    told = ["started", "content", "ended", "server_lost"]
    assert [moment for moment, _ in observer.heard] == told
    assert not caplog.messages, "each was told with all of its facts"


async def test_the_facts_of_a_run_are_the_same_at_its_end(
    observer: Recording, observers: WorkerObservers
) -> None:
    facts = observers.started(CALL, BATCH, 10, 1.0)
    assert isinstance(facts, RunFacts)
    observers.ended(CALL, DONE, 0.5, facts)
    observers.ended(CALL, DONE, 0.5)  # one that was never started
    await asyncio.sleep(0)
    of_ends = [facts for moment, facts in observer.heard if moment == "ended"]
    assert [told[0] for told in of_ends] == [facts, facts]
    assert of_ends[0][0] is facts
