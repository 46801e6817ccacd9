"""What each look at the server is good for, and what a look that fails leaves as it was."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.dispatcher.samples import Told, pending, services, turns
from tests.waiting import eventually
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CatalogEntry, Envelope, Switch, Toolset, WorkerLease
from toolpool.contract.errors import CatalogEmpty, Misconfigured
from toolpool.contract.kill_switches import KillSwitches, switch_name
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim
from toolpool.contract.outcome import Outcome
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import Effects, RunIn, ToolSpec, sealed
from toolpool.dispatcher.admission.availability import Availability
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.calls.fleet_circuits import FleetCircuits
from toolpool.dispatcher.calls.live_workers import LiveWorkers
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.queue_routes import QueueRoutes
from toolpool.dispatcher.calls.recovery import Recovery
from toolpool.dispatcher.calls.reporting import Reporter
from toolpool.dispatcher.calls.server_monitor import ServerMonitor
from toolpool.dispatcher.observer import Observer
from toolpool.dispatcher.transports.base import Survey
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
STRANGERS = Envelope(Keyring([generate_key()]))
QUEUE = RedisKeys().queue("default", RunIn.LOOP)
OLD = sealed(ToolSpec(name="t", effects=Effects.READ, timeout=5.0))
NEW = sealed(ToolSpec(name="t", effects=Effects.READ, timeout=9.0))
BAD = sealed(ToolSpec(name="bad", input_schema={"type": "nothing there is"}))


class Workers(Observer):
    """Notes who comes and goes."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def worker_up(self, worker: str) -> None:
        """See `Observer.worker_up`."""
        self.told.append(f"up {worker}")

    def worker_down(self, worker: str) -> None:
        """See `Observer.worker_down`."""
        self.told.append(f"down {worker}")

    def take(self) -> list[str]:
        """What was told since the last time, in the order of the alphabet."""
        told, self.told = sorted(self.told), []
        return told


