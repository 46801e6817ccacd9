"""The queues, reply streams and cancel lists of a server in this process."""

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Inbox:
    items: deque[bytes] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class Inboxes:
    """Each by its name, made where it is first used."""

    def __init__(self) -> None:
        self._inboxes: defaultdict[str, _Inbox] = defaultdict(_Inbox)

    def put(self, name: str, item: bytes) -> None:
        """Append to a queue, reply stream or cancel list."""
        inbox = self._inboxes[name]
        inbox.items.append(item)
        inbox.filled.set()

    async def take(self, *names: str) -> tuple[str, bytes]:
        """The next item of the first of `names` that has one; waits for it."""
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
        """How many items a queue, stream or list holds."""
        return len(self._inboxes[name].items)
