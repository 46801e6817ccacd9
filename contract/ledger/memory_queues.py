"""The queues, reply streams and cancel lists of the in-memory server."""

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Inbox:
    items: deque[bytes] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class Inboxes:
    """Named queues, each created on first use."""

    def __init__(self) -> None:
        self._inboxes: defaultdict[str, _Inbox] = defaultdict(_Inbox)

    def put(self, name: str, item: bytes) -> None:
        """Append to a queue, reply stream or cancel list."""
        inbox = self._inboxes[name]
        inbox.items.append(item)
        inbox.filled.set()

    async def take(self, *names: str) -> tuple[str, bytes]:
        """Wait for an item in one of `names`; returns the queue's name and the item."""
        while True:
            for name in names:
                inbox = self._inboxes[name]
                if inbox.items:
                    return name, inbox.items.popleft()
                inbox.filled.clear()
            waits = [asyncio.ensure_future(self._inboxes[name].filled.wait()) for name in names]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def waiting(self, name: str) -> int:
        """The length of a queue, stream or list."""
        return len(self._inboxes[name].items)
