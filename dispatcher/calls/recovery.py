"""Finds calls whose message or worker is lost, and starts them again if that is safe.

Celery on Redis is a fast, lossy transport: a worker killed under load takes messages with it. This
module finds calls that may be lost; the ledger decides whether they are. After an outage no call is
suspected until the server was watched for as long as a lease lasts.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import starmap

import msgspec

from toolpool.contract import logs
from toolpool.contract.envelope import Batch, CallMessage, Settled, WorkerLease
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import RecoveryRequest
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.dispatcher.calls.live_workers import LiveWorkers
from toolpool.dispatcher.calls.lost_workers import LostWorkers
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.queue_routes import QueueRoutes
from toolpool.dispatcher.calls.queue_watch import QueueWatch
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.transports.base import Survey

log = logs.logger("recovery")

_POLL_SECONDS = 10.0
"""After this many seconds, an outcome is looked up that may have been reported elsewhere."""
_GROUP = 64
_PATIENCE_SECONDS = 5.0
_RETURN_SECONDS = 2.5
"""How much longer a write waits for a worker whose liveness channel closed: a proxy may restart."""
_NEVER = float("inf")
_ASKED_AT_ONCE = 128
_OPENED_AT_ONCE = 16
"""How many lost calls are opened again at once: each takes a connection for a round trip."""


class Recovery:
    """Checks every call in flight, once for each survey of the server."""

    def __init__(
        self,
        services: Services,
        calls: Calls,
        *,
        pump: Pump,
        fleet: LiveWorkers,
        routes: QueueRoutes,
    ) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = services.settings
        self._observers = services.observers
        self._calls = calls
        self._pump = pump
        self._fleet = fleet
        self._routes = routes
        self._epoch: str | None = None
        self._epoch_since = _NEVER
        self._leases = LostWorkers(
            lease_ttl=services.settings.lease_ttl, stall=services.settings.longest_stall
        )
        self.queue_watch = QueueWatch()
        self._asked_from = 0
        self._homeless: dict[PendingCall, None] = {}
        """Calls whose tool no live worker has."""
        self._unsure: set[PendingCall] = set()
        """Calls about which the server is asked with the next survey in any case."""

    def interrupted(self) -> None:
        """Record that the server did not answer: earlier observations no longer count."""
        self._leases.interrupted()
        self.queue_watch.forget()

    async def released(self, pending: PendingCall) -> None:
        """Check a call that a worker gave back, or that was taken over from another dispatcher.

        Never raises: the next survey tries again.
        """
        self._reroute_orphan(pending)
        self._unsure.discard(pending)
        try:
            await self.recover(pending.queue, [(pending, "")])
        except Exception as error:  # noqa: BLE001 - whatever it was, the call is looked at again
            log.warning("released_call_not_sent call=%s: %s", pending.call.id, error)
            self._unsure.add(pending)

    async def unclaimed(self, pending: PendingCall, reason: str) -> None:
        """Reroute a call whose worker lacks this version of its tool to a worker known to have it.

        If no such worker is known, or this worker should have that version, or a switch denies the
        call (`reason`), the call waits for the next survey. Never raises.
        """
        if pending.stage is not Stage.QUEUED or not pending.is_open:
            return
        if reason:
            self._pump.queue_of(pending).orphaned(pending)
            self._unsure.add(pending)
            return
        queue = self._routes.queue_for(pending.spec)
        if queue == pending.queue or not self._fleet.runs(pending.spec):
            self._pump.queue_of(pending).orphaned(pending)
            self._homeless[pending] = None
            return
        await self._send_to(pending, queue)

    def _reroute_orphan(self, pending: PendingCall) -> None:
        """Move a call from a queue without workers, with all later calls, to another queue."""
        if not pending.queue or not pending.is_open:
            return
        queue = self._routes.home(pending.queue, pending.spec)
        if queue != pending.queue:
            self._pump.reroute(pending, queue)
            if pending.stage is Stage.QUEUED:
                self._unsure.add(pending)

    async def _send_to(self, pending: PendingCall, queue: str) -> None:
        if queue != pending.queue:
            self._pump.reroute(pending, queue)
        await self.released(pending)

    async def _reroute_unserved(self) -> None:
        """Reroute calls that no worker could run to a worker that now has the tool, in any version.

        A worker that has another version validates the arguments again.
        """
        for pending in list(self._homeless):
            queue: str | None = None
            if pending.is_open and pending.stage is Stage.ORPHANED:
                if not self._fleet.runs(pending.spec):
                    queue = self._routes.queue_for_another(pending.spec)
                    if queue is None:
                        continue
                    pending.for_any_version()
                await self._send_to(pending, queue or self._routes.queue_for(pending.spec))
            del self._homeless[pending]

    async def examine(
        self, survey: Survey, leases: Collection[WorkerLease], calls: Iterable[PendingCall]
    ) -> None:
        """Recover the calls that are lost according to a survey with these live workers."""
        now = time.monotonic()
        self._note(survey, leases, now)
        calls = list(calls)
        await self._fetch_unreported_outcomes(calls)
        await self._reroute_unserved()
        suspects: defaultdict[str, list[tuple[PendingCall, str]]] = defaultdict(list)
        for pending in calls:
            self._reroute_orphan(pending)
        unsure, self._unsure = self._unsure, set()
        for pending in calls:
            if pending in unsure:
                suspects[pending.queue].append((pending, ""))
                continue
            is_suspect = self._is_suspect(pending, survey, now)
            if is_suspect:
                lost_worker = pending.worker if pending.stage is Stage.RUNNING else ""
                suspects[pending.queue].append((pending, lost_worker))
        try:
            for queue, found in suspects.items():
                for start in range(0, len(found), _GROUP):
                    await self.recover(queue, found[start : start + _GROUP])
        except BaseException:
            self._unsure |= unsure
            raise

    def _is_suspect(self, pending: PendingCall, survey: Survey, now: float) -> bool:
        match pending.stage:
            case Stage.RUNNING:
                return self._is_lost(pending, now)
            case Stage.QUEUED:
                return survey.clock_jumped or self._is_overdue(pending, survey, now)
            case _:
                return self._had_time(pending)

    async def recover(self, queue: str, suspects: Sequence[tuple[PendingCall, str]]) -> None:
        """Ask the ledger about calls of one queue, each with its lost worker ('' for none)."""
        suspects = [each for each in suspects if each[0].is_open and self._admit_or_refuse(*each)]
        asked = [pending.message for pending, _ in suspects]
        now = time.monotonic()
        answers = await self._transport.recover(
            [self._step(pending, worker, now) for pending, worker in suspects],
            queue=queue,
            give_up_at=now + _PATIENCE_SECONDS,
        )
        # All at once: a call that was sent again may start, and end, at any moment.
        found = list(zip(suspects, asked, answers, strict=True))
        lost = [each for each in found if self._apply_answer(*each)]
        for start in range(0, len(lost), _OPENED_AT_ONCE):
            group = starmap(self._open_lost, lost[start : start + _OPENED_AT_ONCE])
            for error in await asyncio.gather(*group, return_exceptions=True):
                if error is not None:
                    raise error

    def _admit_or_refuse(self, pending: PendingCall, lost_worker: str = "") -> bool:
        """Whether a call goes on; one that a kill switch denies is refused, unless it ran."""
        denial = self._calls.denial(pending) if not lost_worker else None
        if denial is not None:
            self._calls.refuse(pending, denial)
        return denial is None

    def _apply_answer(
        self, suspect: tuple[PendingCall, str], message: CallMessage, answer: LedgerAnswer
    ) -> bool:
        """Act on an answer. Returns whether the call's record has to be opened again."""
        pending, worker = suspect
        if not pending.is_open or pending.message is not message:  # it is another attempt by now
            return False
        if worker and answer.state is not CallState.RUNNING:
            self._observers.call("lost", pending, worker)
        match answer.state:
            case CallState.SENT:
                self._sent_again(pending)
            case CallState.AGAIN:
                log.info("call_again call=%s attempt=%d", pending.call.id, answer.attempt)
                pending.in_attempt(answer.attempt)
                self._calls.restart_queue_wait(pending)
                self._sent_again(pending)
            case CallState.MISSING | CallState.UNCLAIMED:
                return True
            case _:
                self._take_what_is_known(pending, answer)
        return False

    async def _open_lost(
        self, suspect: tuple[PendingCall, str], message: CallMessage, answer: LedgerAnswer
    ) -> None:
        pending, _ = suspect
        if not pending.is_open or pending.message is not message:
            return
        if answer.state is CallState.UNCLAIMED and not message.rerunnable:
            await self._open_again(pending, message.attempt)
        else:
            await self._reopen(pending)

    def _take_what_is_known(self, pending: PendingCall, answer: LedgerAnswer) -> None:
        match answer.state:
            case CallState.RUNNING:
                pending.worker = answer.worker
                self._pump.queue_of(pending).started(pending)
            case CallState.MOVED | CallState.RAN:
                self._pump.queue_of(pending).orphaned(pending)
            case CallState.WAITING | CallState.APPROVED | CallState.LAPSED:
                self._calls.approval_required(pending)
            case _:
                self._calls.settled(answer.outcome)

    def _sent_again(self, pending: PendingCall) -> None:
        pending.published_again(time.monotonic())
        self._pump.queue_of(pending).published_again(pending)
        self._observers.call("requeued", pending)

    async def _reopen(self, pending: PendingCall) -> None:
        """Create the lost record of a call again, if the call may run twice.

        The call gets the next attempt number, but is not bound to the new epoch: it may have
        started before the loss, so a missing record would prove nothing.
        """
        if pending.was_held:
            await self._open_again(pending, pending.message.attempt)
            return
        if not pending.message.rerunnable:
            pending.worker = ""  # only its outcome may arrive, if its worker returns
            self._pump.queue_of(pending).orphaned(pending)
            return
        if await self._open_again(pending, pending.message.attempt + 1):
            pending.forget_epoch()

    async def _open_again(self, pending: PendingCall, attempt: int) -> bool:
        """Whether the call is still in the attempt that it was opened for."""
        if not self._admit_or_refuse(pending):
            return False
        now = time.monotonic()
        pending.in_attempt(attempt)
        message = pending.message
        opening = pending.opening(now, self._transport.server_time())
        _, (answer,) = await self._transport.publish(
            [msgspec.structs.replace(opening, wait=opening.deadline)],
            nonce=new_nonce(),
            queue=pending.queue,
            message=self._message(pending, attempt),
            give_up_at=now + _PATIENCE_SECONDS,
        )
        if not pending.is_open or pending.message is not message:
            return False
        pending.was_held = pending.was_held and answer.state is CallState.MOVED
        if answer.state in (CallState.NEW, CallState.ATTACHED):
            pending.is_attached = pending.is_attached or answer.state is CallState.ATTACHED
            self._sent_again(pending)
        else:
            self._take_what_is_known(pending, answer)
        return True

    async def _fetch_unreported_outcomes(self, calls: Iterable[PendingCall]) -> None:
        """Look up outcomes that were not reported to this dispatcher, a few calls per survey.

        A dispatcher misses a reply if too many were to be notified or its lease had expired.
        """
        long_ago = time.monotonic() - _POLL_SECONDS
        asked = [p for p in calls if p.is_open and p.queue and _may_be_untold(p, long_ago)]
        self._asked_from %= max(1, len(asked))
        group = (asked[self._asked_from :] + asked[: self._asked_from])[:_ASKED_AT_ONCE]
        self._asked_from += len(group)
        if not group:
            return
        for outcome in await self._transport.outcomes([pending.key for pending in group]):
            if outcome is not None:
                self._calls.settled(outcome)

    def _note(self, survey: Survey, leases: Collection[WorkerLease], now: float) -> None:
        was_watched = self._leases.since != _NEVER
        self._leases.look(
            leases, now, clock_jumped=survey.clock_jumped, subscribed=survey.subscribed
        )
        if survey.epoch != self._epoch or not was_watched:
            self._epoch, self._epoch_since = survey.epoch, now
            self._leases.since = now
            self.queue_watch.forget()
        self.queue_watch.look(survey.depths or {}, leases, now)

    def _is_lost(self, pending: PendingCall, now: float) -> bool:
        """Whether a call is given up as lost.

        A call that must not run again waits longer for its worker: a late outcome is better than an
        early `unknown`. The worker of an exclusive call ends it by its lease, so that a closed
        channel does not shorten the wait.
        """
        patience, closed_patience = 0.0, 0.0
        if pending.spec.is_exclusive:  # its supervisor kills a worker that stands still
            stall = self._leases.longest_stall(pending.worker)
            patience = stall + self._settings.lease_ttl / 2
            closed_patience = _NEVER
        if not pending.message.rerunnable:
            is_long = pending.in_background or pending.spec.background
            once = self._settings.worker_return_timeout
            patience = once * (6 if is_long else 1)
            closed_patience = max(closed_patience, once if is_long else min(once, _RETURN_SECONDS))
        return self._has_no_lease(pending, patience, closed_patience, now)

    def has_lost_its_worker(self, pending: PendingCall) -> bool:
        """Whether the worker that runs a call seems dead; it may still return."""
        closed_patience = _NEVER if pending.spec.is_exclusive else 0.0
        return self._has_no_lease(pending, 0.0, closed_patience, time.monotonic())

    def _has_no_lease(
        self, pending: PendingCall, patience: float, closed_patience: float, now: float
    ) -> bool:
        return bool(pending.worker) and self._leases.is_lost(
            pending.worker,
            known_since=pending.published_at,
            patience=patience,
            closed_patience=closed_patience,
            now=now,
        )

    @property
    def reported_epoch(self) -> str | None:
        """The server's epoch, if workers had a lease's time to report their calls in it."""
        since = max(self._epoch_since, self._leases.since)
        return self._epoch if time.monotonic() - since > self._settings.lease_ttl else None

    def _had_time(self, pending: PendingCall) -> bool:
        """Whether a worker that runs an orphaned call had time to report it in the current epoch.

        False if a start was reported: the server may have lost the claim, and the worker may be
        dead.
        """
        return pending.stage is Stage.ORPHANED and self.reported_epoch is not None

    def _is_overdue(self, pending: PendingCall, survey: Survey, now: float) -> bool:
        """Whether to check a call now.

        After a change of the epoch, no worker starts the call until this dispatcher reports that it
        still waits for it.
        """
        sent_before = pending.published_at < self._epoch_since
        if sent_before and pending.epoch != survey.epoch:
            return True
        return self.queue_watch.is_overdue(
            pending.queue,
            published_at=pending.published_at,
            republished=pending.republished,
            depths_known=survey.depths is not None,
            now=now,
        )

    def _step(self, pending: PendingCall, worker: str, now: float) -> RecoveryRequest:
        attempt = pending.message.attempt
        lost = failure(Code.WORKER_LOST, "", Executed.UNKNOWN, attempt=attempt, worker=worker)
        is_denied = self._calls.denial(pending) is not None  # then it ends as lost
        return RecoveryRequest(
            key=pending.key,
            nonce=new_nonce(),
            lost_worker=worker,
            attempt=attempt,
            wait=max(0.001, pending.deadline - now),
            message=self._message(pending, attempt),
            next_message=b"" if is_denied else self._message(pending, attempt + 1),
            keep=pending.keep,
            had_time=self._had_time(pending),
            epoch=pending.epoch,
            lost=self._envelope.encode_reply(Settled(key=pending.key, outcome=lost)),
        )

    def _message(self, pending: PendingCall, attempt: int) -> bytes:
        """A message for this call alone: the call may have crashed the worker of its batch."""
        call = msgspec.structs.replace(pending.message, attempt=attempt)
        server_now = self._transport.server_time()
        batch = Batch(
            id=new_nonce(),
            reply=self._transport.reply,
            calls=(call,),
            tenant=self._settings.tenant,
            sent_at=server_now,
            ends_at=server_now + pending.deadline - time.monotonic(),
        )
        return self._envelope.encode_batch(batch)


def _may_be_untold(pending: PendingCall, long_ago: float) -> bool:
    if pending.is_attached or pending.in_background:  # another dispatcher may have cancelled it
        return True
    was_published = pending.stage in (Stage.RUNNING, Stage.QUEUED, Stage.ORPHANED)
    return was_published and pending.published_at < long_ago
