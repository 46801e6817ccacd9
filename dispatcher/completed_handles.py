"""Handles of ended background calls, for the hosts of their sessions."""

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass

_COMPLETED_KEPT = 1_000
_SESSIONS_KEPT = 10_000
_HANDLES_REMEMBERED = 10_000


class CompletedHandles:
    """Handles of ended calls, by session, until the session's host reads them.

    Their number is limited.
    """

    def __init__(self) -> None:
        self._inboxes: OrderedDict[str | None, asyncio.Queue[str]] = OrderedDict()
        self._followed: dict[str | None, asyncio.Queue[str]] = {}
        self._followers: Counter[str | None] = Counter()
        self._added: OrderedDict[str, None] = OrderedDict()

    def close(self) -> None:
        """End every stream, by an empty handle that each follower puts back for the next."""
        for session in self._followed:
            self.add("", session)

    def follow(self, session: str | None) -> "asyncio.Queue[str]":
        """The queue of the session's handles; if they are not read, the oldest are dropped."""
        inbox = self._inbox(session)
        self._inboxes.pop(session, None)
        self._followed[session] = inbox
        self._followers[session] += 1
        return inbox

    def unfollow(self, session: str | None) -> None:
        """Record that no host reads them at present."""
        self._followers[session] -= 1
        if self._followers[session]:
            return
        del self._followers[session]
        inbox = self._followed.pop(session, None)
        if inbox is not None:
            self._inboxes[session] = inbox

    def _inbox(self, session: str | None) -> "asyncio.Queue[str]":
        if session in self._followed:
            return self._followed[session]
        inbox = self._inboxes.pop(session, None) or asyncio.Queue(_COMPLETED_KEPT)
        self._inboxes[session] = inbox  # now the last to be dropped
        if len(self._inboxes) > _SESSIONS_KEPT:
            self._inboxes.popitem(last=False)
        return inbox

    def add(self, handle: str, session: str | None) -> None:
        """Add the handle of a call that has ended, once: a later request for it is no news."""
        if handle in self._added:
            return
        if handle:  # an empty one ends a stream
            self._added[handle] = None
            if len(self._added) > _HANDLES_REMEMBERED:
                self._added.popitem(last=False)
        inbox = self._inbox(session)
        if inbox.full():
            inbox.get_nowait()
        inbox.put_nowait(handle)


@dataclass(frozen=True, slots=True)
class Notice:
    """Adds a call's handle to its session's queue when the call ends."""

    handle: str
    session: str | None
    completed: CompletedHandles

    def release(self) -> None:
        """Record that the call was answered."""
        self.completed.add(self.handle, self.session)