class Surveyed(MemoryTransport):
    """Notes what is asked for; is away, slow or full where a test says so."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.queues: list[list[str]] = []
        self.is_away = False
        self.looking = self.most_looking = 0
        self.toolset_bodies: dict[str, bytes] = {}

    async def survey(
        self, queues: Sequence[str], report: bytes = b"", *, workers: Sequence[str] = ()
    ) -> Survey:
        """See `Transport.survey`."""
        self.queues.append(list(queues))
        self.looking += 1
        self.most_looking = max(self.looking, self.most_looking)
        await turns()
        self.looking -= 1
        if self.is_away:
            raise OSError("the server is away")
        return await super().survey(queues, report, workers=workers)

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """See `Transport.toolsets`."""
        return [self.toolset_bodies.get(digest) for digest in digests]


async def not_asked_for(calls: Sequence[PendingCall]) -> None:
    raise AssertionError("nothing is cancelled here")


class Bench(Told):
    """A follower with all that it feeds, and its server."""

    def __init__(self, *, follows_catalog: bool = True, **settings: Any) -> None:
        super().__init__()
        self.server = MemoryServer()
        self.transport = Surveyed(self.server)
        self.workers = Workers()
        shared = services(self.transport, **settings)
        shared.observers.add(self.workers)
        self.catalog = Catalog()
        breaker = Breaker(shared.settings, shared.observers)
        self.available = Availability(
            self.transport,
            shared.observers,
            tenant="us",
            switches=KillSwitches(ENVELOPE, RedisKeys().prefix),
            breaker=breaker,
            canonical=self.catalog.canonical,
        )
        self.pump = Pump(shared, self)
        self.on_answer = self.pump.done
        fleet = LiveWorkers(self.transport, ENVELOPE, RedisKeys())
        self.follower = ServerMonitor(
            shared,
            self,
            catalog=self.catalog,
            pump=self.pump,
            recovery=Recovery(
                shared, self, pump=self.pump, fleet=fleet, routes=QueueRoutes(fleet, RedisKeys())
            ),
            fleet=fleet,
            available=self.available,
            circuits=FleetCircuits(shared, breaker),
            reporter=Reporter(shared, self, pump=self.pump, breaker=breaker, cancel=not_asked_for),
            follows_catalog=follows_catalog,
        )

    def lease(self, worker: str, envelope: Envelope = ENVELOPE, **fields: Any) -> None:
        """Let a worker live."""
        fields = {"slots": {QUEUE: 1}} | fields
        self.server.leases[worker] = envelope.encode(
            WorkerLease(id=worker, host="h", pid=1, version="1", started_at=0.0, **fields)
        )

    def publish(self, *specs: ToolSpec) -> None:
        """Let workers offer these tools, the last one the newest."""
        for at, spec in enumerate(specs):
            entry = CatalogEntry(spec=spec, published_at=float(at), version="1")
            self.server.catalog[spec.digest] = ENVELOPE.encode(entry)

    def offered(self) -> dict[str, str]:
        """The digests of what workers offer, by name."""
        return {name: offer.spec.digest for name, offer in self.catalog.listed.items()}

    def switch(self, number: int, *, on: bool = True, **fields: Any) -> None:
        """Let an operator turn the switch of the tool `t`."""
        fields = {"prefix": "toolpool"} | fields
        switch = Switch(tool="t", reason="because", number=number, on=on, **fields)
        self.server.switch_states[switch_name(switch)] = ENVELOPE.encode(switch)

    def reason(self) -> str | None:
        """Why the tool `t` is denied."""
        call = ToolCall(index=0, id="k", name="t", arguments={})
        denied = self.available.denial(call)
        return denied.error if denied is not None else None

    def submit(self, key: str, spec: ToolSpec = OLD) -> PendingCall:
        made = self.calls[key] = pending(key, spec=spec)
        self.pump.submit(made)
        return made


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Workers.


async def test_each_worker_is_said_to_come_and_to_go_once(bench: Bench) -> None:
    bench.lease("w-1")
    await bench.follower.once()
    assert bench.workers.take() == ["up w-1"]
    bench.lease("w-2")
    await bench.follower.once()
    await bench.follower.once()
    assert bench.workers.take() == ["up w-2"]
    bench.server.leases.clear()
    await bench.follower.once()
    await bench.follower.once()
    assert bench.workers.take() == ["down w-1", "down w-2"]


@pytest.mark.parametrize("how", ["leaving", "ended"])
async def test_a_worker_that_says_it_goes_is_down(bench: Bench, how: str) -> None:
    bench.lease("w-1")
    await bench.follower.once()
    bench.lease("w-1", leaving=how == "leaving", ended=how == "ended")
    await bench.follower.once()
    assert bench.workers.take() == ["down w-1", "up w-1"]


async def test_no_worker_stops_because_of_a_server_outage(bench: Bench) -> None:
    bench.lease("w-1")
    await bench.follower.once()
    bench.transport.is_away = True
    await bench.follower.once()
    assert bench.workers.take() == ["up w-1"]


async def test_how_many_leases_are_strangers_is_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        texts = [r.getMessage() for r in caplog.records if "leases_rejected" in r.getMessage()]
        caplog.clear()
        return [text.partition(":")[0] for text in texts]

    bench.lease("w-1")
    await bench.follower.once()
    assert said() == []
    bench.lease("w-2", STRANGERS)
    await bench.follower.once()
    assert said() == ["leases_rejected count=1"]
    await bench.follower.once()
    assert said() == []
    bench.lease("w-3", STRANGERS)
    await bench.follower.once()
    assert said() == ["leases_rejected count=2"]
    assert bench.workers.take() == ["up w-1"]


# Tools.


async def test_what_workers_publish_is_offered(bench: Bench) -> None:
    bench.publish(OLD, NEW)
    await bench.follower.once()
    assert bench.offered() == {"t": NEW.digest}


async def test_of_each_tool_the_version_that_runs_is_offered(bench: Bench) -> None:
    bench.publish(OLD, NEW)
    toolset = Toolset(digest="a" * 8, tools={"t": OLD.digest})
    bench.transport.toolset_bodies["a" * 8] = ENVELOPE.encode(toolset)
    bench.lease("w-1", toolset="a" * 8)
    await bench.follower.once()
    assert bench.offered() == {"t": OLD.digest}


async def test_an_unpublished_tool_is_offered_for_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(OLD)
    await bench.follower.once()
    bench.server.catalog.clear()
    await bench.follower.once()
    assert bench.offered() == {"t": OLD.digest}
    monkeypatch.setattr("toolpool.dispatcher.admission.catalog._GONE_SECONDS", -1.0)
    await bench.follower.once()
    assert bench.offered() == {}


async def test_what_was_offered_stays_so_while_the_server_is_away(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.publish(OLD)
    await bench.follower.once()
    bench.transport.is_away = True
    await bench.follower.once()
    assert bench.offered() == {"t": OLD.digest}
    assert "server_not_followed: the server is away" in caplog.text


async def test_tools_that_come_from_a_file_are_not_those_that_workers_publish() -> None:
    bench = Bench(follows_catalog=False)
    bench.catalog.replace([OLD])
    bench.publish(OLD, NEW)
    bench.lease("w-1")
    await bench.follower.once()
    assert bench.offered() == {"t": OLD.digest}
    assert bench.workers.take() == ["up w-1"], "all else is followed"


async def test_waiting_for_tools_ends_with_the_first_of_them(bench: Bench) -> None:
    wait = asyncio.create_task(bench.follower.wait_for_tools(60.0))
    await eventually(lambda: bench.transport.queues, "it has looked once")
    assert not wait.done()
    bench.publish(OLD)
    await eventually(wait.done, "the tool was seen")
    await wait
    assert bench.offered() == {"t": OLD.digest}


async def test_nothing_is_waited_for_where_there_are_tools(bench: Bench) -> None:
    bench.catalog.replace([OLD])
    await bench.follower.wait_for_tools(0.0)
    assert bench.transport.queues == []


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_without_any_tool_it_is_said_how_to_get_one(bench: Bench, seconds: float) -> None:
    with pytest.raises(CatalogEmpty, match=f"published a tool in {seconds:g} s: start one"):
        await bench.follower.wait_for_tools(seconds)


async def test_one_tool_that_can_be_offered_is_enough(bench: Bench) -> None:
    bench.publish(BAD, OLD)
    await bench.follower.wait_for_tools(60.0)
    assert bench.offered() == {"t": OLD.digest}


async def test_where_no_tool_can_be_offered_it_is_said_why(bench: Bench) -> None:
    bench.publish(BAD)
    with pytest.raises(Misconfigured, match="no tool can be offered: bad: "):
        await bench.follower.wait_for_tools(60.0)


# The pump and recovery.


async def test_the_pump_sends_where_workers_are(bench: Bench) -> None:
    """Where none is, one message, and the others when one comes."""
    await bench.follower.once()
    first, second = bench.submit("a"), bench.submit("b")
    await turns()
    third = bench.submit("c")
    await turns()
    assert [call.stage for call in (first, second, third)] == [
        Stage.QUEUED, Stage.QUEUED, Stage.WAITING,
    ]  # fmt: skip
    bench.lease("w-1")
    await bench.follower.once()
    await turns()
    assert third.stage is Stage.QUEUED


async def test_after_a_look_that_failed_the_pump_does_not_rely_on_what_it_knew(
    bench: Bench,
) -> None:
    """A worker may have come: what waits is sent."""
    await bench.follower.once()
    bench.submit("a")
    await turns()
    call = bench.submit("b")
    await turns()
    assert call.stage is Stage.WAITING
    bench.transport.is_away = True
    await bench.follower.once()
    await turns()
    assert call.stage.value == "queued"


async def test_only_queues_that_open_calls_are_on_are_asked_for(bench: Bench) -> None:
    other = sealed(ToolSpec(name="other", run_in=RunIn.THREAD))
    calls = [bench.submit(key, spec) for key, spec in (("a", other), ("b", OLD), ("c", OLD))]
    answered_here = bench.calls["here"] = pending("here")
    answered_here.queue = ""
    await bench.follower.once()
    assert bench.transport.queues == [[calls[1].queue, calls[0].queue]]


async def run(bench: Bench, key: str) -> PendingCall:
    """A call that a worker runs."""
    call = bench.submit(key)
    await turns()
    await bench.server.claim([Claim(key, 1, "c")], worker="w-1", give_up_at=time.monotonic() + 1)
    call.worker = "w-1"
    bench.pump.queue_of(call).started(call)
    return call


async def test_what_a_look_shows_to_be_lost_is_recovered(bench: Bench) -> None:
    bench.lease("w-1")
    await bench.follower.once()
    call = await run(bench, "k")
    bench.lease("w-1", ended=True)
    await bench.follower.once()
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 2)


async def test_after_a_failed_check_recovery_suspects_no_worker_for_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0
    real = time.monotonic

    class Clock:
        def monotonic(self) -> float:
            return real() + ahead

    for module in ("recovery", "live_workers"):
        monkeypatch.setattr(f"toolpool.dispatcher.calls.{module}.time", Clock())
    bench.lease("w-1")
    await bench.follower.once()
    call = await run(bench, "k")
    bench.server.leases.clear()
    for second in range(1, 15):
        ahead += 1.0
        bench.transport.is_away = second == 6
        await bench.follower.once()
    assert call.stage is Stage.RUNNING
    ahead += 1.0
    await bench.follower.once()
    assert call.message.attempt == 2


# Switches.


async def test_a_switch_is_followed(bench: Bench) -> None:
    bench.switch(1)
    await bench.follower.once()
    assert bench.reason() == "because"
    bench.switch(2, on=False)
    await bench.follower.once()
    assert bench.reason() is None


async def test_a_switch_that_the_server_lost_is_put_back(bench: Bench) -> None:
    bench.switch(1)
    kept = dict(bench.server.switch_states)
    await bench.follower.once()
    bench.server.switch_states.clear()
    await bench.follower.once()
    assert bench.server.switch_states == kept
    assert bench.reason() == "because"


async def test_a_switch_that_was_put_into_an_older_state_is_put_back(bench: Bench) -> None:
    bench.switch(2)
    kept = dict(bench.server.switch_states)
    await bench.follower.once()
    bench.switch(1, on=False)
    await bench.follower.once()
    assert bench.server.switch_states == kept
    assert bench.reason() == "because"


# Looking again and again.


async def test_there_is_one_look_at_a_time(bench: Bench) -> None:
    """An older look must not come last."""
    await asyncio.gather(*(bench.follower.once() for _ in range(3)))
    assert (len(bench.transport.queues), bench.transport.most_looking) == (3, 1)


async def test_checks_go_on_after_one_fails() -> None:
    bench = Bench(lease_ttl=0.008)
    bench.transport.is_away = True
    task = asyncio.create_task(bench.follower.run())
    await eventually(lambda: len(bench.transport.queues) >= 3, "it goes on")
    bench.transport.is_away = False
    bench.lease("w-1")
    await eventually(lambda: bench.workers.told == ["up w-1"], "it sees what there is")
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("gone", "every"), [(8.0, 1.0), (80.0, 1.0), (4.0, 0.5)])
def test_several_looks_fit_into_the_time_of_a_lease(gone: float, every: float) -> None:
    """One that is a little late must not seem to be missing."""
    assert Bench(lease_ttl=gone).follower._every == every


async def test_a_call_that_was_answered_is_not_looked_at(bench: Bench) -> None:
    call = bench.submit("a")
    bench.resolve(call, Outcome(ok=True))
    await bench.follower.once()
    assert bench.transport.queues == [[]]


async def test_the_clock_has_no_say_in_which_state_of_a_switch_holds(bench: Bench) -> None:
    """R69: the server's clock was set back an hour between the two."""
    bench.switch(1, set_at=3_700.0)
    await bench.follower.once()
    bench.switch(2, set_at=100.0, on=False)
    await bench.follower.once()
    assert bench.reason() is None


async def test_of_two_states_with_one_number_the_one_that_denies_holds(bench: Bench) -> None:
    """Two operators turned it at once, each without knowing of the other."""
    bench.switch(1, on=False)
    await bench.follower.once()
    bench.switch(1)
    await bench.follower.once()
    assert bench.reason() == "because"
    bench.switch(1, on=False)
    await bench.follower.once()
    assert bench.reason() == "because"


@pytest.mark.parametrize("bound", [{"prefix": "staging"}, {"prefix": ""}, {"tenant": "them"}])
async def test_a_switch_for_another_prefix_or_tenant_denies_nothing(
    bench: Bench, bound: dict[str, Any]
) -> None:
    """R69: both deployments sign with one key, and somebody copied it from one to the other."""
    bench.switch(1, **bound)
    await bench.follower.once()
    assert bench.reason() is None


async def test_a_switch_for_this_tenant_denies(bench: Bench) -> None:
    bench.switch(1, tenant="us")
    await bench.follower.once()
    assert bench.reason() == "because"
