"""Runs claimed calls on one event loop: slot, claim, run, outcome."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Protocol

import msgspec

from toolpool.contract import logs
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.envelope import Batch, CallMessage
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import (
    LIMITED,
    STALE,
    STARTED_OR_ENDED,
    Claim,
    ClaimRenewal,
    WorkerLedger,
)
from toolpool.contract.ledger.rate_counters import ENTERED_WITHIN_SECONDS
from toolpool.contract.outcome import Executed, Outcome
from toolpool.contract.rates import Limit
from toolpool.contract.spec import RunIn
from toolpool.workers.running.admission import Admission
from toolpool.workers.running.call_runner import CallRunner
from toolpool.workers.running.claimed_call import (
    ClaimedCall,
    Delivery,
    EarlyCancels,
    StartedAttempts,
)
from toolpool.workers.running.limit_notices import LimitNotices
from toolpool.workers.running.message_reader import MessageReader
from toolpool.workers.running.output import Completion
from toolpool.workers.running.settler import Settler
from toolpool.workers.running.slots import Slots
from toolpool.workers.tool_loading import Catalog
from toolpool.workers.worker_observer import WorkerObservers

log = logs.logger("executor")

_CLAIM_PATIENCE_SECONDS = 30.0
_STOP_PATIENCE_SECONDS = 2.0
_OVERDUE_SECONDS = 0.25
_REPLY_MARGIN_SECONDS = 0.25
_DRAIN_LOOK_SECONDS = 0.25
_WAITS_SECONDS = 0.5
"""How long a call that was claimed ahead waits for a child process until it is given back."""
_FRESH = 5 / 8
"""The largest age of the confirmed lease when user code starts, as a share of `lease_ttl`."""
_EXCLUSIVE_STOP = 6 / 8
"""The age of the lease at which exclusive calls are stopped, as a share of `lease_ttl`."""
_LARGE_CALL_BYTES = 1 << 14
"""If the calls of a message are larger on average, each starts in a turn of the loop of its own:
typing arguments of 1 MB takes up to a tenth of a second.
"""
_AWAY, _FAILED = "away", "failed"
_Waiting = tuple[CallMessage, Delivery]


class Lease(Protocol):
    """The worker's lease."""

    @property
    def renewed_at(self) -> float:
        """When it was last confirmed, on the monotonic clock."""
        ...

    @property
    def is_confirmed(self) -> bool:
        """Whether it was confirmed since dispatchers may have thought the worker dead."""
        ...


@dataclass(frozen=True, slots=True)
class _UnlimitedLease:
    renewed_at: float = math.inf
    is_confirmed: bool = True


_UNLIMITED = _UnlimitedLease()
"""The lease before the worker has one: it does not read messages yet."""


