"""Runs the accepted calls of turns in order: reads side by side, a declared write alone."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code, Outcome
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.admission.validate import Accepted
from toolpool.dispatcher.approval_waits import ApprovalWaits
from toolpool.dispatcher.background import Background
from toolpool.dispatcher.calls import call_identity, pending_factory
from toolpool.dispatcher.calls.countdown_latch import CountdownLatch, Waiter
from toolpool.dispatcher.calls.in_flight import InFlightCalls
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.reporting import UnsentCall
from toolpool.dispatcher.outcomes import forgotten, left_to_others, not_queued
from toolpool.dispatcher.policy.decision import Judgement
from toolpool.dispatcher.results import OwnEnd, Results
from toolpool.dispatcher.turn_options import TurnOptions

T = TypeVar("T")

Judged = Mapping[int, Judgement]
"""The policy's judgement of each call that it was asked about, by index."""

_ENDED_BY_A_CANCEL = (Code.CANCELLED, Code.QUEUE_UNREACHABLE, Code.WORKER_LOST)
"""The codes of a cancelled call. The last two mean that its end is unconfirmed."""

Answered = tuple[ToolResult, bool]
"""A result, and whether it is new.

It is not new if the call had it before it was dispatched again.
"""


def stages(
    calls: Sequence[T], effects: Callable[[T], Effects | None], *, strict: bool = False
) -> list[list[T]]:
    """Groups that run one after another; the calls of a group run together.

    A write waits for the calls before it, and those after it wait for the write. `strict`: if there
    is a write, every call waits for the one before it.
    """
    if strict and Effects.WRITE in map(effects, calls):
        return [[call] for call in calls]
    groups: list[list[T]] = []
    open_group: list[T] | None = None
    for call in calls:
        if effects(call) is Effects.WRITE:
            groups.append([call])
            open_group = None
        elif open_group is None:
            open_group = [call]
            groups.append(open_group)
        else:
            open_group.append(call)
    return groups


class Turn(msgspec.Struct, eq=False):
    """A running turn, with what is needed to cancel its calls."""

    calls: Sequence[ToolCall]
    options: TurnOptions
    refusal: Outcome | None = None
    """Why none of its calls may be sent."""
    first_answered: int | None = None
    """The index of the first call whose answer the host has; None if it has none."""
    passed: set[int] = msgspec.field(default_factory=set)
    """The indexes of calls that were rejected or sent."""
    accepted: dict[int, Accepted] = msgspec.field(default_factory=dict)
    """The valid calls, by index."""
    cancelled: dict[int, PendingCall | None] = msgspec.field(default_factory=dict)
    """Calls that were cancelled before they were sent, by index; None if none was opened yet."""
    answered: Sequence[PendingCall] = ()
    """The calls of the most recent stage."""
    rejected: dict[int, ToolResult] = msgspec.field(default_factory=dict)
    """The results of calls that were not accepted, by index."""
    sent: dict[int, PendingCall] = msgspec.field(default_factory=dict)
    """The accepted calls that were sent or answered, by index."""

    def unsent(self, call_id: str | None = None) -> dict[int, ToolCall]:
        """The calls that were not sent yet, by index; with an id, only calls with this id."""
        return {
            call.index: call
            for call in self.calls
            if call.index not in self.passed and call_id in (None, call.provider_id)
        }

    @property
    def is_cancelled(self) -> bool:
        """Whether all unsent calls are cancelled."""
        return self.cancelled.keys() >= self.unsent().keys()


