"""Calls whose message or worker is lost, against the ledger in memory; time is moved on here."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.dispatcher.samples import Told, away, pending, services, turns
from toolpool.contract.envelope import Batch, Envelope, Settled, Toolset, WorkerLease
from toolpool.contract.ledger.answers import LedgerAnswer
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim, RecoveryRequest, Release, Settlement
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.redis_keys import RedisKeys, toolset_queue
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import Effects, RunIn, ToolSpec, sealed
from toolpool.dispatcher.calls.live_workers import LiveWorkers
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.queue_routes import QueueRoutes
from toolpool.dispatcher.calls.recovery import Recovery
from toolpool.dispatcher.observer import CallFacts, Observer
from toolpool.dispatcher.outcomes import not_queued
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
QUEUE = RedisKeys().queue("default", RunIn.LOOP)
READ = sealed(ToolSpec(name="t", effects=Effects.READ))
NEWER_READ = sealed(ToolSpec(name="t", effects=Effects.READ, timeout=5.0))
WRITE = sealed(ToolSpec(name="t", effects=Effects.WRITE))
EXCLUSIVE_READ = sealed(ToolSpec(name="t", effects=Effects.READ, exclusive=True))
LONG_WRITE = sealed(ToolSpec(name="t", effects=Effects.WRITE, background=True))
DONE = Outcome(ok=True, data=1, worker="w-1")


class Clock:
    """This process's clock, as far ahead as a test has moved it."""

    ahead = 0.0

    def monotonic(self) -> float:
        """See `time.monotonic`."""
        return time.monotonic() + self.ahead


