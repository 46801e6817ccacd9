"""Events of calls, for followers; publishing them never delays a call.

Two channels: `progress` is the life of each call, `monitor` is for operators. A moment is published
as one note, which readers expand into events, so that publishing stays cheap.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, cast

import msgspec

from toolpool.contract.event_entries import EventEntry, Position
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
"""The number of events of a failed call that has no `tool_executed` event."""
_SEVERE = frozenset({ErrorType.RUNTIME, ErrorType.EXCEPTION})


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `at` is Unix time in milliseconds, `source` the dispatcher that published it.

    Events of a call have its snapshot: `call_id`, `tool`, `session`, `turn`, `attempt`, `retry`
    and, on the channel `progress`, its `state`. `detail` depends on the kind: progress, or the
    error. The channel `monitor` has `error`, with `phase`, `severity` and `message`;
    `tool_executed`; `monitor:loop`, a call that the loop guard caught; `monitor:rejections`, a tool
    with a high rejection rate; `monitor:circuit`, a tool whose circuit opened, half-opened or
    closed; `monitor:switch`, a kill switch that changed; `monitor:audit`, a decision of a person, a
    rule, a hook or a host, with `what`, `by` and `reason`; `monitor:hook`, a hook, policy rule or
    webhook that failed, with `hook` and `why`. A `gap` is on both: the events that a follower
    missed.
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


def events_of(note: EventEntry, last: Position, source: str, *, after: Position) -> Iterator[Event]:
    """The events of a note that come after a position.

    `last` is the position of the note's last event. Unknown parts of a note of a later version are
    left out.
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


_EventFields = tuple[Kind, Channel | None, dict[str, Any]]
_OF_THE_MONITOR = {"loop", "rejections", "circuit", "switch", "audit", "hook"}


def _told(note: EventEntry) -> Iterator[_EventFields]:
    if note.starts:
        yield "tool:start", "progress", {"state": "RUNNING", "detail": None}
    yield from _without_start(note, note.events - note.starts)


def _without_start(note: EventEntry, events: int) -> Iterable[_EventFields]:
    """The events without the start, if the end also reports it."""
    if note.kind == "start":
        return [("tool:start", "progress", {"state": "RUNNING", "detail": note.detail})]
    if note.kind == "progress":
        return [("tool:progress", "progress", {"state": "RUNNING", "detail": note.detail})]
    if note.kind == "end":
        end: _EventFields = ("tool:end", "progress", {"state": "COMPLETED", "detail": note.detail})
        return [end, ("tool_executed", "monitor", {"detail": note.detail})][:events]
    if note.kind == "error":
        return _error_events(note, note.detail or {}, events)
    if note.kind == "gap":
        return [("gap", None, {"detail": note.detail})]
    if note.kind in _OF_THE_MONITOR:
        kind = cast(Kind, f"monitor:{note.kind}")
        return [(kind, "monitor", {"detail": note.detail})]
    return []


def _error_events(note: EventEntry, detail: dict[str, Any], events: int) -> Iterator[_EventFields]:
    """The events of a failed call.

    Their state is FAILED; `detail` says whether the call was cancelled.
    """
    try:
        code, executed = Code(str(detail.get("code"))), Executed(str(detail.get("executed")))
    except ValueError:  # from a later version
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
    """The event for missed events between two positions; `missing` is their number, if known."""
    detail = {"missing": missing, "why": why, "after": after.bookmark, "until": until.bookmark}
    return Event(bookmark=until.bookmark, kind="gap", at=at, detail=detail)


def require_channels(channels: Any) -> frozenset[Channel]:
    """The channels that a follower wants.

    Raises ValueError unless it is a collection of channels.
    """
    named = ", ".join(CHANNELS)
    if isinstance(channels, str) or not isinstance(channels, Collection) or not channels:
        raise ValueError(f"channels must be a collection of some of {named}")
    for channel in channels:
        if channel not in CHANNELS:
            raise ValueError(f"unknown channel {str(channel)[:40]!r}: there are {named}")
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
    Code.BAD_RESULT: "the tool returned an invalid result",
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
"""The message of each code. It contains no data of the call."""
