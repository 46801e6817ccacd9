"""Event entries that dispatchers publish, and positions in the event stream."""

import re
from typing import Any, ClassVar, NamedTuple

import msgspec

from toolpool.contract.envelope import Signed

_BOOKMARK = re.compile(r"(\d{1,15})-(\d{1,15})")


class EventEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One published moment, from which readers derive `events` events.

    `at` is Unix time in milliseconds. If an `end` or `error` has `starts`, it also stands for the
    start of its call, which is then the first of the derived events. Holds no arguments, results or
    exceptions.
    """

    kind: str
    at: int
    tool: str = ""
    call_id: str | None = None
    session: str | None = None
    turn: str | None = None
    attempt: int = 1
    retry: int = 0
    starts: bool = False
    events: int = 1
    detail: dict[str, Any] | None = None


class EventBatch(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """Entries that one dispatcher published together; `number` counts its batches, from 1."""

    purpose: ClassVar[str] = "events"
    source: str
    number: int
    notes: tuple[EventEntry, ...]
    tenant: str = "default"

    @property
    def events(self) -> int:
        """The number of events in the batch."""
        return sum(note.events for note in self.notes)


class Position(NamedTuple):
    """The position of one event: its number, counted from 1 since the stream began at `start`.

    A stream that was lost or has expired begins again at a later `start`, in Unix milliseconds.
    """

    start: int
    number: int

    @classmethod
    def parse(cls, bookmark: Any) -> "Position":
        """Parse a bookmark; `0` is the position before the first event. Raises ValueError."""
        if bookmark == "0":
            return BEGINNING
        found = _BOOKMARK.fullmatch(bookmark) if isinstance(bookmark, str) else None
        if found is None:
            raise ValueError(
                f"since must be the bookmark of an event, or '0' for all that are kept, not "
                f"{str(bookmark)[:40]!r}"
            )
        return cls(int(found[1]), int(found[2]))

    @property
    def bookmark(self) -> str:
        """The position as text; on a server, the stream id."""
        return f"{self.start}-{self.number}"


BEGINNING = Position(0, 0)