class Lost(Observer):
    """Notes which workers are said to be gone."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def lost(self, call: CallFacts, worker: str) -> None:
        """See `Observer.lost`."""
        self.told.append((call.key, worker))


class Watched(MemoryTransport):
    """Notes what the ledger is asked, and is away where a test says so."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.is_away = False
        self.recovered: list[list[RecoveryRequest]] = []
        self.looked_for: list[list[str]] = []
        self.toolset_bodies: dict[str, bytes] = {}
        self.during_recovery: Callable[[], None] = lambda: None

    async def recover(
        self, recoveries: Sequence[RecoveryRequest], *, queue: str, give_up_at: float
    ) -> list[LedgerAnswer]:
        """See `Transport.recover`."""
        self.recovered.append(list(recoveries))
        if self.is_away:
            raise away(sent=False)
        self.during_recovery()
        return await super().recover(recoveries, queue=queue, give_up_at=give_up_at)

    async def outcomes(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Transport.outcomes`."""
        self.looked_for.append(list(keys))
        return await super().outcomes(keys)

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """See `Transport.toolsets`."""
        return [self.toolset_bodies.get(digest) for digest in digests]


class Bench(Told):
    """A recovery with its pump and fleet, over a server in memory."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.server = MemoryServer()
        self.transport = Watched(self.server)
        self.lost = Lost()
        shared = services(self.transport, tenant="us", in_flight_per_session=1000)
        shared.observers.add(self.lost)
        self.fleet = LiveWorkers(self.transport, ENVELOPE, RedisKeys())
        self.pump = Pump(shared, self)
        self.pump.set_workers({QUEUE: [1000]})
        self.on_answer = self.pump.done
        self.recovery = Recovery(
            shared,
            self,
            pump=self.pump,
            fleet=self.fleet,
            routes=QueueRoutes(self.fleet, RedisKeys()),
        )

    def settled(self, reply: bytes) -> None:
        """As the collector does."""
        found = ENVELOPE.decode_reply(reply)
        assert isinstance(found, Settled)
        self.resolve(self.calls[found.key], found.outcome)

    def started(self, pending: PendingCall, worker: str) -> None:
        """As the dispatcher does."""
        pending.worker = worker
        self.recovery.queue_watch.started(pending.queue, pending.published_at)
        self.pump.queue_of(pending).started(pending)

    async def send(self, key: str, spec: ToolSpec = READ, *, queue: str = QUEUE) -> PendingCall:
        """A call that is queued; its message lies on the queue."""
        call = self.calls[key] = pending(key, spec=spec, wait=500.0, deadline=600.0)
        call.queue = queue
        self.pump.submit(call)
        await turns()
        assert call.stage is Stage.QUEUED
        return call

    async def send_and_lose(self, key: str, spec: ToolSpec = READ) -> PendingCall:
        """A call that is queued, and whose message is gone."""
        call = await self.send(key, spec)
        await self.messages()
        return call

    async def claim(
        self, call: PendingCall, worker: str = "w-1", *, attempt: int | None = None
    ) -> None:
        """Let a worker have it, of which nothing is heard yet."""
        await self.messages()
        attempt = attempt or call.message.attempt
        (left,) = await self.server.claim(
            [Claim(call.key, attempt, f"claim-{attempt}")],
            worker=worker, give_up_at=time.monotonic() + 1,
        )  # fmt: skip
        assert isinstance(left, float)

    async def run(self, key: str, spec: ToolSpec = READ, worker: str = "w-1") -> PendingCall:
        """A call that a worker runs."""
        call = await self.send(key, spec)
        await self.claim(call, worker)
        self.started(call, worker)
        assert call.stage is Stage.RUNNING
        return call

    async def release(self, call: PendingCall) -> None:
        """Let its worker give it back."""
        claim = f"claim-{call.message.attempt}"
        assert await self.server.release(
            [Release(call.key, claim, b"", 60.0, b"", entered=False)],
            worker="w-1", give_up_at=time.monotonic() + 1,
        ) == ["released"]  # fmt: skip

    async def settle(self, call: PendingCall) -> None:
        """Let a worker end it, of which nothing is heard."""
        body = ENVELOPE.encode_reply(Settled(key=call.key, outcome=DONE))
        await self.server.settle(
            [Settlement(call.key, "s", 60.0, "elsewhere", body)], give_up_at=time.monotonic() + 1
        )

    async def open_elsewhere(self, call: PendingCall, *, attempt: int) -> None:
        """Let another dispatcher open it, without a message."""
        now = time.monotonic()
        await MemoryTransport(self.server, "reply:other").publish(
            [msgspec.structs.replace(call.opening(now, time.time()), attempt=attempt)],
            nonce="other", queue="q", message=b"", give_up_at=now + 1,
        )  # fmt: skip

    async def messages(self, queue: str = QUEUE) -> list[Batch]:
        """Take what lies on a queue."""
        return [
            ENVELOPE.decode_batch((await self.server.take(queue))[1])
            for _ in range(self.server.waiting(queue))
        ]

    async def attempts(self, queue: str = QUEUE) -> list[tuple[str, int]]:
        """Take what lies on a queue: the key and attempt of each message's call."""
        return [
            (batch.calls[0].key, batch.calls[0].attempt) for batch in await self.messages(queue)
        ]

    async def look(self, *leases: WorkerLease, **changes: Any) -> None:
        """One survey, with these workers alive."""
        survey = await self.transport.survey(sorted({p.queue for p in self.all_open()}))
        await self.fleet.follow(leases)
        await self.recovery.examine(replace(survey, **changes), leases, self.all_open())

    async def watch(self, seconds: int, *leases: WorkerLease, **changes: Any) -> None:
        """A survey a second, for so many seconds."""
        for _ in range(seconds):
            self.clock.ahead += 1.0
            await self.look(*leases, **changes)

    def toolset(self, name: str, *specs: ToolSpec) -> Toolset:
        """What workers of one release offer, as they have published it."""
        made = Toolset(digest=name * 8, tools={spec.name: spec.digest for spec in specs})
        self.transport.toolset_bodies[made.digest] = ENVELOPE.encode(made)
        return made


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    clock = Clock()
    for module in ("recovery", "live_workers", "publishing"):
        monkeypatch.setattr(f"toolpool.dispatcher.calls.{module}.time", clock)
    return Bench(clock)


def lease(
    worker: str = "w-1", *, tools: Toolset | None = None, free: int = 0, ended: bool = False
) -> WorkerLease:
    return WorkerLease(
        id=worker,
        host="h",
        pid=1,
        version="1",
        started_at=0.0,
        slots={QUEUE: 4},
        free={QUEUE: free},
        toolset=tools.digest if tools is not None else "",
        ended=ended,
    )


def said(call: PendingCall) -> tuple[Code | None, Executed] | None:
    return None if call.outcome is None else (call.outcome.code, call.outcome.executed)


WORKER_LOST = (Code.WORKER_LOST, Executed.UNKNOWN)


# Lost workers.


async def test_a_read_whose_worker_is_gone_goes_to_its_next_attempt(bench: Bench) -> None:
    call = await bench.run("k")
    await bench.look(lease())
    await bench.watch(7)
    assert (call.stage, bench.lost.told) == (Stage.RUNNING, [])
    await bench.watch(2)
    assert (call.stage, call.message.attempt, call.worker) == (Stage.QUEUED, 2, "")
    assert bench.lost.told == [("k", "w-1")]
    assert await bench.attempts() == [("k", 2)]


async def test_an_exclusive_read_runs_again_when_a_worker_that_stands_still_was_killed(
    bench: Bench,
) -> None:
    """By its supervisor, after 10 s; until then its run may go on."""
    call = await bench.run("k", EXCLUSIVE_READ)
    await bench.look(lease())
    await bench.watch(21)
    assert call.stage is Stage.RUNNING
    await bench.watch(2)
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 2)


async def test_a_worker_that_renews_its_lease_keeps_its_calls(bench: Bench) -> None:
    call = await bench.run("k", WRITE)
    await bench.watch(60, lease())
    assert call.stage is Stage.RUNNING
    assert bench.transport.recovered == []


async def test_a_worker_whose_end_was_seen_is_not_waited_for(bench: Bench) -> None:
    read, write = await bench.run("r"), await bench.run("w", WRITE)
    await bench.look(lease(ended=True))
    assert (read.stage, read.message.attempt) == (Stage.QUEUED, 2)
    assert said(write) == WORKER_LOST


async def test_a_read_is_started_three_times_at_most(bench: Bench) -> None:
    call = await bench.run("k")
    for attempt in (1, 2, 3):
        assert call.message.attempt == attempt
        await bench.look(lease(ended=True))
        if call.is_open:
            await bench.claim(call)
            bench.started(call, "w-1")
    assert said(call) == WORKER_LOST
    assert call.outcome is not None
    assert (call.outcome.attempt, call.outcome.worker) == (3, "w-1")


@pytest.mark.parametrize(("spec", "seconds"), [(WRITE, 18), (LONG_WRITE, 68)])
async def test_a_write_whose_worker_is_gone_waits_for_it_to_come_back(
    bench: Bench, spec: ToolSpec, seconds: int
) -> None:
    """For one lease and the time given to return, which background calls have more of."""
    call = await bench.run("k", spec)
    await bench.look()
    await bench.watch(seconds - 1)
    assert call.is_open
    assert bench.transport.recovered == []
    await bench.watch(2)
    assert said(call) == WORKER_LOST
    assert bench.server.state("k") == "settled", "whoever asks later is told the same"
    assert await bench.messages() == [], "it is started nowhere else"
    assert bench.lost.told == [("k", "w-1")]


async def test_a_write_that_was_handed_over_waits_as_long_as_a_background_call(
    bench: Bench,
) -> None:
    call = await bench.run("k", WRITE)
    call.move_to_background(60.0)
    await bench.look()
    await bench.watch(30)
    assert call.is_open
    await bench.watch(39)
    assert said(call) == WORKER_LOST


async def test_a_write_goes_on_where_its_worker_comes_back_in_time(bench: Bench) -> None:
    call = await bench.run("k", WRITE)
    await bench.look()
    await bench.watch(15)
    await bench.look(lease())
    await bench.watch(15)
    assert (call.stage, call.is_open) == (Stage.RUNNING, True)


async def test_after_an_outage_no_worker_is_suspected_before_it_could_have_renewed(
    bench: Bench,
) -> None:
    call = await bench.run("k")
    await bench.look()
    await bench.watch(6)
    bench.recovery.interrupted()
    await bench.watch(8)
    assert (call.stage, bench.transport.recovered) == (Stage.RUNNING, [])
    await bench.watch(1)
    assert call.message.attempt == 2


async def test_a_call_that_another_worker_has_by_now_is_left_with_it(bench: Bench) -> None:
    """Another dispatcher was first to recover it."""
    call = await bench.run("k")
    bench.server.records["k"].worker = "w-2"
    await bench.look(lease(ended=True))
    assert (call.stage, call.worker, call.message.attempt) == (Stage.RUNNING, "w-2", 1)
    assert bench.lost.told == []


async def test_an_unclaimed_call_is_not_lost_with_any_worker(bench: Bench) -> None:
    call = await bench.run("k")
    call.worker = ""
    await bench.watch(30)
    assert (call.stage, bench.transport.recovered) == (Stage.RUNNING, [])


async def test_what_was_settled_before_its_worker_died_is_the_answer(bench: Bench) -> None:
    call = await bench.run("k", WRITE)
    await bench.settle(call)
    await bench.look(lease(ended=True))
    assert call.outcome == DONE


@pytest.mark.parametrize("what", ["another epoch", "its clock jumped", "a late look"])
async def test_where_the_server_was_not_itself_workers_have_their_time_anew(
    bench: Bench, what: str
) -> None:
    call = await bench.run("k")
    await bench.look()
    await bench.watch(6)
    if what == "another epoch":
        bench.server.epoch = "memory.another"
    elif what == "a late look":
        bench.clock.ahead += 5.0
    await bench.watch(1, clock_jumped=what == "its clock jumped")
    await bench.watch(7)
    assert (call.stage, call.message.attempt) == (Stage.RUNNING, 1)
    await bench.watch(2)
    assert call.message.attempt == 2


async def test_a_worker_that_was_never_seen_has_its_time_from_when_it_had_the_call(
    bench: Bench,
) -> None:
    """It may have come and gone between two looks."""
    await bench.look()
    await bench.watch(20)
    call = await bench.run("k")
    await bench.watch(7)
    assert (call.stage, call.message.attempt) == (Stage.RUNNING, 1)
    await bench.watch(2)
    assert call.message.attempt == 2


# Lost messages.


async def test_a_lost_message_is_sent_again(bench: Bench) -> None:
    call = await bench.send_and_lose("k", WRITE)
    await bench.look()
    await bench.watch(2)
    assert (await bench.attempts(), call.republished) == ([], 0)
    await bench.watch(1)
    assert (await bench.attempts(), call.republished) == ([("k", 1)], 1)
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 1)
    await bench.watch(5)
    assert await bench.attempts() == [], "it is waited for twice as long as before"
    await bench.watch(1)
    assert await bench.attempts() == [("k", 1)]


async def test_a_message_sent_again_may_be_started_until_its_call_s_deadline(
    bench: Bench,
) -> None:
    call = await bench.send_and_lose("k")
    record = bench.server.records["k"]
    record.until = 0.0
    await bench.look(clock_jumped=True)
    assert await bench.attempts() == [("k", 1)]
    assert record.until == pytest.approx(call.deadline, abs=1.0)


async def test_where_the_broker_does_not_say_what_waits_a_message_is_lost_after_a_while(
    bench: Bench,
) -> None:
    call = await bench.send("k")
    await bench.look(depths=None)
    await bench.watch(9, depths=None)
    assert call.republished == 0
    await bench.watch(1, depths=None)
    assert call.republished == 1


async def test_a_message_that_others_overtook_is_sent_again(bench: Bench) -> None:
    """However many wait on the queue."""
    call, other = await bench.send("k"), await bench.send("other")
    other.published_again(time.monotonic() + 5.0)
    await bench.watch(4, lease())
    assert call.republished == 0
    bench.recovery.queue_watch.started(other.queue, other.published_at)
    await bench.look(lease())
    assert (call.republished, other.republished) == (1, 1)


async def test_a_message_sent_again_holds_one_call_and_says_how_long(bench: Bench) -> None:
    """The call may be what ended the worker of its batch."""
    calls = [await bench.send_and_lose(key) for key in "ab"]
    await bench.look(clock_jumped=True)
    batches = await bench.messages()
    assert [batch.calls for batch in batches] == [(call.message,) for call in calls]
    assert {(batch.tenant, batch.reply) for batch in batches} == {("us", "reply:memory")}
    for batch in batches:
        assert batch.ends_at - batch.sent_at == pytest.approx(600.0, abs=30.0)


async def test_after_a_jump_of_the_server_s_clock_all_that_waits_is_sent_anew(
    bench: Bench,
) -> None:
    """The messages that are there would be taken for old ones."""
    queued, running = await bench.send_and_lose("q", WRITE), await bench.run("r", WRITE)
    await bench.look(lease(), clock_jumped=True)
    assert await bench.attempts() == [("q", 1)]
    assert (queued.republished, running.republished) == (1, 0)


async def test_many_calls_are_asked_about_in_groups(bench: Bench) -> None:
    for n in range(100):
        await bench.send_and_lose(f"k-{n}")
    await bench.look(clock_jumped=True)
    assert [len(group) for group in bench.transport.recovered] == [64, 36]
    assert len(await bench.messages()) == 100


async def test_a_call_that_was_started_unheard_is_running(bench: Bench) -> None:
    call = await bench.send("k", WRITE)
    await bench.claim(call, "w-2")
    await bench.look(lease("w-2"))
    await bench.watch(3, lease("w-2"))
    assert (call.stage, call.worker) == (Stage.RUNNING, "w-2")
    assert bench.lost.told == []


async def test_a_call_that_ended_unheard_is_answered(bench: Bench) -> None:
    call = await bench.send_and_lose("k", WRITE)
    await bench.settle(call)
    await bench.look()
    await bench.watch(3)
    assert call.outcome == DONE


async def test_an_answer_about_a_try_that_is_over_is_passed_over(bench: Bench) -> None:
    """The call was answered and is tried again while the ledger was asked."""
    call = await bench.send_and_lose("k")
    bench.transport.during_recovery = lambda: call.start_again(
        start_by=call.start_by, before=failure(Code.RAISED, "", Executed.YES)
    )
    await bench.recovery.recover(QUEUE, [(call, "")])
    assert (call.stage, call.republished, call.message.attempt) == (Stage.NEW, 0, 1)


async def test_answered_calls_are_not_asked_about(bench: Bench) -> None:
    call = await bench.send_and_lose("k")
    call.answer(DONE)
    await bench.recovery.recover(QUEUE, [(call, "")])
    assert bench.transport.recovered == [[]]


# Calls that were given back.


async def test_a_released_call_goes_on_in_its_next_attempt(bench: Bench) -> None:
    call = await bench.run("k", WRITE)
    await bench.release(call)
    await bench.recovery.released(call)
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 2)
    assert await bench.attempts() == [("k", 2)]
    assert bench.lost.told == []


async def test_a_release_that_the_server_could_not_be_asked_about_is_looked_at_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    call = await bench.run("k", WRITE)
    await bench.look(lease())
    await bench.release(call)
    bench.transport.is_away = True
    await bench.recovery.released(call)
    assert "released_call_not_sent call=k" in caplog.text
    with pytest.raises(Exception, match="did not confirm"):
        await bench.look(lease())
    bench.transport.is_away = False
    await bench.look(lease())
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 2)
    assert await bench.attempts() == [("k", 2)]
    asked = len(bench.transport.recovered)
    await bench.look(lease())
    assert len(bench.transport.recovered) == asked, "it is sure now"


# Calls whose tool no worker has, or only in another version.


async def test_a_call_that_was_passed_goes_where_its_tool_runs(bench: Bench) -> None:
    call = await bench.send("k")
    has, lacks = bench.toolset("a", READ), bench.toolset("b", NEWER_READ)
    await bench.fleet.follow([lease("w-1", tools=has), lease("w-2", tools=lacks)])
    await bench.recovery.unclaimed(call, "")
    queue = toolset_queue(QUEUE, has.digest)
    assert (call.queue, call.stage) == (queue, Stage.QUEUED)
    assert await bench.attempts(queue) == [("k", 1)], "uncounted"
    assert not call.message.final


async def test_a_call_that_was_passed_by_who_should_have_run_it_waits_for_the_next_look(
    bench: Bench,
) -> None:
    """Its worker's toolset may not be known yet."""
    call = await bench.send_and_lose("k")
    has = bench.toolset("a", READ)
    await bench.fleet.follow([lease(tools=has)])
    await bench.recovery.unclaimed(call, "")
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])
    await bench.look(lease(tools=has))
    assert (call.stage, await bench.attempts()) == (Stage.QUEUED, [("k", 1)])
    await bench.look(lease(tools=has))
    assert await bench.attempts() == [], "once"


async def test_a_call_that_a_worker_may_not_start_is_sent_again_with_the_next_look(
    bench: Bench,
) -> None:
    """The reason may have gone; nothing is counted."""
    call = await bench.send_and_lose("k")
    await bench.recovery.unclaimed(call, "switch")
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])
    await bench.look(lease())
    assert (call.stage, await bench.attempts()) == (Stage.QUEUED, [("k", 1)])


DENIED = not_queued(Code.DENIED, "closed")


@pytest.mark.parametrize("how", ["unclaimed", "released", "overdue", "lost with its record"])
async def test_what_a_switch_denies_is_not_sent_again(bench: Bench, how: str) -> None:
    """R67: whichever way it would take."""
    call = await bench.send_and_lose("k")
    bench.denials["k"] = DENIED
    if how == "unclaimed":
        await bench.recovery.unclaimed(call, "switch")
        await bench.look(lease())
    elif how == "released":
        await bench.recovery.released(call)
    elif how == "overdue":
        await bench.look(lease(), clock_jumped=True)
    else:
        bench.denials.clear()

        def lose() -> None:
            bench.server.forget()
            bench.denials["k"] = DENIED

        bench.transport.during_recovery = lose
        await bench.recovery.released(call)
    assert await bench.attempts() == []
    assert call.outcome == DENIED


async def test_a_read_that_a_switch_denies_ends_with_its_worker(bench: Bench) -> None:
    call = await bench.run("k")
    bench.denials["k"] = DENIED
    await bench.watch(9)
    assert await bench.attempts() == []
    assert call.outcome is not None and call.outcome.code is Code.WORKER_LOST


async def test_a_homeless_call_waits_until_a_worker_has_its_tool(bench: Bench) -> None:
    call = await bench.send_and_lose("k", READ)
    other = bench.toolset("b", sealed(ToolSpec(name="other")))
    await bench.look(lease(tools=other))
    await bench.recovery.unclaimed(call, "")
    await bench.look(lease(tools=other))
    assert (call.stage, bench.transport.recovered) == (Stage.ORPHANED, [])
    has = bench.toolset("a", READ)
    await bench.look(lease(tools=other), lease("w-2", tools=has))
    queue = toolset_queue(QUEUE, has.digest)
    assert (call.stage, call.queue) == (Stage.QUEUED, queue)
    assert await bench.attempts(queue) == [("k", 1)]
    assert not call.message.final


async def test_a_homeless_call_goes_to_another_version_that_judges_it_anew(bench: Bench) -> None:
    call = await bench.send_and_lose("k", READ)
    newer = bench.toolset("b", NEWER_READ)
    await bench.look(lease(tools=newer))
    await bench.recovery.unclaimed(call, "")
    await bench.look(lease(tools=newer))
    queue = toolset_queue(QUEUE, newer.digest)
    assert (call.queue, call.message.final) == (queue, True)
    (batch,) = await bench.messages(queue)
    assert batch.calls[0].final


@pytest.mark.parametrize("became", ["answered", "running"])
async def test_a_homeless_call_that_went_on_meanwhile_is_left_alone(
    bench: Bench, became: str
) -> None:
    call = await bench.send_and_lose("k", READ)
    await bench.recovery.unclaimed(call, "")
    assert call.stage is Stage.ORPHANED
    if became == "answered":
        bench.resolve(call, DONE)
    else:
        bench.started(call, "w-1")
    has = bench.toolset("a", READ)
    await bench.look(lease(tools=has))
    await bench.watch(2, lease(tools=has))
    assert await bench.attempts() == []
    assert bench.recovery._homeless == {}, "nothing is kept of it"


async def test_a_call_that_runs_was_not_passed(bench: Bench) -> None:
    """The word is of an older message."""
    call = await bench.run("k")
    has, lacks = bench.toolset("a", READ), bench.toolset("b", NEWER_READ)
    await bench.fleet.follow([lease("w-1", tools=has), lease("w-2", tools=lacks)])
    await bench.recovery.unclaimed(call, "")
    assert (call.stage, call.queue, bench.transport.recovered) == (Stage.RUNNING, QUEUE, [])


async def test_an_unclaimed_call_is_not_resent_where_it_would_be_skipped(
    bench: Bench,
) -> None:
    gone = toolset_queue(QUEUE, bench.toolset("a", READ).digest)
    bench.pump.set_workers({gone: [4]})
    call = await bench.send("k", queue=gone)
    await bench.fleet.follow([lease(tools=bench.toolset("b", NEWER_READ))])
    await bench.recovery.unclaimed(call, "")
    assert (call.stage, bench.transport.recovered) == (Stage.ORPHANED, [])


async def test_what_lies_on_a_queue_that_nobody_takes_from_is_sent_to_the_common_one(
    bench: Bench,
) -> None:
    gone = bench.toolset("a", READ)
    own = toolset_queue(QUEUE, gone.digest)
    bench.pump.set_workers({own: [4]})
    call = await bench.send("k", WRITE, queue=own)
    await bench.watch(2, lease())
    assert (call.queue, call.stage) == (QUEUE, Stage.QUEUED)
    assert await bench.attempts(QUEUE) == [("k", 1)]
    await bench.watch(2, lease())
    assert await bench.attempts(QUEUE) == [], "once"


# The server changed.


async def test_across_an_epoch_a_write_is_not_sent_again_before_workers_had_time(
    bench: Bench,
) -> None:
    """One may run it, and the server may have lost that."""
    call = await bench.send("k", WRITE)
    await bench.look(lease())
    await bench.messages()
    bench.server.epoch = "memory.another"
    await bench.watch(1, lease())
    assert call.stage is Stage.ORPHANED
    await bench.watch(7, lease())
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])
    await bench.watch(2, lease())
    assert (call.stage, await bench.attempts()) == (Stage.QUEUED, [("k", 1)])


async def test_across_an_epoch_a_read_is_sent_again_at_once(bench: Bench) -> None:
    """No worker starts it before: the server may have lost that it was cancelled."""
    call = await bench.send("k")
    await bench.look(lease())
    await bench.messages()
    bench.server.epoch = "memory.another"
    await bench.watch(1, lease())
    assert (call.stage, await bench.attempts()) == (Stage.QUEUED, [("k", 1)])
    await bench.watch(5, lease())
    assert await bench.attempts() == [], "once"


async def test_in_another_epoch_queues_are_watched_anew(bench: Bench) -> None:
    """That one was empty may be all that the server lost."""
    call = await bench.send_and_lose("k")
    await bench.look()
    await bench.watch(2)
    bench.server.epoch = "memory.another"
    await bench.watch(1)
    assert call.republished == 1, "it says that it waits"
    await bench.messages()  # lost again
    await bench.watch(5)
    assert call.republished == 1
    await bench.watch(2)
    assert call.republished == 2


async def test_after_a_pause_of_its_own_a_dispatcher_gives_workers_their_time_anew(
    bench: Bench,
) -> None:
    call = await bench.send_and_lose("k", WRITE)
    await bench.look(lease())
    bench.server.epoch = "memory.another"
    await bench.watch(6, lease())
    bench.clock.ahead += 5.0
    await bench.watch(8, lease())
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])
    await bench.watch(2, lease())
    assert (call.stage, await bench.attempts()) == (Stage.QUEUED, [("k", 1)])


async def test_a_write_that_was_seen_to_start_is_not_sent_again_in_another_epoch(
    bench: Bench,
) -> None:
    call = await bench.run("k", WRITE)
    await bench.look(lease())
    bench.server.epoch = "memory.another"
    await bench.watch(30, lease())
    assert (call.stage, bench.transport.recovered) == (Stage.RUNNING, [])


async def test_what_was_sent_in_the_present_epoch_is_not_looked_at_for_that(bench: Bench) -> None:
    await bench.look(lease())
    bench.server.epoch = "memory.another"
    await bench.watch(1, lease())
    await bench.send("k", WRITE)
    await bench.watch(2, lease())
    assert bench.transport.recovered == []


async def test_an_outage_begins_the_time_of_workers_anew(bench: Bench) -> None:
    call = await bench.send_and_lose("k", WRITE)
    await bench.look(lease())
    bench.server.epoch = "memory.another"
    await bench.watch(6, lease())
    bench.recovery.interrupted()
    await bench.watch(8, lease())
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])
    await bench.watch(2, lease())
    assert (call.stage, await bench.attempts()) == (Stage.QUEUED, [("k", 1)])


async def test_an_outage_begins_the_time_of_messages_anew(bench: Bench) -> None:
    call = await bench.send_and_lose("k")
    await bench.look(lease())
    await bench.watch(2, lease())
    bench.recovery.interrupted()
    await bench.watch(3, lease())
    assert call.republished == 0
    await bench.watch(1, lease())
    assert call.republished == 1


# Lost records.


async def test_a_read_whose_record_is_lost_is_opened_in_its_next_attempt(bench: Bench) -> None:
    """Nobody knows any more whether it was started: its epoch is not the new one."""
    call = await bench.send_and_lose("k")
    await bench.look(lease())
    bench.server.forget()
    await bench.watch(4, lease())
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 2)
    assert await bench.attempts() == [("k", 2)]
    assert bench.server.state("k") == "open"
    assert call.epoch not in ("", bench.server.epoch)


async def test_a_write_whose_record_is_lost_with_the_server_s_data_is_not_opened_again(
    bench: Bench,
) -> None:
    call = await bench.send("k", WRITE)
    await bench.look(lease())
    await bench.messages()
    bench.server.forget()
    await bench.watch(30, lease())
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])
    assert bench.server.state("k") is None


async def test_an_unclaimed_write_is_reopened_in_the_same_attempt(
    bench: Bench,
) -> None:
    """Its record expired, in the same epoch: that is known."""
    call = await bench.send_and_lose("k", WRITE)
    del bench.server.records["k"]
    await bench.look()
    await bench.watch(3)
    assert (call.stage, call.message.attempt) == (Stage.QUEUED, 1)
    assert await bench.attempts() == [("k", 1)]
    assert (bench.server.state("k"), call.epoch) == ("open", bench.server.epoch)


async def test_an_unclaimed_read_is_reopened_as_its_next_attempt(
    bench: Bench,
) -> None:
    call = await bench.send_and_lose("k")
    del bench.server.records["k"]
    await bench.look()
    await bench.watch(3)
    assert await bench.attempts() == [("k", 2)]
    assert call.message.attempt == 2
    assert call.epoch not in ("", bench.server.epoch)


async def test_an_opened_record_may_be_claimed_until_its_deadline(bench: Bench) -> None:
    """It was waited for already."""
    call = await bench.send_and_lose("k")
    call.start_by = time.monotonic() + 0.001
    bench.server.forget()
    await bench.look(clock_jumped=True)
    record = bench.server.records["k"]
    assert record.until == record.deadline


@pytest.mark.parametrize("became", ["open", "claimed", "settled"])
async def test_a_record_that_another_dispatcher_opens_first_is_gone_along_with(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, became: str
) -> None:
    call = await bench.send_and_lose("k")
    bench.server.forget()
    recover = bench.transport.recover

    async def be_second(*args: Any, **options: Any) -> list[bytes]:
        answers = await recover(*args, **options)
        await bench.open_elsewhere(call, attempt=2)
        if became == "claimed":
            await bench.claim(call, "w-2", attempt=2)
        elif became == "settled":
            await bench.settle(call)
        return answers

    monkeypatch.setattr(bench.transport, "recover", be_second)
    await bench.recovery.recover(QUEUE, [(call, "")])
    assert await bench.attempts() == [], "the other has sent it"
    assert call.message.attempt == 2
    if became == "settled":
        assert call.outcome == DONE
    else:
        expected = (Stage.RUNNING, "w-2", 0) if became == "claimed" else (Stage.QUEUED, "", 1)
        assert (call.stage, call.worker, call.republished) == expected


async def test_a_write_that_may_have_run_after_all_is_not_opened_again(bench: Bench) -> None:
    """Its record is gone, and so is what would have said that it was claimed."""
    call = await bench.send_and_lose("k", WRITE)
    call.again = True
    del bench.server.records["k"]
    await bench.look()
    await bench.watch(3)
    assert (call.stage, await bench.attempts()) == (Stage.ORPHANED, [])


# Outcomes that others were told.


async def test_an_outcome_without_a_notification_is_looked_up(bench: Bench) -> None:
    call = await bench.run("k", WRITE)
    await bench.settle(call)
    await bench.watch(9, lease())
    assert (call.is_open, bench.transport.looked_for) == (True, [])
    await bench.watch(2, lease())
    assert call.outcome == DONE


async def test_an_outcome_of_a_stranded_call_is_looked_for_too(bench: Bench) -> None:
    call = await bench.send("k", WRITE)
    await bench.watch(12, lease())
    bench.server.epoch = "memory.another"
    await bench.watch(1, lease())
    assert (call.stage, call.is_open) == (Stage.ORPHANED, True)
    await bench.settle(call)
    await bench.watch(1, lease())
    assert call.outcome == DONE


async def test_a_call_that_another_asked_for_first_is_looked_for_at_once(bench: Bench) -> None:
    """Of many askers not all are told."""
    call = await bench.run("k", WRITE)
    call.is_attached = True
    await bench.look(lease())
    assert call.is_open
    await bench.settle(call)
    await bench.look(lease())
    assert call.outcome == DONE


async def test_of_many_calls_some_are_looked_for_at_each_look_and_all_in_turn(
    bench: Bench,
) -> None:
    calls = [await bench.run(f"k-{n}") for n in range(300)]
    for call in calls:
        call.is_attached = True
    await bench.watch(6, lease())
    assert [len(keys) for keys in bench.transport.looked_for] == [128] * 6
    times = Counter(key for keys in bench.transport.looked_for for key in keys)
    assert set(times) == set(bench.calls)
    assert min(times.values()) == 2


async def test_few_calls_are_looked_for_once_each_at_a_look(bench: Bench) -> None:
    for key in "ab":
        (await bench.run(key)).is_attached = True
    await bench.watch(2, lease())
    assert [sorted(keys) for keys in bench.transport.looked_for] == [["a", "b"]] * 2


async def test_what_was_not_sent_is_not_looked_for(bench: Bench) -> None:
    call = bench.calls["k"] = pending("k")
    assert call.stage is Stage.NEW
    await bench.watch(20, lease())
    assert (bench.transport.looked_for, bench.transport.recovered) == ([], [])


async def test_what_was_answered_is_not_looked_for(bench: Bench) -> None:
    call = await bench.run("k")
    call.is_attached = True
    call.answer(DONE)
    await bench.recovery.examine(await bench.transport.survey([]), [], [call])
    assert bench.transport.looked_for == []


async def test_a_lost_worker_is_reported_once(bench: Bench) -> None:
    """However often its call, whose record is lost as well, is looked at."""
    await bench.run("k", WRITE)
    await bench.look()
    bench.server.forget()
    await bench.watch(40)
    assert len(bench.lost.told) == 1
