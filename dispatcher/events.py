"""What happens to calls, for whoever follows it: a side road, never in the way.

Two channels: `progress` is the life of each call, `monitor` what an operator watches. A moment is
published as one note; readers make the events of it, so that they cost the road little.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, cast

import msgspec

from toolpool.contract.event_entries import Note, Position
from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.dispatcher.messages import advice

Channel = Literal["progress", "monitor"]
CHANNELS: tuple[Channel, ...] = ("progress", "monitor")

Kind = Literal[
    "tool:start",
    "tool:progress",
    "tool:end",
    "tool:error",
    "error",
    "tool_executed",
    "monitor:loop",
    "monitor:rejections",
    "monitor:circuit",
    "monitor:switch",
    "monitor:audit",
    "monitor:hook",
    "gap",
]
State = Literal["RUNNING", "COMPLETED", "FAILED"]
_WITHOUT_EXECUTED = 2
"""How many events a failed call makes whose tool was not run for it."""
_SEVERE = frozenset({ErrorType.RUNTIME, ErrorType.EXCEPTION})


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `at` is Unix time in milliseconds, `source` the dispatcher that tells it.

    Those of a call have its snapshot: `call_id`, `tool`, `session`, `turn`, `attempt`, `retry` and,
    on the channel `progress`, its `state`. `detail` is of the kind: progress, or the error. Of the
    channel `monitor` are `error`, with `phase`, `severity` and `message`; `tool_executed`;
    `monitor:loop`, a call that the loop guard caught; `monitor:rejections`, a tool whose calls are
    rejected too often; `monitor:circuit`, a tool that is left alone, tried again or well again; and
    `monitor:switch`, a kill switch turned; `monitor:audit`, what a person, a rule, a hook or a host
    decided, with `what`, `by` and `reason`; `monitor:hook`, a hook, policy rule or webhook
    that failed, with `hook` and `why`. A `gap` is on both: what a follower missed.
    """

    bookmark: str
    kind: Kind
    channel: Channel | None = None
    at: int
    source: str = ""
    call_id: str | None = None
    tool: str = ""
    session: str | None = None
    turn: str | None = None
    attempt: int = 1
    retry: int = 0
    state: State | None = None
    phase: str | None = None
    severity: Literal["error", "warn"] | None = None
    message: str | None = None
    detail: dict[str, Any] | None = None


def events_of_error(executed: Executed) -> int:
    """How many events a failed call makes."""
    return 3 if executed is Executed.YES else 2


def events_of(note: Note, last: Position, source: str, *, after: Position) -> Iterator[Event]:
    """The events that a note stands for, as far as they come after a place.

    `last` is the place of its last one. A note of a later version is told as far as it is known.
    """
    if last <= after:
        return
    first = last.number - note.events + 1
    for number, (kind, channel, more) in enumerate(_told(note), first):
        if last.start == after.start and number <= after.number:
            continue
        yield Event(
            bookmark=Position(last.start, min(number, last.number)).bookmark,
            kind=kind,
            channel=channel,
            at=note.at,
            source=source,
            call_id=note.call_id,
            tool=note.tool,
            session=note.session,
            turn=note.turn,
            attempt=note.attempt,
            retry=note.retry,
            **more,
        )


_Told = tuple[Kind, Channel | None, dict[str, Any]]
_OF_THE_MONITOR = {"loop", "rejections", "circuit", "switch", "audit", "hook"}


def _told(note: Note) -> Iterator[_Told]:
    if note.starts:
        yield "tool:start", "progress", {"state": "RUNNING", "detail": None}
    yield from _told_last(note, note.events - note.starts)


