"""Lets equal reads share a run, or a recent result, if their tool allows it.

Each call keeps its own id, deadline and answer. The run that answers equal calls is one more call
in flight, without a caller of its own. The ledger decides for the whole fleet which run that is. If
the ledger cannot be reached, only calls of this dispatcher share a run.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from toolpool.contract import logs
from toolpool.contract.envelope import Settled
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.shared_runs import SharedRunAnswer
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.dispatcher.calls import pending_factory
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.calls.shared_run import KEPT_SECONDS, SharedRun
from toolpool.dispatcher.outcomes import left_to_others, not_queued
from toolpool.dispatcher.transports.base import NOTED

log = logs.logger("run_sharing")

_ASK_SECONDS = 1.0
_GROUP = 128
_LATE_SECONDS = 1.5
"""How many seconds after its deadline a shared run is answered at the latest."""
_LEAST_WAIT_SECONDS = 0.2
_RETRY_AFTER_SECONDS = 1.0
_CLOCKS_APART_SECONDS = 2.0
"""How many seconds a worker's fleet time may be ahead of this dispatcher's."""
_NOT_TRIED = frozenset({Code.EXPIRED, Code.CANCELLED, Code.OVERLOADED})
"""Codes of runs that ended because of one caller. Others that still have time get a new run."""


class Runs(Calls, Protocol):
    """The calls of one dispatcher, and the runs that they share."""

    def root(self, key: str) -> PendingCall | None:
        """The open call that this record belongs to."""
        ...

    def send_run(self, run: PendingCall) -> None:
        """Send a shared run."""
        ...

    def send_alone(self, pending: PendingCall) -> None:
        """Send a call that shares no run."""
        ...

    async def leave(self, calls: Sequence[PendingCall]) -> None:
        """End calls unless another dispatcher waits for them."""
        ...


class RunSharing:
    """Joins the calls of one dispatcher to shared runs."""

    def __init__(self, services: Services, calls: Runs) -> None:
        self._transport = services.transport
        self._ledger = services.transport.shared
        self._envelope = services.envelope
        self._settings = services.settings
        self._observers = services.observers
        self._calls = calls
        self._joinable: dict[str, SharedRun] = {}
        self._anew: dict[str, SharedRun] = {}
        """The shared runs of this event-loop iteration that must not reuse an older result."""
        self._gathered: list[SharedRun] = []
        self._submitted: list[tuple[PendingCall, str, bool]] = []
        """Calls that may have a record of their own, with their digests and `anew`."""
        self._askers = 0
        self._is_closed = False

    def close(self) -> None:
        """Stop asking for runs; the owner of the open calls answers them."""
        self._is_closed = True

    def submit(self, asker: PendingCall, digest: str, *, anew: bool) -> None:
        """Have an accepted call answered by a run of equal calls, or by its own."""
        if (headers := self._observers.trace(asker)) is not None:
            asker.traced(headers)
        self._observers.call("accepted", asker)
        if not asker.may_be_known:
            self._share(asker, digest, anew)
            return
        self._submitted.append((asker, digest, anew))
        if len(self._submitted) == 1:
            asyncio.get_running_loop().call_soon(self._look_up_submitted)

    def _look_up_submitted(self) -> None:
        submitted, self._submitted = self._submitted, []
        for start in range(0, len(submitted), _GROUP):
            self._calls.in_background(self._look_up(submitted[start : start + _GROUP]))

    async def _look_up(self, submitted: Sequence[tuple[PendingCall, str, bool]]) -> None:
        """Share the runs of calls that have no record of their own.

        A call that needed approval or was cancelled already has a record. That record decides, so
        the call is sent alone. The others get a mark: without it, nobody could know that they ran.
        """
        states: Sequence[str | None]
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                now = time.monotonic()
                last = max(asker.deadline for asker, *_ in submitted) - now
                keep = max(0.0, last) + self._settings.result_ttl
                states = await self._transport.note_shared([a.key for a, *_ in submitted], keep)
        except Exception as error:  # noqa: BLE001 - whatever it was, each goes by its own record
            log.warning("records_not_looked_up calls=%d: %s", len(submitted), error)
            states = ["unknown"] * len(submitted)
        for (asker, digest, anew), state in zip(submitted, states, strict=True):
            if not asker.is_open or asker.is_abandoned or self._is_closed:
                continue  # it is being ended by its own record
            if state in (None, NOTED):
                asker.may_have_run = state == NOTED
                self._share(asker, digest, anew)
            else:
                self._calls.send_alone(asker)

    def _share(self, asker: PendingCall, digest: str, anew: bool) -> None:
        share = (self._anew if anew else self._joinable).get(digest)
        if share is None or not share.takes(asker):
            share = SharedRun(digest, anew=anew)
            self._gather(share)
        self._askers += 1
        self._add(share, asker)
        if self._askers > self._settings.waiting_per_dispatcher:
            full = not_queued(Code.OVERLOADED, retry_after=_RETRY_AFTER_SECONDS)
            self._answer(asker, full)

    def leave(self, calls: Collection[PendingCall]) -> list[PendingCall]:
        """Detach calls from their runs.

        Returns the calls to end: those that share no run, and runs that nobody needs.
        """
        rest = [p for p in calls if p.share is None or (p.is_run and not p.share.askers)]
        leaving: defaultdict[SharedRun, list[PendingCall]] = defaultdict(list)
        for asker in calls:
            if asker.shares_run and asker.is_open and asker.share is not None:
                leaving[asker.share].append(asker)
        for share, askers in leaving.items():
            is_last = len(askers) == len(share.askers)
            if is_last and share.run is not None and share.run.is_open:
                self._join_no_more(share)
                rest.append(share.run)  # its sharers get the outcome
                continue
            executed = Executed.NO if is_last else Executed.UNKNOWN
            for asker in askers:
                self._answer(asker, failure(Code.CANCELLED, "", executed))
        return rest

    def over(self, pending: PendingCall) -> None:
        """Record that a sharing call, or a shared run, has its answer."""
        share = pending.share
        if share is None:
            return
        if pending.is_run:
            self._ended(share, pending)
        elif pending in share.askers:
            self._askers -= 1
            share.remove(pending)
            if not share.askers:
                self._join_no_more(share)

    def _ended(self, share: SharedRun, run: PendingCall) -> None:
        """Answer the sharers of a run with its outcome, or find another run for them."""
        outcome = run.outcome
        assert outcome is not None
        is_wanted = not share.is_over and not self._is_closed
        self._join_no_more(share)
        if not share.askers:
            return
        if not outcome.ok and is_wanted and share.was_over(run):
            self._again(share, run)
            return
        patient = self._later_sharers(share, run, outcome) if is_wanted else []
        for asker in list(share.askers):
            if asker not in patient:
                self._tell(asker, run, outcome)
        if patient:
            for asker in patient:
                asker.attempt_ended(outcome)
            self._again(share, run)

    def _later_sharers(
        self, share: SharedRun, run: PendingCall, outcome: Outcome
    ) -> list[PendingCall]:
        """The sharers that need another run, because this one was not started or was refused for a
        reason of another caller.
        """
        if outcome.code not in _NOT_TRIED or outcome.executed is Executed.YES:
            return []
        since = time.monotonic() + _LEAST_WAIT_SECONDS
        if outcome.code is Code.EXPIRED:
            since = max(since, run.start_by)
        patient = [asker for asker in share.askers if asker.start_by > since]
        if outcome.code is Code.OVERLOADED:  # another session may have room
            patient = [a for a in patient if a.flow != run.flow and not share.was_refused]
            share.was_refused = True
        return patient

    def _tell(self, asker: PendingCall, run: PendingCall, outcome: Outcome) -> None:
        """Answer a call with the outcome of its run."""
        share = run.share
        assert share is not None
        if share.is_joined or run.reported_as != asker.root:
            asker.shared("joined")
            is_own_session = asker.message.session == run.message.session and not share.is_joined
            if outcome.output is not None and not (asker.spec.injected or is_own_session):
                # The full output, like its handle, belongs to another session.
                outcome = msgspec.structs.replace(outcome, output=None)
        asker.follow_run(run)
        self._answer(asker, outcome)

    def _answer(self, asker: PendingCall, outcome: Outcome) -> None:
        if asker.may_have_run and outcome.executed is Executed.NO:
            outcome = msgspec.structs.replace(outcome, executed=Executed.UNKNOWN)
        self._calls.resolve(asker, outcome)

    def _gather(self, share: SharedRun) -> None:
        self._joinable[share.digest] = share
        if share.anew:
            self._anew[share.digest] = share
        self._gathered.append(share)
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._ask_gathered)

    def _join_no_more(self, share: SharedRun) -> None:
        share.is_over = True
        for known in (self._joinable, self._anew):
            if known.get(share.digest) is share:
                del known[share.digest]

    def _again(self, share: SharedRun, run: PendingCall) -> None:
        if share.askers and not self._is_closed:
            share.again(unless=run.root)
            self._gather(share)

    def _ask_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._anew.clear()
        for start in range(0, len(gathered), _GROUP):
            self._calls.in_background(self._ask(gathered[start : start + _GROUP]))

    async def _ask(self, shares: Sequence[SharedRun]) -> None:
        shares = [share for share in shares if share.askers]
        if not shares:
            return
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                answers = await self._ledger.ask([share.asks() for share in shares])
        except Exception as error:  # noqa: BLE001 - whatever it was, the calls run all the same
            log.warning("shared_runs_not_looked_up runs=%d: %s", len(shares), error)
            answers = [SharedRunAnswer(share.key, is_new=True) for share in shares]
        for share, found in zip(shares, answers, strict=True):
            if share.askers and not self._is_closed:
                self._apply_answer(share, found)

    def _apply_answer(self, share: SharedRun, found: SharedRunAnswer) -> None:
        if found.is_new or not found.key.startswith(share.digest):  # the note may be forged
            self._begin(share, share.key, is_joined=False)
            return
        if found.outcome:
            reply = self._reusable(found, share)
            if reply is not None:
                self._join_no_more(share)
                age = max(0.0, self._transport.server_time() - reply.at)
                for asker in list(share.askers):
                    asker.shared("cached", age)
                    self._answer(asker, reply.outcome)
                return
        elif (known := self._calls.root(found.key)) is None:
            self._begin(share, found.key, is_joined=True)
            return
        elif (open_share := known.share) is not None and not open_share.is_over:
            self._merge(share, open_share)
            return
        # the found run failed here, is too old, or is being cancelled
        share.again(unless=found.key)
        self._gather(share)

    def _reusable(self, found: SharedRunAnswer, share: SharedRun) -> Settled | None:
        """The cached result if other calls may get it: a complete success that is not too old.

        Its age is computed from its signed time, because the server's own data may be forged.
        """
        try:
            reply = self._envelope.decode_settled(found.key, found.outcome)
        except MessageRejected as error:
            log.warning("kept_result_rejected reason=%s: %s", error.reason, error)
            return None
        if reply is None:
            return None
        age = self._transport.server_time() - reply.at
        is_fresh = -_CLOCKS_APART_SECONDS < age < next(iter(share.askers)).spec.cached_for
        is_whole = reply.outcome.ok and not reply.outcome.output_bytes
        return reply if is_fresh and is_whole else None

    def _begin(self, share: SharedRun, key: str, *, is_joined: bool) -> None:
        askers = list(share.askers)
        keep = askers[0].spec.cached_for + KEPT_SECONDS
        run = pending_factory.shared_by(askers, key, keep=keep)
        share.begins(run, is_joined=is_joined)
        self._calls.send_run(run)

    def _merge(self, share: SharedRun, into: SharedRun) -> None:
        """Merge into the sharers of the same run in this dispatcher."""
        self._join_no_more(share)
        for asker in list(share.askers):
            share.remove(asker)
            self._add(into, asker)
        self._joinable.setdefault(into.digest, into)

    def _add(self, share: SharedRun, asker: PendingCall) -> None:
        share.add(asker, self._timer(asker, asker.deadline - time.monotonic()))
        if (run := share.run) is not None and run.stage is Stage.RUNNING:
            self._observers.call("started", asker, run.worker)

    def _timer(self, asker: PendingCall, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, seconds), self._is_due, asker)

    def _is_due(self, asker: PendingCall) -> None:
        """End the wait of a sharing call at its own deadline."""
        share = asker.share
        if not asker.is_open or share is None:
            return
        run, now = share.run, time.monotonic()
        if run is not None and run.is_open:
            is_answered_soon = (
                run.deadline <= asker.deadline + pending_factory.ANSWER_MARGIN_SECONDS / 10
            )
            if is_answered_soon and now < asker.deadline + _LATE_SECONDS:
                share.remove(asker)
                share.add(asker, self._timer(asker, _LATE_SECONDS))
                return
        started = run is not None and run.stage is Stage.RUNNING
        self._answer(asker, left_to_others(started=started))
        if not share.askers and run is not None and run.is_open:
            self._calls.in_background(self._calls.leave([run]))
