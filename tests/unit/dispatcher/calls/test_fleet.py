"""Where calls go while workers of one queue offer different tools (R63)."""

from collections.abc import Sequence

import pytest

from toolpool.contract.envelope import Envelope, Toolset, WorkerLease
from toolpool.contract.ledger.memory import MemoryServer
from toolpool.contract.names import Names, toolset_queue
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import RunIn, ToolSpec, sealed
from toolpool.dispatcher.calls import fleet as fleets
from toolpool.dispatcher.calls.fleet import Fleet
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
QUEUE = Names().queue("default", RunIn.LOOP)
OLD = sealed(ToolSpec(name="search", timeout=5.0))
NEW = sealed(ToolSpec(name="search", timeout=9.0))
OTHER = sealed(ToolSpec(name="other"))


class Transport(MemoryTransport):
    """Knows toolsets, and counts how often it is asked."""

    def __init__(self, *toolsets: Toolset) -> None:
        super().__init__(MemoryServer())
        self.bodies = {toolset.digest: ENVELOPE.encode_toolset(toolset) for toolset in toolsets}
        self.asked: list[str] = []

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        self.asked += digests
        return [self.bodies.get(digest) for digest in digests]


def toolset(name: str, *specs: ToolSpec) -> Toolset:
    return Toolset(digest=name * 8, tools={spec.name: spec.digest for spec in specs})


def lease(
    worker: str,
    tools: Toolset | None,
    *,
    slots: int = 4,
    leaving: bool = False,
    ended: bool = False,
) -> WorkerLease:
    return WorkerLease(
        id=worker,
        host="h",
        pid=1,
        version="1",
        started_at=0.0,
        slots={QUEUE: slots},
        toolset=tools.digest if tools is not None else "",
        leaving=leaving,
        ended=ended,
    )


async def test_calls_for_what_all_workers_have_go_to_all_of_them() -> None:
    one = toolset("a", OLD, OTHER)
    transport = Transport(one)
    fleet = Fleet(transport, ENVELOPE, Names())
    for _ in range(3):
        await fleet.follow([lease("w1", one), lease("w2", one)])
    assert fleet.queue_for(OLD) == QUEUE
    assert fleet.runs(OLD)
    assert fleet.slots[QUEUE] == [4, 4]
    assert transport.asked == [one.digest], "a toolset is read once"


async def test_calls_for_what_some_workers_lack_go_to_those_that_have_it() -> None:
    old, new = toolset("a", OLD), toolset("b", NEW, OTHER)
    fleet = Fleet(Transport(old, new), ENVELOPE, Names())
    await fleet.follow([lease("w1", old), lease("w2", old), lease("w3", new)])
    assert fleet.queue_for(NEW) == fleet.queue_for(OTHER) == toolset_queue(QUEUE, new.digest)
    assert fleet.queue_for(OLD) == toolset_queue(QUEUE, old.digest)
    assert fleet.slots[toolset_queue(QUEUE, new.digest)] == [4]
    assert fleet.live == {"search": {OLD.digest, NEW.digest}, "other": {OTHER.digest}}


async def test_routes_follow_the_release() -> None:
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = Fleet(Transport(old, new), ENVELOPE, Names())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    assert fleet.queue_for(NEW) != QUEUE
    await fleet.follow([lease("w1", new), lease("w2", new)])
    assert fleet.queue_for(NEW) == QUEUE
    assert not fleet.runs(OLD)
    assert fleet.queue_for_another(OLD) == toolset_queue(QUEUE, new.digest)
    await fleet.follow([lease("w1", new, ended=True)])
    assert (fleet.slots, fleet.runs(NEW)) == ({}, False)


async def test_what_is_not_known_is_taken_to_have_everything() -> None:
    """A worker of an older version, or a toolset that cannot be read: it passes calls on."""
    new = toolset("b", NEW)
    fleet = Fleet(Transport(new), ENVELOPE, Names())
    await fleet.follow([lease("w1", None), lease("w2", new), lease("w3", toolset("c", OLD))])
    assert fleet.queue_for(NEW) == QUEUE


async def test_a_queue_that_nobody_takes_from_any_more_is_left() -> None:
    """Its last worker drained, died or was rolled back: what is on it would wait for ever."""
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = Fleet(Transport(old, new), ENVELOPE, Names())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    queue = fleet.queue_for(NEW)
    assert fleet.home(queue, NEW) == queue
    await fleet.follow([lease("w1", old)])
    assert fleet.home(queue, NEW) == QUEUE
    assert fleet.home(QUEUE, NEW) == QUEUE


async def test_a_version_that_was_taken_back_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no worker has come or gone since its last one was seen."""
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = Fleet(Transport(old, new), ENVELOPE, Names())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    await fleet.follow([lease("w1", old)])
    assert NEW.digest in fleet.live["search"], "a worker may be on its way back"
    monkeypatch.setattr(fleets, "_LIVE_SECONDS", -1.0)
    await fleet.follow([lease("w1", old)])
    assert NEW.digest not in fleet.live.get("search", ())


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_version_goes_with_its_last_worker_that_leaves_for_good(has_ended: bool) -> None:
    """A worker that crashed may be back at once; one that was told to stop will not be."""
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = Fleet(Transport(old, new), ENVELOPE, Names())
    await fleet.follow([lease("w1", old), lease("w2", new), lease("w3", new)])
    left = lease("w2", new, leaving=True, ended=has_ended)
    await fleet.follow([lease("w1", old), left, lease("w3", new)])
    assert NEW.digest in fleet.live["search"], "another still has it"
    queue = toolset_queue(QUEUE, new.digest)
    assert fleet.slots[queue] == [4]
    await fleet.follow([lease("w1", old), left, lease("w3", new, leaving=True)])
    assert fleet.live == {"search": {OLD.digest}}
    assert queue not in fleet.slots


async def test_a_release_that_was_rolled_back_is_soon_offered_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its date is the newest: as long as it counts as running, calls for it go nowhere."""
    now = 100.0
    monkeypatch.setattr(fleets.time, "monotonic", lambda: now)
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = Fleet(Transport(old, new), ENVELOPE, Names())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    now += 5.0
    await fleet.follow([lease("w1", old)])
    assert NEW.digest in fleet.live["search"], "its worker may be on its way back"
    now += 6.0
    await fleet.follow([lease("w1", old)])
    assert fleet.live["search"] == {OLD.digest}
