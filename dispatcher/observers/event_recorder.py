"""Converts notifications of observers to event notes, which are published or buffered."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from toolpool.contract.encoding import printable, rounded
from toolpool.contract.event_entries import EventEntry
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.admission.catalog import Offer
from toolpool.dispatcher.classifier import is_retryable
from toolpool.dispatcher.events import events_of_error
from toolpool.dispatcher.observer import (
    Alert,
    Audit,
    CallFacts,
    Ended,
    HookFailure,
    Loop,
    Observer,
    Progressed,
    Rejected,
    SwitchChanged,
)

_LONGEST_NAME = 256


class EventRecorder(Observer):
    """Passes each note to `add`, which must return at once. Called on the event loop.

    If a call starts and ends in one iteration of the event loop, one note stands for both.
    `offers` returns the current tools: whether a failed call may be repeated depends on its tool.
    """

    is_quick = True

    def __init__(
        self, add: Callable[[EventEntry], None], offers: Callable[[], Mapping[str, Offer]]
    ) -> None:
        self._add = add
        self._offers = offers
        self._begun: CallFacts | None = None
        """The call that started last, if no note of its start was added yet."""
        self._is_due = False
        """Whether the note of its start will be added in the next iteration of the event loop."""

    def _note(self, note: EventEntry) -> None:
        self._note_start()
        self._add(note)

    def _note_start(self) -> None:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._add(_note("start", begun, None, 1))

    def _turn_is_over(self) -> None:
        self._is_due = False
        self._note_start()

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs the call, or this dispatcher does."""
        self._note_start()
        self._begun = call
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn_is_over)

    def progressed(self, call: CallFacts, progressed: Progressed) -> None:
        """The tool reported progress."""
        detail: dict[str, Any] = {
            "done": progressed.done,
            "total": progressed.total,
            "message": progressed.message,
        }
        self._note(_note("progress", call, detail, 1))

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """The call was answered."""
        starts = self._begun is call
        if starts:
            self._begun = None
        detail: dict[str, Any] = {"seconds": rounded(ended.seconds)}
        if ended.shared:  # another call ran the tool, and has the event of that run
            detail["shared"] = ended.shared
        if ended.code is None:
            kind, events = "end", 1 if ended.shared else 2
        else:
            detail |= self._failed(call.tool, ended.code, ended.executed)
            kind, events = "error", 2 if ended.shared else events_of_error(ended.executed)
        self._note(_note(kind, call, detail, events + starts, starts=starts))

    def rejected(self, rejected: Rejected) -> None:
        """A call was rejected. The model chose the names in it, which may have any length."""
        tool = _short(rejected.tool)
        note = EventEntry(
            kind="error",
            at=_now(),
            tool=tool,
            call_id=_short(rejected.call_id),
            session=rejected.session,
            turn=rejected.turn,
            events=events_of_error(Executed.NO),
            detail=self._failed(tool, rejected.code, Executed.NO),
        )
        self._note(note)

    def looped(self, loop: Loop) -> None:
        """The loop guard detected a repeated failure, refused or not."""
        note = EventEntry(
            kind="loop",
            at=_now(),
            tool=_short(loop.tool),
            call_id=_short(loop.call_id),
            session=loop.session,
            turn=loop.turn,
            detail={"failures": loop.failures, "alternates": loop.alternates},
        )
        self._note(note)

    def alerted(self, alert: Alert) -> None:
        """Too many calls of a tool are rejected: its schema may be at fault."""
        detail = {"field": _short(alert.field), "rate": alert.rate}
        self._note(EventEntry(kind="rejections", at=_now(), tool=_short(alert.tool), detail=detail))

    def circuit(self, tool: str, state: str) -> None:
        """A tool's circuit is `open`, `half_open` or `closed`."""
        self._note(EventEntry(kind="circuit", at=_now(), tool=tool, detail={"circuit": state}))

    def switched(self, turned: SwitchChanged) -> None:
        """A tool, or one value of its argument, was switched off or on for the whole fleet."""
        detail: dict[str, Any] = {"denied": turned.denied}
        if turned.argument is not None:
            detail["argument"] = turned.argument
        self._note(EventEntry(kind="switch", at=_now(), tool=turned.tool, detail=detail))

    def audited(self, audit: Audit) -> None:
        """A person or a policy decided about calls."""
        named = {"what": audit.what, "by": audit.by, "reason": audit.reason}
        detail: dict[str, Any] = {key: value for key, value in named.items() if value}
        if audit.approval:
            detail["approval"] = audit.approval
        note = EventEntry(
            kind="audit",
            at=_now(),
            tool=audit.tool,
            call_id=_short(audit.call_id) or None,
            session=audit.session,
            detail=detail,
        )
        self._note(note)

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed."""
        note = EventEntry(
            kind="hook",
            at=_now(),
            tool=_short(failure.tool),
            call_id=_short(failure.call_id) or None,
            detail={"hook": failure.hook, "why": failure.why},
        )
        self._note(note)

    def _failed(self, tool: str, code: Code, executed: Executed) -> dict[str, Any]:
        offer = self._offers().get(tool)
        spec = offer.spec if offer is not None else None
        return {
            "code": code.value,
            "executed": executed.value,
            "retryable": is_retryable(code, executed, spec),
        }


def _note(
    kind: str,
    call: CallFacts,
    detail: dict[str, Any] | None,
    events: int,
    *,
    starts: bool = False,
) -> EventEntry:
    return EventEntry(
        kind=kind,
        at=_now(),
        tool=call.tool,
        call_id=call.call_id,
        session=call.session,
        turn=call.turn,
        attempt=call.attempt,
        retry=call.retry,
        starts=starts,
        events=events,
        detail=detail,
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _short(name: str) -> str:
    return printable(name[:_LONGEST_NAME])
