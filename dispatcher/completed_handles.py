"""Handles of background calls that have ended, for the hosts of their sessions."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

_COMPLETED_KEPT = 1_000
_SESSIONS_KEPT = 10_000


class CompletedHandles:
    """Handles of ended calls, by session, until the session's host takes them; bounded."""

    def __init__(self) -> None:
        self._inboxes: OrderedDict[str | None, asyncio.Queue[str]] = OrderedDict()
        self._followed: dict[str | None, asyncio.Queue[str]] = {}

    def close(self) -> None:
        """An empty handle ends the stream of each who follows."""
        for session in self._followed:
            self.add("", session)

    def follow(self, session: str | None) -> "asyncio.Queue[str]":
        """Where the session's handles come; the oldest are dropped where nobody takes them."""
        inbox = self._inbox(session)
        self._inboxes.pop(session, None)
        self._followed[session] = inbox
        return inbox

    def unfollow(self, session: str | None) -> None:
        """Nobody takes them for now."""
        inbox = self._followed.pop(session, None)
        if inbox is not None:
            self._inboxes[session] = inbox

    def _inbox(self, session: str | None) -> "asyncio.Queue[str]":
        if session in self._followed:
            return self._followed[session]
        inbox = self._inboxes.pop(session, None) or asyncio.Queue(_COMPLETED_KEPT)
        self._inboxes[session] = inbox  # now the last to be forgotten
        if len(self._inboxes) > _SESSIONS_KEPT:
            self._inboxes.popitem(last=False)
        return inbox

    def add(self, handle: str, session: str | None) -> None:
        """A call has ended."""
        inbox = self._inbox(session)
        if inbox.full():
            inbox.get_nowait()
        inbox.put_nowait(handle)


@dataclass(frozen=True, slots=True)
class Notice:
    """Puts a finished call's handle where its session's host waits for it."""

    handle: str
    session: str | None
    completed: CompletedHandles

    def release(self) -> None:
        """The call was answered."""
        self.completed.add(self.handle, self.session)