def _told_last(note: Note, events: int) -> Iterable[_Told]:
    """All but the start that an end tells as well."""
    if note.kind == "start":
        return [("tool:start", "progress", {"state": "RUNNING", "detail": note.detail})]
    if note.kind == "progress":
        return [("tool:progress", "progress", {"state": "RUNNING", "detail": note.detail})]
    if note.kind == "end":
        end: _Told = ("tool:end", "progress", {"state": "COMPLETED", "detail": note.detail})
        return [end, ("tool_executed", "monitor", {"detail": note.detail})][:events]
    if note.kind == "error":
        return _told_of_error(note, note.detail or {}, events)
    if note.kind == "gap":
        return [("gap", None, {"detail": note.detail})]
    if note.kind in _OF_THE_MONITOR:
        kind = cast(Kind, f"monitor:{note.kind}")
        return [(kind, "monitor", {"detail": note.detail})]
    return []


def _told_of_error(note: Note, detail: dict[str, Any], events: int) -> Iterator[_Told]:
    """A failed call: its snapshot always says FAILED, and of a cancelled one that it was that."""
    try:
        code, executed = Code(str(detail.get("code"))), Executed(str(detail.get("executed")))
    except ValueError:  # of a later version
        code, executed = Code.INTERNAL, Executed.UNKNOWN
    retryable, told = bool(detail.get("retryable")), dict(detail)
    told |= {"errorType": code.error_type.value, "message": _MESSAGES[code]}
    if code is Code.CANCELLED:
        told["cancelled"] = True
    yield "tool:error", "progress", {"state": "FAILED", "detail": told}
    hints = advice.recommendations(
        note.tool, code, "", executed, retryable=retryable, rerunnable=retryable
    )
    error = {key: value for key, value in told.items() if key not in ("message", "seconds")}
    more = {
        "phase": "tool",
        "severity": "error" if code.error_type in _SEVERE else "warn",
        "message": _MESSAGES[code],
        "detail": error | {"recommendations": list(hints)},
    }
    yield "error", "monitor", more
    if executed is Executed.YES and events > _WITHOUT_EXECUTED:
        yield "tool_executed", "monitor", {"detail": detail}


def gap(after: Position, until: Position, at: int, why: str, missing: int | None) -> Event:
    """What a follower missed: events after one place, up to another; None where nobody can say."""
    detail = {"missing": missing, "why": why, "after": after.bookmark, "until": until.bookmark}
    return Event(bookmark=until.bookmark, kind="gap", at=at, detail=detail)


def require_channels(channels: Any) -> frozenset[Channel]:
    """The channels a follower wants. Raises ValueError for what is no collection of them."""
    named = ", ".join(CHANNELS)
    if isinstance(channels, str) or not isinstance(channels, Collection) or not channels:
        raise ValueError(f"channels must be a collection of some of {named}")
    for channel in channels:
        if channel not in CHANNELS:
            raise ValueError(f"there is no channel {str(channel)[:40]!r}: there are {named}")
    return frozenset(channels)


_MESSAGES = {
    Code.INVALID_ARGUMENTS: "the arguments break the tool's schema",
    Code.UNKNOWN_TOOL: "there is no such tool, or it was not offered",
    Code.UNPARSEABLE: "the call could not be read",
    Code.TRUNCATED: "the call was cut off before its end",
    Code.LOOP: "the same call failed before, again and again",
    Code.TOO_LARGE: "the arguments are too large",
    Code.TOO_MANY_CALLS: "the response had too many calls",
    Code.RAISED: "the tool raised an error",
    Code.CRASHED: "the tool's process ended",
    Code.BAD_RESULT: "the tool returned what it may not",
    Code.REPORTED: "the tool reported a failure",
    Code.TIMEOUT: "the tool took too long",
    Code.CANCELLED: "the call was cancelled",
    Code.DENIED: "the call was denied",
    Code.WORKER_LOST: "the worker that ran it was lost",
    Code.EXPIRED: "no worker started it in time",
    Code.QUEUE_UNREACHABLE: "the queue could not be reached",
    Code.OVERLOADED: "too many calls were waiting",
    Code.CIRCUIT_OPEN: "its tool keeps failing, and is left alone for a while",
    Code.INTERNAL: "the pool itself failed",
}
"""Of each code, in words that hold nothing of the call."""
