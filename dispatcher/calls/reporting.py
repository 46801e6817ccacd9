"""A dispatcher's report for operators, and its answers to their requests about calls.

The report is sent with the survey of the server once a second, and requests come on the reply
stream, so neither costs a call anything.
"""

import os
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from toolpool.contract import logs
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import Question
from toolpool.contract.operator_messages import (
    Answer,
    CallStatus,
    DispatcherReport,
    EndedCalls,
    WaitingCalls,
    answer_stream,
)
from toolpool.contract.outcome import Outcome
from toolpool.contract.redis_keys import RedisKeys, root_of
from toolpool.contract.result import State
from toolpool.contract.version import VERSION
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.services import Calls, Services

log = logs.logger("reporting")

_ANSWERED_AT_MOST = 100
_WAITS_AT_MOST = 50
_SHARE_OF_TIME, _CHEAP_SECONDS = 100, 0.002
_MINUTES = 60
_ROWS_AT_MOST = 100
"""The limit on listed counts, about 8 KB of a report."""


class RecentlyEnded:
    """Counts of the calls that ended in the last hour, by minute, tool and code; oldest dropped."""

    def __init__(self) -> None:
        self._minutes: OrderedDict[int, dict[str, tuple[int, Counter[str]]]] = OrderedDict()
        self.since = 0.0
        """Calls that ended before this time may be missing."""

    def add(
        self, ended: Mapping[str, int], failed: Mapping[tuple[str, str], int], now: float
    ) -> None:
        """Add the calls that ended since the last time; `now` is fleet time."""
        tools = self._minutes.setdefault(int(now // 60), {}) if ended else {}
        for tool, count in ended.items():
            calls, codes = tools.get(tool, (0, Counter()))
            tools[tool] = calls + count, codes
        for (tool, code), count in failed.items():
            tools[tool][1][code] += count
        while self._minutes and self._is_too_much(now):
            minute, _ = self._minutes.popitem(last=False)
            self.since = (minute + 1) * 60.0

    def _is_too_much(self, now: float) -> bool:
        is_old = next(iter(self._minutes)) <= now // 60 - _MINUTES
        return is_old or (
            len(self._minutes) > 1 and sum(map(len, self._minutes.values())) > _ROWS_AT_MOST
        )

    def rows(self) -> list[EndedCalls]:
        """The counts, oldest minute first; within a minute the tools with most failures."""
        return [
            EndedCalls(minute=minute, tool=tool, calls=calls, failures=dict(codes))
            for minute, tools in self._minutes.items()
            for tool, (calls, codes) in sorted(tools.items(), key=lambda row: -row[1][1].total())[
                :_ROWS_AT_MOST
            ]
        ]


class UnsentCall(NamedTuple):
    """A call that is not accepted yet, or that its provider runs if a person approves it.

    `began` is on the monotonic clock. `end` cancels the call and returns its outcome; None if it
    did not end.
    """

    call: ToolCall
    session: str | None
    began: float
    end: Callable[[], Awaitable[Outcome | None]]
    waits_for: str = "turn"
    key: str = ""
    """The key of its record, if it has one."""


class Reporter:
    """Builds one dispatcher's reports about itself and its open calls."""

    def __init__(
        self,
        services: Services,
        calls: Calls,
        *,
        pump: Pump,
        breaker: Breaker,
        cancel: Callable[[Sequence[PendingCall]], Awaitable[None]],
    ) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._observers = services.observers
        self._names = RedisKeys(services.settings.key_prefix)
        self._calls = calls
        self._pump = pump
        self._breaker = breaker
        self._cancel = cancel
        self.unsent_calls: Callable[[], Iterable[UnsentCall]] = lambda: ()
        """Calls that wait for others of their turn or for a policy, or that providers run."""
        self.handed_out: Callable[[str | None], str | None] = lambda _: None
        """Returns the key of the record of a handle's call, for handles returned here."""
        self.policy: Callable[[], str] = lambda: ""
        """The digest of the policy that decides about calls; empty if there is none."""
        self._ended = RecentlyEnded()
        self._last_report = b""
        self._report_at = 0.0
        self._began = time.monotonic()
        self._about = DispatcherReport(
            id=services.transport.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            tenant=services.settings.tenant,
            started_at=0.0,
        )

    def report(self) -> bytes:
        """The signed report.

        The previous one is repeated if a new one would cost more than 1 % of the time.
        """
        started = time.perf_counter()
        if started >= self._report_at:
            self._last_report = self._new_report()
            took = time.perf_counter() - started
            self._report_at = started + (_SHARE_OF_TIME * took if took > _CHEAP_SECONDS else 0.0)
        return self._last_report

    def _new_report(self) -> bytes:
        now, server_now = time.monotonic(), self._transport.server_time()
        self._ended.add(*self._observers.take_ended(), server_now)
        started_at = server_now - (now - self._began)
        waits: dict[tuple[str, str], list[float]] = {}  # count, and when the oldest began
        running = opened = 0
        for pending in self._calls.all_open():
            if pending.is_run:
                continue
            opened += 1
            waits_for = self._waits_for(pending)
            if not waits_for:
                running += 1
                continue
            count = waits.setdefault((pending.call.name, waits_for), [0, pending.began])
            count[0] += 1
        for unsent in self.unsent_calls():
            opened += 1
            waits.setdefault((unsent.call.name, unsent.waits_for), [0, unsent.began])[0] += 1
        waiting = [
            WaitingCalls(
                tool=tool, waits_for=why, count=int(count), oldest=round(max(0.0, now - since), 1)
            )
            for (tool, why), (count, since) in waits.items()
        ]
        waiting.sort(key=lambda each: -each.oldest)
        told = msgspec.structs.replace(
            self._about,
            started_at=started_at,
            open=opened,
            running=running,
            waiting=waiting[:_WAITS_AT_MOST],
            circuits={tool: round(left, 1) for tool, left in self._breaker.open_circuits().items()},
            ended=self._ended.rows(),
            ended_since=max(started_at, self._ended.since),
            refuses_new_calls=self._transport.is_full,
            policy=self.policy(),
        )
        return self._envelope.encode(told)

    async def answer(self, question: Question) -> None:
        """Report which open calls match, after cancelling them if requested. Never raises.

        A replayed request is not answered and cancels nothing.
        """
        if question.ends_at < self._transport.server_time():
            return
        try:
            key = question.key or self.handed_out(question.call)
            question = msgspec.structs.replace(question, key=key)
            found = [p for p in self._calls.all_open() if not p.is_run and _is_meant(p, question)]
            unsent_calls = [
                unsent for unsent in self.unsent_calls() if _is_asked_about(unsent, question)
            ]
            calls = found[:_ANSWERED_AT_MOST]
            ended: list[Outcome | None] = [None] * len(unsent_calls)
            if question.cancel:
                self._audit([(p.call, p.message.session) for p in found])
                await self._cancel(found)
                self._audit([(unsent.call, unsent.session) for unsent in unsent_calls])
                ended = [await unsent.end() for unsent in unsent_calls]
            answer = Answer(
                question=question.id,
                dispatcher=self._transport.id,
                calls=[
                    *map(self._status, calls),
                    *map(_status_of, unsent_calls[:_ANSWERED_AT_MOST], ended),
                ],
                more=len(found) - len(calls) + len(unsent_calls[_ANSWERED_AT_MOST:]),
            )
            body = self._envelope.encode(answer)
            await self._transport.send_reply(answer_stream(self._names, question), body)
        except Exception as error:  # noqa: BLE001 - whoever asks hears nothing, and says so
            log.warning("question_not_answered: %s", str(error) or type(error).__name__)

    def _audit(self, cancelled: Iterable[tuple[ToolCall, str | None]]) -> None:
        for call, session in cancelled:
            self._observers.audited(
                "cancelled", tool=call.name, call_id=call.id, session=session, by="an operator"
            )

    def _status(self, pending: PendingCall) -> CallStatus:
        message, outcome, now = pending.message, pending.outcome, time.monotonic()
        run = _run_of(pending)
        waits_for = self._waits_for(pending) if pending.is_open else ""
        return CallStatus(
            call=pending.call.id,
            tool=pending.call.name,
            key=pending.key,
            state=pending.state.value,
            age=round(now - pending.began, 1),
            deadline_in=round(pending.deadline - now, 1),
            session=message.session,
            turn=message.turn,
            queue=pending.queue,
            waits_for=waits_for,
            start_within=round(pending.start_by - now, 1) if waits_for else None,
            attempt=message.attempt,
            retry=pending.retries,
            worker=run.worker,
            background=pending.in_background,
            approval=pending.approval,
            cancelled=str(outcome.code or "ok") if outcome is not None else "",
            executed=str(outcome.executed) if outcome is not None else "",
        )

    def _waits_for(self, pending: PendingCall) -> str:
        """What the call waits for, as in `WaitingCalls`; empty if it runs."""
        if pending.awaits_approval:
            return "approval"
        pending = _run_of(pending)
        stage = pending.stage
        if stage is Stage.RUNNING or not pending.queue:
            return ""
        if stage is Stage.QUEUED or stage is Stage.ORPHANED:
            return "slot"
        if stage is Stage.PUBLISHING:
            return "server"
        if stage is Stage.WAITING:
            return self._pump.queue_of(pending).blocked_by(pending)
        return "rate_limit" if pending.limited is not None and pending.limited.waits else "retry"


def _run_of(pending: PendingCall) -> PendingCall:
    """The run that answers a call: a shared one, or its own."""
    share = pending.share
    return share.run if share is not None and share.run is not None else pending


def _is_meant(pending: PendingCall, question: Question) -> bool:
    if question.key is not None:
        return root_of(question.key) == pending.root
    return _is_named(pending.call, pending.message.session, question)


def _is_asked_about(unsent: UnsentCall, question: Question) -> bool:
    if question.key is not None:
        return root_of(question.key) == unsent.key
    return _is_named(unsent.call, unsent.session, question)


def _is_named(call: ToolCall, session: str | None, question: Question) -> bool:
    if question.call is None and question.session is None:
        return False
    is_call = question.call is None or question.call in (call.id, call.long_id)
    return is_call and question.session in (None, session)


def _status_of(unsent: UnsentCall, outcome: Outcome | None) -> CallStatus:
    return CallStatus(
        call=unsent.call.id,
        tool=unsent.call.name,
        key=unsent.key,
        state=(State.WAITING if unsent.waits_for == "approval" else State.PENDING).value,
        age=round(time.monotonic() - unsent.began, 1),
        session=unsent.session,
        waits_for=unsent.waits_for,
        approval=unsent.key if unsent.waits_for == "approval" else "",
        cancelled=str(outcome.code or "ok") if outcome is not None else "",
        executed=str(outcome.executed) if outcome is not None else "",
    )