class Executor:
    """Claims calls as slots become free, so that no worker hoards calls it cannot start."""

    def __init__(
        self,
        *,
        worker: str,
        catalog: Catalog,
        runner: CallRunner,
        ledger: WorkerLedger,
        settler: Settler,
        message_reader: MessageReader,
        slots: Slots,
        admission: Admission,
        limit_notices: LimitNotices,
        observers: WorkerObservers,
        lease_ttl: float = 8.0,
    ) -> None:
        self._worker = worker
        self._catalog = catalog
        self._runner = runner
        self._ledger = ledger
        self._settler = settler
        self._message_reader = message_reader
        self._slots = slots
        self._admission = admission
        self._limit_notices = limit_notices
        self._observers = observers
        self._fresh_seconds = lease_ttl * _FRESH
        self._exclusive_stop_seconds = lease_ttl * _EXCLUSIVE_STOP
        self._waiting: dict[RunIn, deque[_Waiting]] = {run_in: deque() for run_in in slots.counts}
        self._running: dict[str, ClaimedCall] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Ended runs that are freeing their places before they are settled."""
        self._cancels = EarlyCancels()
        self._claiming = BackgroundTasks()
        self._draining = False
        self._entered = StartedAttempts()
        self._large_starts = asyncio.Lock()
        self._grace_began_at = float("inf")
        """When a drain with a limited grace period began."""
        self.lease: Lease = _UNLIMITED

    @property
    def oldest(self) -> float:
        """When the oldest running tool was entered, by the monotonic clock; now if none runs."""
        begun = (running.begun_at for running in self._running.values())
        return min((at for at in begun if at is not None), default=time.monotonic())

    @property
    def running(self) -> int:
        """The number of claimed calls that have not ended."""
        return len(self._running)

    @property
    def is_leaving(self) -> bool:
        """Whether it drains for good, without the successor that a recycled worker has."""
        return self._draining and self._grace_began_at < float("inf")

    def receive(self, data: bytes, acknowledge: Callable[[], None]) -> None:
        """Accept a message.

        `acknowledge` is called exactly once, even if the message is dropped.
        """
        batch = self._message_reader.read(data)
        if batch is None or not batch.calls:
            acknowledge()
            return
        delivery = Delivery(batch, len(batch.calls), acknowledge, len(data))
        for call in batch.calls:
            self._enqueue(call, delivery)
        self.claim_more()

    def _enqueue(self, call: CallMessage, delivery: Delivery) -> None:
        if not self._admission.can_run(call):
            self._settler.unclaimed(delivery.batch, call)
            self._observers.run("unclaimed", call)
            delivery.decided()
            return
        spec = self._catalog.tools[call.tool].spec
        if call.rerunnable and call.digest != spec.digest and not spec.rerunnable:
            call = msgspec.structs.replace(call, rerunnable=False)  # withdrawn by a newer release
        run_in = spec.run_in
        if run_in not in self._waiting:
            run_in = next(iter(self._waiting))
        self._waiting[run_in].append((call, delivery))

    def cancel(self, key: str) -> None:
        """Cancel a call, or remember the cancel for a while if the call does not run here yet."""
        running = self._running.get(key)
        if running is None:
            self._cancels.note(key)
        elif not running.has_ended:
            self._request_stop(running)

    def _request_stop(self, running: ClaimedCall) -> None:
        self._slots.mark_stopping(running)
        if running.task is not None and running.is_under_way:  # else its task would not start
            running.task.cancel()

    def report_again(self) -> None:
        """Renew the claims of running calls and settle recent calls again.

        The server may have lost both. Dispatchers wait one lease before they consider a call
        unclaimed.
        """
        self._settler.send_again()
        self._limit_notices.send_again()
        self._claiming.start(self._renew_claims())

    async def _renew_claims(self) -> None:
        renewals = [
            ClaimRenewal(
                running.call.key,
                running.call.attempt,
                running.claim_nonce,
                running.call.rerunnable and not self._is_exclusive(running),
            )
            for running in self._running.values()
            if not running.answered
        ]
        if not renewals:
            return
        try:
            give_up_at = time.monotonic() + _CLAIM_PATIENCE_SECONDS
            answers = await self._ledger.renew(renewals, worker=self._worker, give_up_at=give_up_at)
        except Exception as error:  # noqa: BLE001 - logged; the outcomes are still settled
            log.error("claims_not_renewed calls=%d: %s", len(renewals), error)
        else:
            log.warning("claims_renewed calls=%d of=%d", answers.count("renewed"), len(renewals))

    async def drain(self, grace: float, *, recycling: bool = False) -> None:
        """Claim nothing more, let running calls end, and give up on them after `grace` seconds.

        Calls that may run again are released for another worker; all others end as lost. A worker
        that is `recycling` waits for its calls without a limit, except for calls that were told to
        stop and did not within `grace` seconds. Another drain without `recycling` ends the wait.
        """
        self._draining = True
        self._slots.close()
        if not recycling:
            self._grace_began_at = min(self._grace_began_at, time.monotonic())
        await self._claiming.wait(grace)
        while (give_up_at := self._grace_began_at + grace) > time.monotonic() and (
            left := self._may_still_end(grace if recycling else float("inf"))
        ):
            patience = min(_DRAIN_LOOK_SECONDS, give_up_at - time.monotonic())
            await asyncio.wait(left, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            self.answer_overdue()
        self._give_up("the worker was stopped", list(self._running.values()))
        late = [running.task for running in self._running.values() if running.task]
        if late:
            await asyncio.wait(late, timeout=_STOP_PATIENCE_SECONDS)
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=_STOP_PATIENCE_SECONDS)
        await self._settler.flush()

    def _may_still_end(self, grace: float) -> list[asyncio.Task[None]]:
        """Runs that were not told to stop, or were told less than `grace` seconds ago."""
        long_ago = time.monotonic() - grace
        return [
            running.task
            for running in self._running.values()
            if running.task
            and (running.stop_requested_at is None or running.stop_requested_at > long_ago)
        ]

    def end_exclusive_without_lease(self) -> None:
        """Stop exclusive calls that others may consider lost; call it regularly.

        Other calls continue and are settled when the server is back.
        """
        if time.monotonic() - self.lease.renewed_at <= self._exclusive_stop_seconds:
            return
        exclusive = [r for r in self._running.values() if not r.answered and self._is_exclusive(r)]
        if exclusive:
            log.error("lease_lost calls=%d: stopping exclusive calls", len(exclusive))
            self._give_up("its worker lost its lease", exclusive)

    def _is_exclusive(self, running: ClaimedCall) -> bool:
        tool = self._catalog.tools.get(running.call.tool)
        return tool is not None and tool.spec.is_exclusive

    def _give_up(self, reason: str, calls: Iterable[ClaimedCall]) -> None:
        for running in calls:
            if running.answered or running.given_up:
                continue
            if not running.begun:
                running.given_up = True
            elif not running.has_ended:  # else only its output is still being stored
                running.answered = True
                if running.call.rerunnable:
                    self._release(running.call, running.batch, running.claim_nonce, entered=True)
                else:
                    self._settle(running, self._runner.outcomes.lost(running.call, reason))
            self._request_stop(running)

    def _release(self, call: CallMessage, batch: Batch, nonce: str, *, entered: bool) -> None:
        """Give a call back, so that another worker starts its next attempt."""
        self._settler.cancel_start_notice(batch, call.key)
        self._settler.release(
            call,
            claim_nonce=nonce,
            too_often=self._runner.outcomes.released_too_often(call),
            entered=entered,
        )
        self._observers.run("released", call)

    def _settle(self, running: ClaimedCall, outcome: Outcome, *, busy: bool = False) -> None:
        self._settler.settle(running.batch, running.call, outcome, busy=busy)
        self._observers.ended(running.call, outcome, running.seconds, running.facts)

    def _refuse(self, batch: Batch, call: CallMessage, outcome: Outcome) -> None:
        """Answer a claimed call that is not started here."""
        self._settler.settle(batch, call, outcome)
        self._observers.ended(call, outcome, 0.0)

    def answer_overdue(self) -> None:
        """Answer calls whose tool runs past its timeout; call it regularly."""
        now = time.monotonic()
        for running in self._running.values():
            if now <= running.overdue_at or running.answered:
                continue
            if running.begun:
                running.answered = True
                log.error("tool_still_running tool=%s", running.call.tool)
                self._settle(running, self._runner.outcomes.not_stoppable(running.call))
                self._request_stop(running)
            elif running.stop_requested_at is None:  # not begun: `_run` answers once it has stopped
                self._request_stop(running)

    def give_back_waiting(self) -> None:
        """Give back calls that were claimed ahead of runs that take long; call it regularly.

        Other workers may run them, and until then nothing says that they may have run. Each call is
        given back once at most, since a call that no worker starts is ended.
        """
        excess = self._slots.ahead
        if excess <= 0:  # each has a slot of its own, and waits for a secret or a new process
            return
        now = time.monotonic()
        of_processes = [r for r in self._running.values() if r.run_in is RunIn.PROCESS]
        waiting = [
            running
            for running in of_processes
            if not (running.begun or running.given_up or running.answered)
            and running.call.rerunnable
            and running.call.attempt == 1
            and now - running.claimed_at > _WAITS_SECONDS
        ]
        if not waiting:
            return
        for running in of_processes:
            if running.begun_at is not None:
                self._slots.runs(now - running.begun_at)
        self._give_up("its process runs another call", waiting[-excess:])

    def claim_more(self) -> None:
        """Claim waiting calls; call it regularly, for when the lease is fresh again."""
        if self._draining:
            return
        for run_in, waiting in self._waiting.items():
            if not waiting or not self.is_leased:
                continue
            count = self._claimable(run_in, waiting)
            if count > 0:
                self._slots.take(run_in, count)
                chosen = [waiting.popleft() for _ in range(count)]
                self._claiming.start(self._claim(run_in, chosen))

    def _claimable(self, run_in: RunIn, waiting: deque[_Waiting]) -> int:
        """How many of the waiting calls to claim now."""
        count = min(self._slots.claimable(run_in), len(waiting))
        if run_in is not RunIn.PROCESS:
            return count
        calls = (call for call, _ in islice(waiting, max(count, 0)))
        if any(map(self._admission.is_limited, calls)):
            # A place is held only for a limited time before its call starts, so no call under a
            # limit is claimed ahead.
            return min(count, self._slots.claimable(run_in, ahead=False))
        many = self._slots.claimable(run_in, rerunnable=True)
        short = takewhile(self._may_wait, islice(waiting, max(many, 0)))
        return max(count, sum(1 for _ in short))

    def _may_wait(self, waiting: _Waiting) -> bool:
        """Whether a call may be claimed with many others: it may run twice, and has no limit."""
        return waiting[0].rerunnable and not self._admission.is_limited(waiting[0])

    @property
    def is_leased(self) -> bool:
        """Whether the lease was confirmed recently enough for user code to start."""
        return (
            time.monotonic() - self.lease.renewed_at < self._fresh_seconds
            and self.lease.is_confirmed
        )

    async def _claim(self, run_in: RunIn, chosen: list[_Waiting]) -> None:
        if self._admission.switches.on:
            chosen = await self._not_denied(run_in, chosen)
        while chosen:
            claims, is_limited = self._claims(chosen)
            asked_at = time.monotonic()
            try:
                answers = await self._ledger.claim(
                    claims,
                    worker=self._worker,
                    give_up_at=asked_at + _CLAIM_PATIENCE_SECONDS,
                    switches=self._admission.switches.version,
                    now=self._admission.server_time() if is_limited else 0.0,
                )
                self._slots.claimed(time.monotonic() - asked_at)
            except ServerUnavailable:
                log.error("claim_unconfirmed calls=%d: the server is unreachable", len(chosen))
                answers = [_AWAY] * len(chosen)
            except Exception:
                log.exception("claim_failed calls=%d", len(chosen))
                answers = [_FAILED] * len(chosen)
            is_leased = self.is_leased  # the process may have been frozen meanwhile
            stale: list[_Waiting] = []
            for (call, delivery), claim, answer in zip(chosen, claims, answers, strict=True):
                if answer == STALE:
                    stale.append((call, delivery))
                    continue
                if answer == LIMITED:
                    self._pass_on(run_in, call, delivery, limits=claim.limits)
                    continue
                time_left = self._admitted(call, delivery.batch, claim, answer, is_leased=is_leased)
                if time_left is None:
                    self._not_run(run_in, claim)
                else:
                    enter_by = asked_at + ENTERED_WITHIN_SECONDS if claim.limits else math.inf
                    self._start(run_in, call, delivery, claim, time_left, enter_by)
                delivery.decided()
            if chosen := stale:
                await self._admission.follow_switches()
                chosen = await self._not_denied(run_in, chosen)
        self.claim_more()

    def _claims(self, chosen: list[_Waiting]) -> tuple[list[Claim], bool]:
        """The claims of calls, and whether any is under a limit."""
        claims: list[Claim] = []
        is_limited = False
        for call, delivery in chosen:
            limits = self._admission.limits(call, delivery.batch.tenant)
            is_limited = is_limited or bool(limits)
            claims.append(
                Claim(
                    call.key,
                    call.attempt,
                    new_nonce(),
                    limits,
                    rerunnable=call.rerunnable,
                    approved=call.approval is not None,
                )
            )
        return claims, is_limited

    def _not_run(self, run_in: RunIn, claim: Claim) -> None:
        """Drop a call that was claimed, or may have been claimed, and is not started here."""
        self._slots.give_back(run_in)
        if claim.limits:
            self._limit_notices.never_begun(claim.key, claim.nonce, claim.limits)

    async def _not_denied(self, run_in: RunIn, chosen: list[_Waiting]) -> list[_Waiting]:
        """The calls that no switch denies; the others are passed to their dispatchers."""
        if not any(map(self._is_switched_off, chosen)):
            return chosen
        await self._admission.follow_switches()  # the switch may have been removed
        allowed: list[_Waiting] = []
        for call, delivery in chosen:
            if self._is_switched_off((call, delivery)):
                self._pass_on(run_in, call, delivery, reason="switch")
            else:
                allowed.append((call, delivery))
        return allowed

    def _pass_on(
        self,
        run_in: RunIn,
        call: CallMessage,
        delivery: Delivery,
        *,
        reason: str = "",
        limits: tuple[Limit, ...] = (),
    ) -> None:
        """Pass a call back to its dispatcher, which waits until it can be started."""
        self._settler.unclaimed(delivery.batch, call, reason, limits)
        self._observers.run("unclaimed", call)
        self._slots.give_back(run_in)
        delivery.decided()

    def _is_switched_off(self, waiting: _Waiting) -> bool:
        call, delivery = waiting
        return self._admission.is_switched_off(call, delivery.batch.tenant)

    def _admitted(
        self, call: CallMessage, batch: Batch, claim: Claim, answer: str | float, *, is_leased: bool
    ) -> float | None:
        """The seconds left for a call that may start; None for a call that is ended here."""
        if isinstance(answer, str):
            if answer == STARTED_OR_ENDED:
                log.error("call_started_before call=%s tool=%s", call.id, call.tool)
            log.debug("claim_refused call=%s reason=%s", call.id, answer)
            if answer in (_AWAY, _FAILED):  # it may have been claimed nevertheless, and was not run
                self._release(call, batch, claim.nonce, entered=False)
        elif not is_leased or self._draining or call.tool not in self._catalog.tools:
            self._release(call, batch, claim.nonce, entered=False)
        elif self._cancels.take(call.key):
            # The outcome comes too late for an answer, but says that nothing runs any more.
            self._refuse(batch, call, self._runner.outcomes.never_started(call))
        elif self._entered.again(call):
            log.error("call_started_before call=%s tool=%s", call.id, call.tool)
            self._refuse(batch, call, self._runner.outcomes.started_before(call))
        else:
            return answer
        return None

    def _start(
        self,
        run_in: RunIn,
        call: CallMessage,
        delivery: Delivery,
        claim: Claim,
        time_left: float,
        enter_by: float,
    ) -> None:
        self._settler.started(delivery.batch, call.key)
        now = time.monotonic()
        running = self._running[call.key] = ClaimedCall(
            run_in,
            call,
            delivery.batch,
            delivery.size,
            claim.nonce,
            claim.limits,
            deadline=now + time_left,
            enter_by=enter_by,
            overdue_at=now + time_left + _OVERDUE_SECONDS,
            claimed_at=now,
        )
        running.task = asyncio.get_running_loop().create_task(self._run(running))

    async def _run(self, running: ClaimedCall) -> None:
        call, busy_until = running.call, None
        running.is_under_way = True
        try:
            run = await self._run_call(running)
            outcome, busy_until = run.outcome, run.busy_until
            if run.whole is not None:
                outcome = await self._keep_whole(running, outcome, run.whole)
        except asyncio.CancelledError:
            outcome = self._runner.outcomes.cancelled(call)
        except GeneratorExit:
            raise
        except BaseException as error:  # every call must be answered
            log.exception("run_failed call=%s", call.id)
            outcome = self._runner.outcomes.failed(call, error)
        if self._running.get(call.key) is running:  # else it was released and claimed again
            del self._running[call.key]
        if running.limits and busy_until is None and running.task is not None:
            self._ending.add(running.task)  # a drain waits for it
            await self._free_places(running, is_unrun=outcome.executed is Executed.NO)
            self._ending.discard(running.task)
        if running.given_up and not running.begun and not running.answered:
            self._release(call, running.batch, running.claim_nonce, entered=False)
        elif not running.answered:
            self._settle(running, outcome, busy=bool(self._waiting[running.run_in]))
        if busy_until is not None:
            self._slots.mark_stopping(running)
            await busy_until
            if running.limits:
                await self._free_places(running)
        if running.answered or busy_until is not None:  # a later call may wait for this end
            self._settler.ended(running.batch.reply, [call.key])
        self._slots.ended(running)
        self.claim_more()

    async def _free_places(self, running: ClaimedCall, *, is_unrun: bool = False) -> None:
        key, nonce, limits = running.call.key, running.claim_nonce, running.limits
        if running.begun and (running.has_entered or not is_unrun):
            await self._limit_notices.ended(key, nonce, limits)
        else:
            self._limit_notices.never_begun(key, nonce, limits)

    async def _run_call(self, running: ClaimedCall) -> Completion:
        if running.stop_requested_at is not None:  # stopped before its first step
            return Completion(self._runner.outcomes.never_started(running.call))
        if running.message_bytes > _LARGE_CALL_BYTES * len(running.batch.calls):
            try:
                async with self._large_starts:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                return Completion(self._runner.outcomes.never_started(running.call))
            if not self.is_leased:  # others took long
                running.given_up = True
                return Completion(self._runner.outcomes.never_started(running.call))
        return await self._runner.run(
            running.call,
            running.deadline - time.monotonic(),
            partial(self._settler.progress, running.batch, running.call.key),
            partial(self._fell_silent, running),
            partial(self._has_begun, running),
            partial(self._has_entered, running) if running.limits else None,
            enter_by=running.enter_by,
            tenant=running.batch.tenant,
        )

    def _has_begun(self, running: ClaimedCall) -> None:
        """The tool is entered, or sent to a child process: its timeout begins."""
        is_first = running.begun_at is None
        running.begun_at = time.monotonic()
        ends_at = min(running.begun_at + running.call.timeout, running.deadline)
        running.overdue_at = ends_at + _OVERDUE_SECONDS
        # if not the first, an earlier child process was lost before it entered the tool
        if is_first and self._observers.listeners["started"]:
            now = self._message_reader.server_time()
            running.facts = self._observers.started(
                running.call, running.batch, running.message_bytes, now
            )

    def _has_entered(self, running: ClaimedCall) -> None:
        """The tool is entered: its place under each rate limit is held for one window from now."""
        running.has_entered = True
        self._limit_notices.begun(running.call.key, running.claim_nonce, running.limits)

    def _fell_silent(self, running: ClaimedCall) -> None:
        """The tool was cancelled for silence: answer soon even if it does not stop."""
        soon = time.monotonic() + _OVERDUE_SECONDS
        running.overdue_at = min(running.overdue_at, soon)

    async def _keep_whole(self, running: ClaimedCall, outcome: Outcome, whole: str) -> Outcome:
        """Store the whole output. The outcome stays known even if that fails."""
        running.has_ended = True
        running.overdue_at = running.deadline
        try:
            return await self._settler.keep_whole(
                running.batch,
                running.call,
                outcome,
                whole,
                within=running.deadline - time.monotonic() - _REPLY_MARGIN_SECONDS,
            )
        except asyncio.CancelledError:  # the worker stops and does not wait for the thread
            return outcome
