"""Where calls go while workers of one queue offer different tools (R63)."""

from collections.abc import Sequence

import msgspec
import pytest

from toolpool.contract.envelope import Envelope, Toolset, WorkerLease
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.redis_keys import RedisKeys, toolset_queue
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import RunIn, ToolSpec, sealed
from toolpool.dispatcher.calls import live_workers as fleets
from toolpool.dispatcher.calls.live_workers import LiveWorkers
from toolpool.dispatcher.calls.queue_routes import QueueRoutes
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
QUEUE = RedisKeys().queue("default", RunIn.LOOP)
OLD = sealed(ToolSpec(name="search", timeout=5.0))
NEW = sealed(ToolSpec(name="search", timeout=9.0))
OTHER = sealed(ToolSpec(name="other"))


class Transport(MemoryTransport):
    """Knows toolsets, and counts how often it is asked."""

    def __init__(self, *toolsets: Toolset) -> None:
        super().__init__(MemoryServer())
        self.bodies = {toolset.digest: ENVELOPE.encode(toolset) for toolset in toolsets}
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
    fleet = LiveWorkers(transport, ENVELOPE, RedisKeys())
    routes = QueueRoutes(fleet, RedisKeys())
    for _ in range(3):
        await fleet.follow([lease("w1", one), lease("w2", one)])
    assert routes.queue_for(OLD) == QUEUE
    assert fleet.runs(OLD)
    assert fleet.slots[QUEUE] == [4, 4]
    assert transport.asked == [one.digest], "a toolset is read once"


async def test_calls_for_what_some_workers_lack_go_to_those_that_have_it() -> None:
    old, new = toolset("a", OLD), toolset("b", NEW, OTHER)
    fleet = LiveWorkers(Transport(old, new), ENVELOPE, RedisKeys())
    routes = QueueRoutes(fleet, RedisKeys())
    await fleet.follow([lease("w1", old), lease("w2", old), lease("w3", new)])
    assert routes.queue_for(NEW) == routes.queue_for(OTHER) == toolset_queue(QUEUE, new.digest)
    assert routes.queue_for(OLD) == toolset_queue(QUEUE, old.digest)
    assert fleet.slots[toolset_queue(QUEUE, new.digest)] == [4]
    assert fleet.live == {"search": {OLD.digest, NEW.digest}, "other": {OTHER.digest}}


async def test_routes_follow_the_release() -> None:
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = LiveWorkers(Transport(old, new), ENVELOPE, RedisKeys())
    routes = QueueRoutes(fleet, RedisKeys())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    assert routes.queue_for(NEW) != QUEUE
    await fleet.follow([lease("w1", new), lease("w2", new)])
    assert routes.queue_for(NEW) == QUEUE
    assert not fleet.runs(OLD)
    assert routes.queue_for_another(OLD) == toolset_queue(QUEUE, new.digest)
    await fleet.follow([lease("w1", new, ended=True)])
    assert (fleet.slots, fleet.runs(NEW)) == ({}, False)


async def test_what_is_not_known_is_taken_to_have_everything() -> None:
    """A worker of an older version, or a toolset that cannot be read: it passes calls on."""
    new = toolset("b", NEW)
    fleet = LiveWorkers(Transport(new), ENVELOPE, RedisKeys())
    routes = QueueRoutes(fleet, RedisKeys())
    await fleet.follow([lease("w1", None), lease("w2", new), lease("w3", toolset("c", OLD))])
    assert routes.queue_for(NEW) == QUEUE


async def test_a_queue_without_consumers_is_no_longer_used() -> None:
    """Its last worker drained, died or was rolled back: what is on it would wait for ever."""
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = LiveWorkers(Transport(old, new), ENVELOPE, RedisKeys())
    routes = QueueRoutes(fleet, RedisKeys())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    queue = routes.queue_for(NEW)
    assert routes.home(queue, NEW) == queue
    await fleet.follow([lease("w1", old)])
    assert routes.home(queue, NEW) == QUEUE
    assert routes.home(QUEUE, NEW) == QUEUE


