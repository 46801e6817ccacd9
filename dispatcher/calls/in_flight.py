"""The calls in flight: from the pump through the workers to one outcome each."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from typing_extensions import override

from toolpool.contract import logs
from toolpool.contract.approval_messages import ApprovalRequest
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import BackgroundCall, Question
from toolpool.contract.errors import ServerError
from toolpool.contract.kill_switches import KillSwitches
from toolpool.contract.outcome import Code, Executed, Outcome, failure, may_still_run
from toolpool.contract.rates import Limit
from toolpool.contract.redis_keys import RedisKeys, root_of
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.admission.availability import Availability
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.calls import call_identity, pending_factory
from toolpool.dispatcher.calls.deadlines import Deadlines
from toolpool.dispatcher.calls.ended_calls import EndedCalls
from toolpool.dispatcher.calls.fleet_circuits import FleetCircuits
from toolpool.dispatcher.calls.late_writes import LateWrites
from toolpool.dispatcher.calls.live_workers import LiveWorkers
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pulse import beat
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.queue_routes import QueueRoutes
from toolpool.dispatcher.calls.rate_gate import RateGate
from toolpool.dispatcher.calls.recovery import Recovery
from toolpool.dispatcher.calls.refusals import RecordedRejection, Refusals
from toolpool.dispatcher.calls.reply_reader import ReplyReader
from toolpool.dispatcher.calls.reporting import Reporter
from toolpool.dispatcher.calls.retries import Retries
from toolpool.dispatcher.calls.run_sharing import RunSharing
from toolpool.dispatcher.calls.server_monitor import ServerMonitor
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.calls.shared_run import equality_of
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("in_flight")

_RECORDS_SECONDS = 1.0
"""How long a resumed turn waits for another dispatcher that may be sending its next calls."""
_RECORD_LOOKS = 20


class ApprovalHandler(Protocol):
    """Handles the calls that wait for a person's approval."""

    def look(self, pending: PendingCall) -> None:
        """Check the ledger's state of a call that needs approval, or needed it."""
        ...

    def decided(self, pending: PendingCall, decision: bytes) -> None:
        """Handle the decision about a call."""
        ...