class OrderedTurns:
    """Runs any number of turns concurrently."""

    def __init__(
        self,
        in_flight: InFlightCalls,
        background: Background,
        approval_waits: ApprovalWaits,
        settings: Settings,
        results: Results,
    ) -> None:
        self._approval_waits = approval_waits
        self._in_flight = in_flight
        self._background = background
        self._settings = settings
        self._results = results
        self.running: set[Turn] = set()
        """The turns whose calls can be cancelled before they are sent."""
        self._is_closed = False

    def run(
        self,
        turn: Turn,
        accepted: Sequence[Accepted],
        since: float,
        judged: Judged,
    ) -> Coroutine[Any, Any, dict[int, Answered]]:
        """A result for each call, by its index. The first calls' deadlines count from `since`."""
        is_strict = self._settings.turn_order == "strict"
        groups = [list(accepted)]
        if len(accepted) != 1:
            groups = stages(accepted, lambda item: item[1].spec.effects, strict=is_strict)
        if turn.refusal is not None:
            groups = groups and [list(accepted)]  # no call is sent, so none waits for another
        if len(groups) != 1 or turn.cancelled or turn.refusal is not None:
            return self._run_in_order(turn, groups, since, judged)
        self.running.discard(turn)  # no call waits for another, and all can be cancelled
        pendings: list[PendingCall] = []
        answered = turn.first_answered
        for call, offer in accepted:
            judgement = judged.get(call.index)
            is_behind = answered is not None and call.index > answered
            pending = self._submit(
                call, offer.spec, turn.options, since, judgement, is_behind=is_behind
            )
            turn.sent[call.index] = pending
            pendings.append(pending)
        return self._await(accepted, pendings, turn.options, since)

    async def cancel_all(self, session: str | None, call_id: str | None) -> int:
        """Cancel open calls and calls that wait in their turn; return how many ended."""
        calls = [
            pending
            for pending in self._in_flight.all_open()
            if not pending.is_run  # its sharers are cancelled one by one
            and (session is None or pending.message.session == session)
            and call_id in (None, pending.call.provider_id)
        ]
        turns = [turn for turn in self.running if session in (None, turn.options.session)]
        ahead = [(turn, [*turn.unsent(call_id)]) for turn in turns]
        for turn, indexes in ahead:  # before anything is awaited: none of them starts now
            turn.cancelled = dict.fromkeys(indexes) | turn.cancelled
        await asyncio.gather(
            self._in_flight.cancel(calls),
            *(self._cancel_ahead(turn, indexes) for turn, indexes in ahead if indexes),
        )
        ended = [p.outcome for p in calls if p.outcome is not None]
        by_itself = sum(o.ok or o.code not in _ENDED_BY_A_CANCEL for o in ended)
        return len(ended) - by_itself + sum(len(indexes) for _, indexes in ahead)

    def unsent_calls(self) -> Iterator[UnsentCall]:
        """The calls that wait for others of their turn, or for a policy."""
        for turn in self.running:
            for index, call in turn.unsent().items():
                end = functools.partial(self._cancelled_ahead, turn, index)
                key = self._key_of(turn, index)
                yield UnsentCall(call, turn.options.session, turn.options.began, end, key=key)

    def _key_of(self, turn: Turn, index: int) -> str:
        """The key of the record that an unsent call will have; empty if not known yet."""
        options = turn.options
        if not options.is_named or index not in turn.accepted:
            return ""
        call, offer = turn.accepted[index]
        is_own = offer.spec.secrets is not msgspec.UNSET
        user = call_identity.user_of(options) if is_own else None
        return call_identity.key_of(call, options, self._settings, user)

    def close(self) -> None:
        """Send no call that waits for others of its turn, or for a policy.

        Other dispatchers that also dispatched these calls go on.
        """
        self._is_closed = True
        for turn in self.running:
            turn.cancelled = dict.fromkeys(turn.unsent()) | turn.cancelled
            self._release(turn)

    async def _cancelled_ahead(self, turn: Turn, index: int) -> Outcome | None:
        """Cancel one unsent call; its outcome, None if that is not confirmed yet.

        A call that is not accepted yet has no record. Such a call is cancelled when the turn
        reaches it.
        """
        await self._cancel_ahead(turn, [index])
        pending = turn.cancelled.get(index)
        if pending is not None:
            return pending.outcome
        return not_queued(Code.CANCELLED) if index in turn.accepted else None

    async def _cancel_ahead(self, turn: Turn, indexes: Sequence[int]) -> None:
        """Cancel unsent calls for every dispatcher, since others may have dispatched them too."""
        for index in indexes:
            turn.cancelled.setdefault(index, None)
        self._release(turn)
        await self._end_cancelled(turn, indexes)

    def _release(self, turn: Turn) -> None:
        if turn.is_cancelled:  # nothing is left to hold
            self._in_flight.ended(pending.key for pending in turn.answered)

    async def _end_cancelled(self, turn: Turn, indexes: Sequence[int]) -> None:
        """End the records of cancelled calls, as far as they are valid."""
        ended: list[PendingCall] = []
        for index in indexes:
            if turn.cancelled[index] is None and index in turn.accepted:
                call, offer = turn.accepted[index]
                if not task_tools.is_own(offer.spec):
                    pending = self._in_flight.open_unsent(call, offer.spec, turn.options)
                    turn.cancelled[index] = pending
                    ended.append(pending)
        await self._in_flight.cancel(ended)

    async def _run_in_order(
        self,
        turn: Turn,
        groups: Sequence[Sequence[Accepted]],
        since: float,
        judged: Judged,
    ) -> dict[int, Answered]:
        results: dict[int, Answered] = {}
        unseen: str | None = None
        options = turn.options
        if turn.cancelled and not self._is_closed:
            await self._end_cancelled(turn, list(turn.cancelled))
        for group in groups:
            if options.again and group is not groups[0]:
                await self._in_flight.wait_for_records([call for call, _ in group], options)
            is_behind = group is not groups[0]
            pendings = [
                self._submit_in_order(turn, accepted, since, judged, is_behind=is_behind)
                for accepted in group
            ]
            turn.sent |= {call.index: p for (call, _), p in zip(group, pendings, strict=True)}
            results |= await self._await(group, pendings, options, since, unseen)
            turn.answered = pendings
            if group is not groups[-1] and not turn.is_cancelled:
                unseen = await self._end_of(pendings, options.began)
            since = time.monotonic()
        return results

    def _submit_in_order(
        self, turn: Turn, accepted: Accepted, since: float, judged: Judged, *, is_behind: bool
    ) -> PendingCall:
        call, offer = accepted
        turn.passed.add(call.index)
        if (cancelled := turn.cancelled.get(call.index)) is not None:
            return cancelled
        judgement, answered = judged.get(call.index), turn.first_answered
        is_behind = is_behind or (answered is not None and call.index > answered)
        if call.index in turn.cancelled:
            judgement = Judgement(call, not_queued(Code.CANCELLED))
        elif turn.refusal is not None:
            judgement = Judgement(call, turn.refusal)
        return self._submit(call, offer.spec, turn.options, since, judgement, is_behind=is_behind)

    async def _end_of(self, pendings: Sequence[PendingCall], turn_began: float) -> str | None:
        """Wait for the end of a write that may still run; return its name if the end is unknown.

        The wait is at most two leases: by then a worker without a lease has stopped its tools. A
        write without a record cannot have started after this turn began, so its wait counts from
        there, and all such writes share one wait.
        """
        for pending in pendings:
            if pending.spec.effects is not Effects.WRITE:
                continue
            since = turn_began if pending.outcome == forgotten() else pending.answered_at
            if not await self._in_flight.late_writes.end_of(pending, since):
                return pending.call.name
        return None

    def _submit(
        self,
        call: ToolCall,
        spec: ToolSpec,
        options: TurnOptions,
        since: float,
        judgement: Judgement | None,
        *,
        is_behind: bool = False,
    ) -> PendingCall:
        """Send an accepted call, or answer it here if it may not run."""
        refusal = judgement.refusal if judgement is not None else None
        waits = judgement is not None and judgement.approval is not None
        refusal = refusal or self._in_flight.available.refusal(call, is_sent=not waits)
        if refusal is not None:
            return self._in_flight.answer(call, spec, options, since, refusal)
        if spec.name in task_tools.SPECS and task_tools.is_own(spec):
            work = self._background.answer(call, options)
            return self._in_flight.run_here(call, spec, options.session, work)
        if judgement is not None and judgement.approval is not None:
            approval, by = judgement.approval, judgement.by
            return self._approval_waits.ask(call, spec, options, since, approval, by)
        return self._in_flight.submit(call, spec, options, since, is_behind=is_behind)

    async def _await(
        self,
        group: Sequence[Accepted],
        pendings: Sequence[PendingCall],
        options: TurnOptions,
        since: float,
        unseen: str | None = None,
    ) -> dict[int, Answered]:
        """A result for each call, at the latest at the end of its wait budget, if it has one."""
        latches: set[Waiter] = {latch := CountdownLatch(pendings)}
        early: dict[str, ToolResult] = {}
        try:
            has_budget = options.wait is not None
            for (call, _), pending in zip(group, pendings, strict=True):
                if pending.call is not call or pending.spec.background or pending.approval:
                    has_budget = True  # the call may be answered before it ends
            while True:
                if has_budget:
                    early |= await self._answer_early(group, pendings, options, since, early)
                    if latch.was_interrupted():
                        continue
                    latch = CountdownLatch([p for p in pendings if p.root not in early])
                    latches.add(latch)
                await latch.all_answered()
                if not latch.left:
                    break
                has_budget = True  # one of them now needs a person's approval
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(pendings, latches))
            raise
        if early:
            self._in_flight.in_background(self._abandon(pendings, latches))
        answered: dict[int, Answered] = {}
        for (call, _), pending in zip(group, pendings, strict=True):
            result = early.get(pending.root) or self._results.result_of(
                pending, unseen, turn=options
            )
            answered[call.index] = result, pending.is_new_outcome and pending.call is call
        return answered

    async def _answer_early(
        self,
        group: Sequence[Accepted],
        pendings: Sequence[PendingCall],
        options: TurnOptions,
        since: float,
        told: Mapping[str, ToolResult],
    ) -> dict[str, ToolResult]:
        """Interim results, by root, of calls that still run and have no result in `told`.

        These are calls that outlive their wait budget, and joined calls with a later deadline.
        """
        waits: list[tuple[PendingCall, Coroutine[Any, Any, ToolResult | None]]] = []
        for (call, offer), pending in zip(group, pendings, strict=True):
            if not pending.queue or pending.root in told:
                continue
            has_joined = pending.call is not call  # the call was open before this turn
            wait = options.wait
            if wait is None and (pending.spec.background or pending.approval):
                wait = self._settings.background_wait
            if wait is not None:
                until = (since if has_joined else pending.began) + wait
                waits.append((pending, self._move_to_background(pending, until, options)))
            elif has_joined:
                queue_timeout = self._settings.queue_timeout
                until = pending_factory.deadline_of(
                    offer.spec, options, since=since, queue_timeout=queue_timeout
                )
                timeout = pending_factory.timeout_of(offer.spec, options)
                if until < pending.deadline:
                    waits.append((pending, self._give_up(pending, until, timeout, since)))
        if not waits:
            return {}
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for _, work in waits]
        answers = zip(waits, running, strict=True)
        return {p.root: answer for (p, _), task in answers if (answer := task.result()) is not None}

    async def _move_to_background(
        self, pending: PendingCall, until: float, options: TurnOptions
    ) -> ToolResult | None:
        await pending.wait(until - time.monotonic())
        if not pending.is_open:
            return None
        return await self._background.move_to_background(
            pending, asks=options.offers("task_result")
        )

    async def _give_up(
        self, pending: PendingCall, until: float, timeout: float, since: float
    ) -> ToolResult | None:
        await pending.wait(until - time.monotonic())
        if not pending.is_open:
            return None
        outcome = left_to_others(started=pending.stage is Stage.RUNNING)
        return self._results.result_of(pending, own_end=OwnEnd(outcome, timeout, since))

    async def _abandon(self, pendings: Sequence[PendingCall], latches: set[Waiter]) -> None:
        """Stop waiting for calls; those without another waiter are cancelled.

        A background call goes on even without waiters.
        """
        for pending in pendings:
            pending.latches[:] = [latch for latch in pending.latches if latch not in latches]
        left = [p for p in pendings if p.is_open and not p.latches and not p.in_background]
        await self._in_flight.leave(left)
