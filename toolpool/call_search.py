"""Finds calls, by asking the running dispatchers and reading what the server stores."""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.envelope import BackgroundCall, Envelope, Question, WorkerLease
from toolpool.contract.errors import MessageRejected
from toolpool.contract.event_entries import EventBatch
from toolpool.contract.fleet_clock import fleet_time
from toolpool.contract.ledger.lua_scripts import REPLY_STREAM_MS
from toolpool.contract.operator_messages import (
    Answer,
    CallStatus,
    DispatcherReport,
    answer_stream,
)
from toolpool.contract.outcome import Code
from toolpool.contract.redis_keys import RedisKeys, retry_key, root_of
from toolpool.contract.result import State
from toolpool.contract.server.connection import keyring
from toolpool.contract.settings import Settings
from toolpool.fleet_reader import Fleet, answering, int_of, read_fleet, text_of

_ANSWER_SECONDS = 3.0
_CANCEL_SECONDS = 10.0
_BLOCK_MS = 500
_ENTRIES_AT_MOST = 5_000
"""How many published events are searched for an ended call."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The open calls that dispatchers reported, and the dispatchers that did not answer in time."""

    calls: list[tuple[DispatcherReport, CallStatus]] = field(default_factory=list)
    silent: list[DispatcherReport] = field(default_factory=list)
    more: int = 0


def ask(
    settings: Settings,
    dispatchers: Sequence[DispatcherReport],
    *,
    call: str | None = None,
    key: str | None = None,
    session: str | None = None,
    cancel: bool = False,
) -> Answers:
    """Ask dispatchers for the open calls with this id, record key or session.

    With `cancel`, each dispatcher ends its calls before it answers. Raises `BrokerUnreachable`.
    """
    names, envelope = RedisKeys(settings.key_prefix), Envelope(keyring(settings))
    patience = _CANCEL_SECONDS if cancel else _ANSWER_SECONDS
    found = Answers()
    missing = {report.id: report for report in dispatchers}
    with answering(settings) as client:
        question = Question(
            id=secrets.token_hex(16),
            ends_at=fleet_time(client, settings) + patience,
            call=call,
            key=key,
            session=session,
            cancel=cancel,
        )
        pipeline = client.pipeline(transaction=False)
        for id_ in missing:
            pipeline.xadd(names.reply(id_), {"b": envelope.encode_reply(question)})
            pipeline.pexpire(names.reply(id_), REPLY_STREAM_MS)
        pipeline.execute()
        stream, last, give_up_at = answer_stream(names, question), b"0", time.monotonic() + patience
        while missing and time.monotonic() < give_up_at:
            for _, entries in client.xread({stream: last}, block=_BLOCK_MS) or ():
                last = entries[-1][0]
                for _, fields in entries:
                    with suppress(MessageRejected, KeyError):
                        answer = envelope.decode(Answer, fields[b"b"])
                        if answer.question != question.id:
                            continue  # a copy of an old answer
                        report = missing.pop(answer.dispatcher)
                        calls = [(report, status) for status in answer.calls]
                        found = Answers([*found.calls, *calls], more=found.more + answer.more)
        client.delete(stream)
    return Answers(found.calls, list(missing.values()), found.more)


_ENDED = (State.COMPLETED, State.FAILED)
_OF_EVENTS = {"end": State.COMPLETED, "error": State.FAILED, "rejected": State.FAILED}