class InFlightCalls(Calls):
    """Every accepted call without an outcome, and the parts that process these calls."""

    approvals: ApprovalHandler

    def __init__(self, services: Services, catalog: Catalog, *, follows_catalog: bool) -> None:
        settings, observers = services.settings, services.observers
        self._transport = services.transport
        self._settings = settings
        self._observers = observers
        self._open: dict[str, PendingCall] = {}
        """The open calls by root."""
        names = RedisKeys(settings.key_prefix)
        fleet = LiveWorkers(services.transport, services.envelope, names)
        self._routes = QueueRoutes(fleet, names)
        self._breaker = Breaker(settings, observers)
        self._switches = KillSwitches(services.envelope, settings.key_prefix)
        self.available = Availability(
            self._transport,
            observers,
            tenant=settings.tenant,
            switches=self._switches,
            breaker=self._breaker,
            canonical=catalog.canonical,
        )
        self.late_writes = LateWrites(
            lease_ttl=settings.lease_ttl, has_ended=self._transport.has_ended
        )
        self.ended_calls = EndedCalls(services, self)
        self._pump = Pump(services, self)
        self._rate_gate = RateGate(services, self, pump=self._pump)
        self._refusals = Refusals(services, self)
        self.deadlines = Deadlines(services, self)
        self.recovery = Recovery(services, self, pump=self._pump, fleet=fleet, routes=self._routes)
        self._reply_reader = ReplyReader(
            services, self, on_interruption=self.ended_calls.interrupted
        )
        self._run_sharing = RunSharing(services, self)
        self.reporter = Reporter(
            services, self, pump=self._pump, breaker=self._breaker, cancel=self.cancel
        )
        self.server_monitor = ServerMonitor(
            services,
            self,
            catalog=catalog,
            pump=self._pump,
            recovery=self.recovery,
            fleet=fleet,
            available=self.available,
            circuits=FleetCircuits(services, self._breaker),
            reporter=self.reporter,
            follows_catalog=follows_catalog,
        )
        self._retries = Retries(
            services, pump=self._pump, deadlines=self.deadlines, submit=self._submit_again
        )
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        """Connect, survey the server once, and start reading replies. Raises `Misconfigured`."""
        await self._transport.open()
        await self.server_monitor.once()
        self.in_background(self._reply_reader.run())
        self.in_background(self.server_monitor.run())
        self.in_background(self._rate_gate.follow())
        if self._observers.listeners["pulse"]:
            self.in_background(beat(self, self._pump, self._observers))

    async def close(self) -> None:
        """Cancel the calls that have a waiter and close every connection. Idempotent.

        Background calls go on: the next dispatcher that is asked about their handle adopts them.
        """
        await self.leave([p for p in self._open.values() if not p.in_background])
        self._run_sharing.close()
        await self._rate_gate.close()
        await self._tasks.end()
        for pending in self._open.values():
            self.deadlines.forget(pending)
            pending.answer(failure(Code.CANCELLED, "", Executed.UNKNOWN))  # for local waiters
        self._open.clear()
        self.deadlines.close()
        self._pump.close()
        await self._transport.close()

    def submit(
        self,
        call: ToolCall,
        spec: ToolSpec,
        turn: TurnOptions,
        since: float,
        *,
        is_behind: bool = False,
    ) -> PendingCall:
        """Send an accepted call, or join it if it is already open.

        Its deadlines count from `since`, the time at which the earlier calls of its turn had ended.
        If `is_behind`, it waited for such calls, and no shared or cached result from before that
        time is used.
        """
        equal: str | None = None
        if spec.single_flight is True or spec.cache_seconds is not msgspec.UNSET:
            switches = self._switches.on_arguments(spec.name, self._settings.tenant)
            equal = equality_of(call, spec, turn, self._settings.tenant, switches)
        pending, is_new = self._accept(call, spec, turn, since, is_watched=equal is None)
        if is_new and equal is not None:
            self._run_sharing.submit(pending, equal, anew=is_behind)
        elif is_new:
            self._send(pending)
        return pending

    def send_run(self, run: PendingCall) -> None:
        """Send a run that equal calls share."""
        self._open[run.root] = run
        self.deadlines.watch(run, alone=True)
        self._rate_gate.submit(run)

    def send_alone(self, pending: PendingCall) -> None:
        """Send a call that shares no run."""
        self.deadlines.watch(pending, alone=True)
        self._rate_gate.submit(pending)

    def hold(
        self, call: ToolCall, spec: ToolSpec, turn: TurnOptions, since: float
    ) -> tuple[PendingCall, bool]:
        """Hold a call until `send_held`. Returns it, and whether a person has to be asked about it.

        The call counts as waiting, and is refused like any other call if there is no room for it.
        """
        pending, is_new = self._accept(call, spec, turn, since, is_watched=False)
        if is_new:
            pending.is_held = self._pump.hold(pending)
            return pending, pending.is_held
        return pending, False

    def take_over(self, request: ApprovalRequest, spec: ToolSpec, *, left: float) -> PendingCall:
        """Hold a call that another dispatcher held before, as `hold` does."""
        pending = self._open[root_of(request.message.key)] = pending_factory.taken_over(
            request,
            spec,
            left=left,
            queue=self._routes.queue_for(spec),
            settings=self._settings,
            server_now=self._transport.server_time(),
        )
        return pending

    def keep_approval(self, pending: PendingCall) -> None:
        """Ensure that a call that needs approval is answered, even if the server fails."""
        if not pending.is_held:
            pending.is_held = True
            self._pump.hold(pending, always=True)
        self.deadlines.watch_approval(pending)

    def send_held(self, pending: PendingCall, *, is_sent: bool) -> None:
        """Send an approved call, if it may still be sent; join a call that `is_sent`."""
        if pending.is_held:
            self._remove_held(pending)
        self.deadlines.watch(pending, alone=True)
        if is_sent:
            self.join(pending)
        else:
            self._unless_refused(pending, self._send)

    @override
    def approval_required(self, pending: PendingCall) -> None:
        if not pending.is_open:
            return
        is_lost = pending.stage is Stage.RUNNING and not pending.message.rerunnable
        if is_lost or pending.was_sent_before(self._transport.epoch or ""):
            # the server lost its state: only its outcome may still arrive
            pending.worker = ""
            self._pump.queue_of(pending).orphaned(pending)
            self.ended_calls.sent_before_loss(pending)
        else:
            if pending.limited is not None:
                self._rate_gate.ended(pending)
            self._pump.take_back(pending)
            pending.unsent()
            self.approvals.look(pending)

    @override
    def restart_queue_wait(self, pending: PendingCall) -> None:
        pending.restart_queue_wait(time.monotonic() + self._settings.queue_timeout)
        self.deadlines.watch(pending, alone=True)

    @override
    def decided(self, pending: PendingCall, decision: bytes) -> None:
        self.approvals.decided(pending, decision)

    def _remove_held(self, pending: PendingCall) -> None:
        pending.is_held = False
        self._pump.remove_held(pending)

    def _send(self, pending: PendingCall) -> None:
        if self._observers.tracers and (headers := self._observers.trace(pending)) is not None:
            pending.traced(headers)
        if self._observers.listeners["accepted"]:
            self._observers.call("accepted", pending)
        self._rate_gate.submit(pending)

    def open_unsent(self, call: ToolCall, spec: ToolSpec, turn: TurnOptions) -> PendingCall:
        """Open a call only to cancel it; nothing is sent.

        Its record is kept for `dedup_ttl`, so that another dispatcher whose turn waits finds it
        cancelled. In two cases the record does not prove that the call never ran: the call shares
        runs, which have records of their own, or its turn is resumed.
        """
        pending, is_new = self._accept(call, spec, turn, time.monotonic())
        if is_new:
            pending.not_to_be_sent(
                keep=self._settings.dedup_ttl, may_have_run=spec.is_shared or turn.again
            )
        return pending

    def answer(
        self, call: ToolCall, spec: ToolSpec, turn: TurnOptions, since: float, refusal: Outcome
    ) -> PendingCall:
        """Answer a call without sending it; one that was dispatched before gets its own result."""
        pending, is_new = self._accept(call, spec, turn, since)
        if is_new:
            self.refuse(pending, refusal)
        return pending

    async def were_dispatched(
        self, calls: Sequence[ToolCall], turn: TurnOptions
    ) -> Sequence[bool | None]:
        """Whether each call was dispatched in this turn before; None if unknown."""
        users, settings = (None, call_identity.user_of(turn)), self._settings
        keys = [
            call_identity.key_of(call, turn, settings, user) for call in calls for user in users
        ]
        try:
            states = await self._transport.states(keys)
        except ServerError as error:
            log.warning("records_not_looked_up: %s", error)
            return [None for _ in calls]
        found = [state is not None for state in states]
        return [one or other for one, other in zip(found[::2], found[1::2], strict=True)]

    async def reject(
        self, rejected: Sequence[tuple[ToolCall, ToolResult]], turn: TurnOptions
    ) -> list[RecordedRejection]:
        """Record that calls were rejected.

        No dispatcher can send the calls afterwards; all dispatchers answer them with this result.
        """
        user = call_identity.user_of(turn)
        users = [None] if user is None else [None, user]
        records = [
            (
                call_identity.key_of(call, turn, self._settings, user),
                failure(result.code or Code.INTERNAL, result.error or "", Executed.NO),
            )
            for call, result in rejected
            for user in users
        ]
        known = await self._refusals.reject(records, self._transport.epoch or "", again=turn.again)
        size = len(users)
        return [_of_all(known[at : at + size]) for at in range(0, len(known), size)]

    async def wait_for_records(self, calls: Sequence[ToolCall], turn: TurnOptions) -> None:
        """Wait briefly in case another dispatcher is sending these calls of a resumed turn.

        Without this wait, a call that has no record yet would be treated as lost.
        """
        for _ in range(_RECORD_LOOKS):
            if False not in await self.were_dispatched(calls, turn):
                return
            await asyncio.sleep(_RECORDS_SECONDS / _RECORD_LOOKS)

    def _accept(
        self,
        call: ToolCall,
        spec: ToolSpec,
        turn: TurnOptions,
        since: float,
        *,
        is_watched: bool = True,
    ) -> tuple[PendingCall, bool]:
        """Return the open call, with its deadlines enforced, and whether it is new."""
        is_own = spec.secrets is not msgspec.UNSET
        user = call_identity.user_of(turn) if is_own else None
        key = call_identity.key_of(call, turn, self._settings, user)
        known = self._open.get(key)
        if known is not None:
            return known, False
        pending = self._open[key] = pending_factory.accepted(
            key,
            call,
            spec,
            turn,
            since=since,
            settings=self._settings,
            queue=self._routes.queue_for(spec),
            epoch=self._transport.epoch or "",
        )
        if is_watched:
            self.deadlines.watch(pending)
        return pending, True

    def run_here(
        self,
        call: ToolCall,
        spec: ToolSpec,
        session: str | None,
        work: Coroutine[Any, Any, Outcome],
    ) -> PendingCall:
        """Answer a call in this dispatcher with the outcome of `work`, which never raises."""
        pending = pending_factory.answered_here(call, spec, session)
        self._open[pending.root] = pending
        self._observers.started(pending, "")

        async def run() -> None:
            self.resolve(pending, await work)

        pending.work = self.in_background(run())
        return pending

    async def adopt(
        self, found: BackgroundCall, spec: ToolSpec, *, is_wanted: bool = True
    ) -> PendingCall:
        """Take over a call that another dispatcher published, with its outcome if it has one.

        A call that is not wanted is only cancelled, and is not sent again. Raises what the
        transport raises if the ledger cannot be read.
        """
        states = await self._transport.states(pending_factory.record_keys(found))
        root = root_of(found.message.key)
        if (known := self._open.get(root)) is not None:  # opened meanwhile by a concurrent request
            return known
        pending = self._open[root] = pending_factory.adopted(
            found,
            spec,
            states,
            queue=self._routes.home(found.queue, spec),
            settings=self._settings,
            server_now=self._transport.server_time(),
        )
        now, has_record = time.monotonic(), states[pending.retries] is not None
        # A claim would have left a mark, so the server knows whether the call was ever sent.
        may_be_unsent = (
            not has_record
            and not pending.message.rerunnable
            and found.epoch == self._transport.epoch
        )
        if is_wanted or not may_be_unsent:
            self._pump.queue_of(pending).adopt(pending)
        self.deadlines.watch(pending, alone=True)
        if not is_wanted:
            return pending
        # the record is lost: the next dispatcher that requests approval writes it again
        if found.approval and not has_record:
            self.approvals.look(pending)
        elif has_record or (pending.message.rerunnable and pending.deadline > now):
            await self.recovery.released(pending)
        elif may_be_unsent and pending.deadline > now:
            pending.published(found.epoch, now)
            await self.recovery.released(pending)
        elif pending.start_by > now and pending.start_by != pending.deadline:
            self._pump.queue_of(pending).orphaned(pending)
        else:
            self.resolve(pending, failure(Code.WORKER_LOST, "", Executed.UNKNOWN))
        return pending

    def root(self, key: str) -> PendingCall | None:
        """The open call of this record, or of the record of another of its retries."""
        return self._open.get(root_of(key))

    @override
    def refuse(self, pending: PendingCall, outcome: Outcome) -> None:
        if self.available.is_closed and pending.may_be_known:
            self.resolve(pending, msgspec.structs.replace(outcome, executed=Executed.UNKNOWN))
            return
        self._refusals.refuse(pending, outcome)

    @override
    def join(self, pending: PendingCall) -> None:
        self._pump.queue_of(pending).adopt(pending)
        self.in_background(self.recovery.released(pending))

    @override
    def denial(self, pending: PendingCall) -> Outcome | None:
        return self.available.denial(pending.as_run) if self._switches.on else None

    @override
    def rate_wait_ended(self, pending: PendingCall) -> None:
        self._rate_gate.rate_wait_ended(pending)

    def move_to_background(self, pending: PendingCall, kept: float) -> None:
        """Move the call to the background; its outcome is kept for `kept` seconds."""
        self._pump.move_to_background(pending)
        pending.move_to_background(kept)

    async def cancel(self, calls: Sequence[PendingCall]) -> None:
        """End calls for every dispatcher; each is answered `aborted.cancelled`.

        A background call stays open if the server does not confirm its end.
        """
        shared = [p for p in calls if p.shares_run and p.in_background and p.is_open]
        for pending in shared:
            pending.abandoned(everywhere=True)
        # another dispatcher would run the calls of its handle
        self.deadlines.close_abandoned(shared)
        await self._end(calls, everywhere=True)

    async def leave(self, calls: Sequence[PendingCall]) -> None:
        """End calls unless another dispatcher waits for them.

        In any case, each is answered here.
        """
        await self._end(calls, everywhere=False)

    async def _end(self, calls: Sequence[PendingCall], *, everywhere: bool) -> None:
        if calls and (left := self._run_sharing.leave(calls)):
            await self.deadlines.cancel(left, everywhere=everywhere)

    def resolve(self, pending: PendingCall, outcome: Outcome) -> None:
        """Answer a call; only the first answer counts."""
        if pending.outcome is not None:
            return
        if pending.limited is not None:
            self._rate_gate.ended(pending)
        worker = outcome.worker
        if pending.ran_before is not None:
            outcome = pending.with_earlier_attempts(outcome)
        shares_run = pending.share is not None and not pending.is_run
        if pending.queue:
            is_news = pending.is_new_outcome and not shares_run
            self._breaker.note(pending.call.name, outcome, call=pending.call.id, is_news=is_news)
            if not outcome.ok and self._retries.try_again(pending, outcome):
                return
        outcome = pending.answer(outcome)
        if not outcome.ok:
            self._note_failure(pending, outcome)
        if pending.is_new_outcome and not shares_run and worker:
            if self._observers.listeners["started"]:
                self._observers.started(pending, worker)  # too short to be announced
            self.recovery.queue_watch.started(pending.queue, pending.published_at)
        if pending.is_new_outcome and not pending.is_run:
            self._observers.ended(pending, outcome)
        self.deadlines.forget(pending)
        del self._open[pending.root]
        if pending.is_held:
            self._remove_held(pending)
        self._pump.done(pending)
        if pending.share is not None:
            self._run_sharing.over(pending)

    def _note_failure(self, pending: PendingCall, outcome: Outcome) -> None:
        must_not_run = outcome.executed is Executed.NO or outcome.code is Code.CANCELLED
        may_be_asked_again = pending.may_be_known and not pending.is_run
        is_noted_later = pending.on_answered is not None  # it needed approval
        if must_not_run and may_be_asked_again and pending.queue and not is_noted_later:
            self.ended_calls.note(pending, outcome)
        if pending.spec.effects is Effects.WRITE and may_still_run(outcome):
            self.late_writes.watch(pending)

    def _submit_again(self, pending: PendingCall) -> None:
        if pending.is_open:
            self._unless_refused(pending, self._rate_gate.submit)

    def _unless_refused(self, pending: PendingCall, send: Callable[[PendingCall], None]) -> None:
        """Send a call unless it is refused now.

        It is checked again because it may have been accepted long ago.
        """
        pending.queue = self._routes.home(pending.queue, pending.spec)
        refusal = self.available.refusal(pending.as_run)
        if refusal is not None:
            self.refuse(pending, refusal)
        else:
            send(pending)

    @override
    def has_lost_its_worker(self, pending: PendingCall) -> bool:
        return self.recovery.has_lost_its_worker(pending)

    @override
    def started(self, pending: PendingCall, worker: str) -> None:
        pending.worker = worker
        self.recovery.queue_watch.started(pending.queue, pending.published_at)
        self._observers.started(pending, worker)
        self._pump.queue_of(pending).started(pending)

    @override
    def released(self, pending: PendingCall) -> None:
        self._observers.call("released", pending)
        self.in_background(self.recovery.released(pending))

    @override
    def limited(self, pending: PendingCall, limits: tuple[Limit, ...]) -> None:
        if pending.is_open and pending.stage is Stage.QUEUED:
            self._rate_gate.hold_again(pending, limits)

    @override
    def unclaimed(self, pending: PendingCall, reason: str) -> None:
        self.in_background(self.recovery.unclaimed(pending, reason))
        if reason and not pending.republished:  # if passed again, it waits for the next survey
            self.server_monitor.soon()

    @override
    def ended(self, keys: Iterable[str]) -> None:
        self.late_writes.record_ends(keys)

    @override
    def asked(self, question: Question) -> None:
        self.in_background(self.reporter.answer(question))

    @override
    def settled(self, reply: bytes) -> None:
        self._reply_reader.take(reply)

    @override
    def known(self, pending: PendingCall, reply: bytes) -> None:
        pending.is_new_outcome = False
        self._reply_reader.take(reply)

    @override
    def abandoned(self, calls: Sequence[PendingCall]) -> None:
        self.deadlines.close_abandoned(calls)

    @override
    def find(self, key: str) -> PendingCall | None:
        pending = self._open.get(key) or self._open.get(root_of(key))
        return pending if pending is not None and pending.message.key == key else None

    @override
    def all_open(self) -> Collection[PendingCall]:
        return self._open.values()

    @override
    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return self._tasks.start(work)


def _of_all(known: Sequence[RecordedRejection]) -> RecordedRejection:
    """What the ledger knows of a call that may have one of several records."""
    executed = {each.executed for each in known}
    ran = next((e for e in (Executed.UNKNOWN, None) if e in executed), Executed.NO)
    return RecordedRejection(ran, is_new=all(each.is_new for each in known))