async def test_a_version_that_was_taken_back_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no worker has come or gone since its last one was seen."""
    old, new = toolset("a", OLD), toolset("b", NEW)
    fleet = LiveWorkers(Transport(old, new), ENVELOPE, RedisKeys())
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
    fleet = LiveWorkers(Transport(old, new), ENVELOPE, RedisKeys())
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
    fleet = LiveWorkers(Transport(old, new), ENVELOPE, RedisKeys())
    await fleet.follow([lease("w1", old), lease("w2", new)])
    now += 5.0
    await fleet.follow([lease("w1", old)])
    assert NEW.digest in fleet.live["search"], "its worker may be on its way back"
    now += 6.0
    await fleet.follow([lease("w1", old)])
    assert fleet.live["search"] == {OLD.digest}


class Aged(Transport):
    """Also knows when each toolset was last served."""

    def __init__(self, *toolsets: Toolset, **ages: float) -> None:
        super().__init__(*toolsets)
        self.ages = {name * 8: age for name, age in ages.items()}

    async def toolset_ages(self) -> dict[str, float]:
        return self.ages


async def test_a_tool_that_the_workers_of_its_queue_lack_is_unserved_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(fleets.time, "monotonic", lambda: now)
    with_it, without = toolset("a", OLD, OTHER), toolset("b", OTHER)
    fleet = LiveWorkers(Aged(with_it, without, a=0.0), ENVELOPE, RedisKeys())
    specs = [OLD, OTHER]
    await fleet.follow([lease("w1", with_it), lease("w2", without)])
    assert await fleet.unserved(specs, after=60.0) == frozenset()
    await fleet.follow([lease("w1", with_it, leaving=True), lease("w2", without)])
    assert await fleet.unserved(specs, after=60.0) == frozenset()
    now = 161.0
    await fleet.follow([lease("w2", without)])
    assert await fleet.unserved(specs, after=60.0) == {"search"}
    await fleet.follow([lease("w2", without), lease("w3", with_it)])
    assert await fleet.unserved(specs, after=60.0) == frozenset()


async def test_a_fleet_scaled_to_zero_keeps_its_tools() -> None:
    with_it = toolset("a", OLD)
    fleet = LiveWorkers(Aged(with_it, a=3_600.0), ENVELOPE, RedisKeys())
    await fleet.follow([])
    assert await fleet.unserved([OLD], after=0.0) == frozenset()
    await fleet.follow([lease("w1", None)])  # which tools it has is not known
    assert await fleet.unserved([OLD], after=0.0) == frozenset()


async def test_a_dispatcher_that_starts_later_knows_for_how_long_a_tool_is_unserved() -> None:
    """Of the time without the tool, and that in which its queue was served, the shorter counts."""
    with_it, without = toolset("a", OLD), toolset("b", OTHER)
    up = MemoryTransport(MemoryServer()).server_time()
    long_up = msgspec.structs.replace(lease("w1", without), started_at=up - 900.0)
    just_up = msgspec.structs.replace(lease("w1", without), started_at=up - 5.0)
    for age, worker, expected in (
        (600.0, long_up, {"search"}),
        (30.0, long_up, set()),
        (600.0, just_up, set()),
    ):
        fleet = LiveWorkers(Aged(with_it, without, a=age), ENVELOPE, RedisKeys())
        await fleet.follow([worker])
        assert await fleet.unserved([OLD, OTHER], after=60.0) == expected


async def test_a_tool_that_was_removed_stays_so_while_the_fleet_is_scaled_to_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(fleets.time, "monotonic", lambda: now)
    with_it, without = toolset("a", OLD), toolset("b", OTHER)
    fleet = LiveWorkers(Aged(with_it, without, a=0.0), ENVELOPE, RedisKeys())
    specs = [OLD, OTHER]
    await fleet.follow([lease("w2", without)])
    assert await fleet.unserved(specs, after=60.0) == frozenset()
    now = 161.0
    await fleet.follow([lease("w2", without)])
    assert await fleet.unserved(specs, after=60.0) == {"search"}
    for leases in ([], [lease("w3", without)]):
        now += 20.0
        await fleet.follow(leases)
        assert await fleet.unserved(specs, after=60.0) == {"search"}
    now += 20.0
    await fleet.follow([lease("w4", with_it)])
    assert await fleet.unserved(specs, after=60.0) == frozenset()