class Finder:
    """Finds calls by call id, handle or session. Methods raise `BrokerUnreachable`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = RedisKeys(settings.key_prefix)
        self._envelope = Envelope(keyring(settings))
        self.fleet: Fleet = read_fleet(settings)
        self._leases = {lease.id: lease for lease in self.fleet.workers}
        self.silent: list[DispatcherReport] = []
        self.more = 0

    def handed_over(self, handle: str) -> BackgroundCall | None:
        """The call behind a handle of this tenant; None if the handle is unknown or expired."""
        with answering(self._settings) as client:
            return self._read(handle, client.get(self._names.background(handle)))

    def find(self, target: str) -> list[dict[str, Any]]:
        """Every matching call, open or known to have ended, as plain data for programs."""
        background = self.handed_over(target)
        if background is not None:
            found = self._asked(key=background.message.key)
            return [row | {"handle": target} for row in found] or [self._recorded(background)]
        found = self.calls(target) + self._asked(session=target)
        known = {row["key"] for row in found}
        handed = [self._recorded(call) for call in self._of_session(target)]
        found += [row for row in handed if root_of(row["key"]) not in map(root_of, known)]
        return found or self._published(target)

    def calls(self, id_: str) -> list[dict[str, Any]]:
        """The open calls with this id, as plain data for programs."""
        return self._asked(call=id_)

    def cancel(self, row: Mapping[str, Any]) -> CallStatus | None:
        """Have the dispatchers with this open call end it. Returns None if none confirmed the end.

        `row` is one of `calls`. A call that waits for others of its turn has no key, and is found
        by its id and session.
        """
        named = {"call": row["call"], "session": row["session"]}
        what = {"key": row["key"]} if row["key"] else named
        answers = ask(self._settings, self.fleet.dispatchers, cancel=True, **what)
        told = [status for _, status in answers.calls]
        return min(told, key=lambda status: status.cancelled != Code.CANCELLED, default=None)

    def _asked(self, **what: Any) -> list[dict[str, Any]]:
        answers = ask(self._settings, self.fleet.dispatchers, **what)
        self.silent = answers.silent
        self.more += answers.more
        rows: dict[str, dict[str, Any]] = {}
        for number, (report, status) in enumerate(answers.calls):
            # Several dispatchers may have a call open. A call that is not accepted yet has no
            # key.
            rows.setdefault(root_of(status.key) or f".{number}", self._described(report, status))
        return list(rows.values())

    def _described(self, report: DispatcherReport, status: CallStatus) -> dict[str, Any]:
        return {
            "call": status.call,
            "tool": status.tool,
            "session": status.session,
            "turn": status.turn,
            "key": status.key,
            "state": status.state,
            "why": self._why(status),
            "waits_for": status.waits_for or None,
            "age": status.age,
            "start_within": status.start_within,
            "deadline_in": status.deadline_in,
            "attempt": status.attempt,
            "retry": status.retry,
            "queue": status.queue or None,
            "worker": status.worker or None,
            "background": status.background,
            "approval": status.approval or None,
            "dispatcher": report.id,
            "host": report.host,
        }

    def _why(self, status: CallStatus) -> str:
        """Why an open call is not finished, in a sentence."""
        match status.waits_for:
            case "turn":
                return "it waits for a write before it in its turn, or for the policy to decide"
            case "approval":
                return f"it waits for a person: `toolpool approvals show {status.approval}`"
            case "rate_limit":
                return "it waits for a place under a rate limit; `toolpool status` shows them"
            case "retry":
                return "it failed and waits for its retry"
            case "concurrency":
                return f"{status.tool} has reached its `concurrency` limit"
            case "session_limit":
                return "its session has reached TOOLPOOL_IN_FLIGHT_PER_SESSION calls in flight"
            case "server":
                return "it is being sent: the server has not confirmed it yet"
            case "workers" | "slot":
                return self._why_not_started(status.queue)
        if not status.queue:
            return "its dispatcher answers it itself"
        lease = self._leases.get(status.worker)
        if lease is None:
            return (
                f"worker {status.worker or '(unknown)'} had it and has no lease: the call goes to "
                "another or is answered as lost within seconds, by its deadline at the latest"
            )
        return f"it runs on worker {lease.id} (pid {lease.pid} on {lease.host})"

    def _why_not_started(self, queue: str) -> str:
        leases = self._serving(queue)
        if not leases:
            return f"no worker takes from queue {queue}"
        free = sum(lease.free.get(queue, lease.slots.get(queue, 0)) for lease in leases)
        many = "1 worker" if len(leases) == 1 else f"{len(leases)} workers"
        where = f"queue {queue} ({many}, {free} slots free)"
        return f"it waits for a worker's slot in {where}"

    def _serving(self, queue: str) -> list[WorkerLease]:
        """The workers of a queue, or of a toolset's own queue beside it."""
        return [
            lease
            for lease in self.fleet.workers
            if any(queue == name or queue.startswith(f"{name}.") for name in lease.slots)
        ]

    def _of_session(self, session: str) -> list[BackgroundCall]:
        """The background calls of a session whose handles are stored."""
        owner = encoding.digest([self._settings.tenant, session])
        with answering(self._settings) as client:
            handles = [text_of(raw) for raw in client.zrange(self._names.handles(owner), -100, -1)]
            bodies = client.mget(list(map(self._names.background, handles))) if handles else []
        calls = [self._read(handle, body) for handle, body in zip(handles, bodies, strict=True)]
        return [call for call in calls if call is not None and call.session == session]

    def _read(self, handle: str, body: bytes | None) -> BackgroundCall | None:
        with suppress(MessageRejected):
            call = self._envelope.decode(BackgroundCall, body) if body is not None else None
            if call is not None and (call.handle, call.tenant) == (handle, self._settings.tenant):
                return call
        return None

    def _recorded(self, call: BackgroundCall) -> dict[str, Any]:
        """A background call that no dispatcher has open, from its record."""
        message, root = call.message, root_of(call.message.key)
        keys = [retry_key(root, number) for number in range(message.retries + 1)]
        with answering(self._settings) as client:
            now = fleet_time(client, self._settings)
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                names = ("state", "attempt", "worker", "until", "deadline", "outcome")
                pipeline.hmget(self._names.call(key), names)
            records = pipeline.execute()
        last = max((n for n, record in enumerate(records) if record[0]), default=0)
        state, attempt, named, _, ends_at, outcome = records[last]
        worker, deadline = text_of(named), int_of(ends_at)
        code = self._code(outcome)
        known = {
            "waiting": State.WAITING,
            "approved": State.PENDING,
            "open": State.QUEUED,
            "claimed": State.RUNNING,
            "settled": State.COMPLETED if code == "ok" else State.FAILED,
        }
        lost: str = "EXPIRED"
        if call.approval and call.deadline > now:
            lost = State.WAITING
        elif call.started_at + self._settings.queue_timeout > now:
            lost = State.PENDING
        shown = str(known.get(text_of(state), lost))
        return {
            "call": message.id,
            "tool": message.tool,
            "session": message.session,
            "turn": message.turn,
            "key": keys[last],
            "handle": call.handle,
            "state": shown,
            "why": self._why_recorded(shown, code, worker, call.queue),
            "code": code,
            "age": round(max(0.0, now - call.started_at), 1),
            "deadline_in": round(deadline / 1000 - now, 1) if deadline else None,
            "attempt": int_of(attempt) or 1,
            "retry": last,
            "queue": call.queue,
            "worker": (worker or None) if shown == "RUNNING" else None,
            "background": True,
            "approval": call.approval or None,
            "dispatcher": None,
        }

    def _code(self, outcome: bytes | None) -> str | None:
        """How a settled call ended: `ok` or its code."""
        with suppress(MessageRejected):
            if outcome:
                reply = self._envelope.decode_reply(outcome)
                said = getattr(reply, "outcome", None)
                return None if said is None else str(said.code or "ok")
        return None

    def _why_recorded(self, state: str, code: str | None, worker: str, queue: str) -> str:
        if state in _ENDED:
            return f"it has ended: {code or 'its outcome cannot be read'}"
        if state == "EXPIRED":
            return "its record is gone: it ended, and its result has expired"
        if state == State.WAITING:
            return "it waits for a person: see `toolpool approvals list`"
        nobody = "no running dispatcher has it open: it resumes when its handle is asked for"
        if state == "QUEUED":
            return f"{self._why_not_started(queue)}; {nobody}"
        if state == State.PENDING:
            return f"its dispatcher has not sent it; {nobody}"
        lease = self._leases.get(worker)
        has = "runs it" if lease is not None else "had it and has no lease"
        return f"worker {worker} {has}; {nobody}"

    def _published(self, target: str) -> list[dict[str, Any]]:
        """The last stored event of each matching call."""
        last: dict[tuple[str | None, str | None, str], dict[str, Any]] = {}
        with answering(self._settings) as client:
            entries = client.xrevrange(self._names.events, count=_ENTRIES_AT_MOST)
        for _, fields in entries:
            try:
                batch = self._envelope.decode(EventBatch, fields.get(b"b", b""))
            except MessageRejected:
                continue
            for note in reversed(batch.notes):
                if target not in (note.call_id, note.session) or not note.call_id:
                    continue
                if note.kind == "audit":  # the entry lacks the turn
                    continue
                seen = (note.session, note.turn, note.call_id)
                detail = note.detail or {}
                code = str(detail.get("code") or ("ok" if note.kind == "end" else note.kind))
                last.setdefault(
                    seen,
                    {
                        "call": note.call_id,
                        "tool": note.tool,
                        "session": note.session,
                        "turn": note.turn,
                        "key": "",
                        "state": _OF_EVENTS.get(note.kind, "?"),
                        "why": f"the last event of it is `{note.kind}`: {code}",
                        "code": code,
                        "at": note.at / 1000,
                        "dispatcher": None,
                    },
                )
        return list(last.values())
