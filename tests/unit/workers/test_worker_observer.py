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


class Together(WorkerObserver):
    """Wants every moment told together."""

    is_quick = True
    told_together = frozenset(moments(WorkerObserver))

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []


def _hearing(moment: str) -> Callable[..., None]:
    def hear(self: Together, *facts: Any) -> None:
        self.heard.append((moment, facts))

    return hear


for _moment in (*moments(WorkerObserver), "all_told"):
    setattr(Together, _moment, _hearing(_moment))


@pytest.fixture
def observer() -> Together:
    return Together()


@pytest.fixture
def observers(observer: Together) -> WorkerObservers:
    told = WorkerObservers([observer], settings=Settings(), tools={})
    told.start()
    return told


async def test_moments_of_calls_are_told_in_a_row_a_turn_later_and_all_others_at_once(
    observer: Together, observers: WorkerObservers, caplog: pytest.LogCaptureFixture
) -> None:
    facts = observers.started(CALL, BATCH, 10, 1.0)
    observers.ended(CALL, DONE, 0.5, facts)
    lost = threading.Thread(target=observers.tell, args=("server_lost", "refused"))
    lost.start()
    lost.join()
    assert [moment for moment, _ in observer.heard] == ["content", "server_lost"]
    await asyncio.sleep(0)
    later = [moment for moment, _ in observer.heard[2:]]
    assert later == ["started", "ended", "all_told"]
    assert not caplog.messages, "each was told with all of its facts"


async def test_the_facts_of_a_run_are_the_same_at_its_end(
    observer: Together, observers: WorkerObservers
) -> None:
    facts = observers.started(CALL, BATCH, 10, 1.0)
    assert isinstance(facts, RunFacts)
    observers.ended(CALL, DONE, 0.5, facts)
    observers.ended(CALL, DONE, 0.5)  # one that was never started
    await asyncio.sleep(0)
    of_ends = [facts for moment, facts in observer.heard if moment == "ended"]
    assert [told[0] for told in of_ends] == [facts, facts]
    assert of_ends[0][0] is facts
