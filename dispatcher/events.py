"""What happens to calls, for whoever follows it: a side road, never in the way.

Nothing is kept before somebody follows; from then on the last events are, so that a follower who
names the bookmark it has seen misses none of them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any, Literal

import msgspec

from toolpool.dispatcher.observe import (
    Alert,
    CallFacts,
    Ended,
    Loop,
    Observer,
    Observers,
    Progressed,
    Turned,
)

_KEPT = 10_000

Kind = Literal[
    "tool:start",
    "tool:progress",
    "tool:end",
    "tool:error",
    "monitor:loop",
    "monitor:rejections",
    "monitor:circuit",
    "monitor:switch",
]
State = Literal["RUNNING", "COMPLETED", "FAILED"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; `bookmark` counts up from 1. `detail` is of the kind: progress, or the error.

    Those of the monitor have no `state`: `monitor:loop` is a call that the loop guard caught,
    `monitor:rejections` a tool whose calls are rejected too often, `monitor:circuit` a tool
    that is left alone, tried again or well again, `monitor:switch` a kill switch turned.
    """

    bookmark: int
    kind: Kind
    call_id: str | None = None
    tool: str
    session: str | None = None
    state: State | None = None
    detail: dict[str, Any] | None = None


class Events(Observer):
    """The events of one dispatcher. Observes nothing before somebody follows."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._is_followed = False
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._last = 0
        self._more = asyncio.Event()
        self._is_closed = False

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs the call."""
        self._add("tool:start", call, "RUNNING")

    def progressed(self, call: CallFacts, progressed: Progressed) -> None:
        """The tool says how far it is."""
        self._add("tool:progress", call, "RUNNING", msgspec.structs.asdict(progressed))

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """The call was answered: a failed call's snapshot always says FAILED."""
        if ended.code is None:
            self._add("tool:end", call, "COMPLETED")
            return
        detail = {"code": ended.code.value, "executed": ended.executed.value}
        self._add("tool:error", call, "FAILED", detail)

    def looped(self, loop: Loop) -> None:
        """The loop guard caught a call, whatever becomes of it."""
        self._keep(
            kind="monitor:loop",
            call_id=loop.call_id,
            tool=loop.tool,
            session=loop.session,
            detail={"failures": loop.failures, "alternates": loop.alternates},
        )

    def alerted(self, alert: Alert) -> None:
        """More of a tool's calls are rejected than should be: its schema may be at fault."""
        self._keep(
            kind="monitor:rejections",
            tool=alert.tool,
            detail={"field": alert.field, "rate": alert.rate},
        )

    def circuit(self, tool: str, state: str) -> None:
        """A tool's circuit is `open`, `half_open` or `closed`."""
        self._keep(kind="monitor:circuit", tool=tool, detail={"circuit": state})

    def switched(self, turned: Turned) -> None:
        """A tool, or a tool with some value of an argument, is denied to the fleet, or no more."""
        detail: dict[str, Any] = {"denied": turned.denied}
        if turned.argument is not None:
            detail["argument"] = turned.argument
        self._keep(kind="monitor:switch", tool=turned.tool, detail=detail)

    def close(self) -> None:
        """Followers get what there is, and no more."""
        self._is_closed = True
        self._more.set()

    async def follow(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events as they come, until closed; those kept after a bookmark first, where one is given.

        Bookmarks are this dispatcher's own: one of another, or of before a restart, may be too high
        and is then taken for the last.
        """
        if not self._is_followed:
            self._is_followed = True
            self._observers.add(self)
        seen = self._last if after is None else min(after, self._last)
        while True:
            unseen = min(self._last - seen, len(self._kept))
            for event in list(islice(self._kept, len(self._kept) - unseen, None)):
                seen = event.bookmark
                yield event
            if self._last <= seen or not self._kept:
                if self._is_closed:
                    return
                self._more.clear()
                await self._more.wait()

    def _add(
        self, kind: Kind, call: CallFacts, state: State, detail: dict[str, Any] | None = None
    ) -> None:
        self._keep(
            kind=kind,
            call_id=call.call_id,
            tool=call.tool,
            session=call.session,
            state=state,
            detail=detail,
        )

    def _keep(self, **fields: Any) -> None:
        self._last += 1
        self._kept.append(Event(bookmark=self._last, **fields))
        self._more.set()
