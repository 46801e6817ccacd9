"""Writes that were answered and may still run: what comes after them waits for word of them."""

import asyncio
import time
from collections.abc import Iterable

from toolpool.dispatcher.calls.pending import Pending

LEASES_TO_WAIT = 2
"""How long the end of a lost write is waited for: until then its worker has stopped it."""


class LateWrites:
    """`lease_gone` is in seconds."""

    def __init__(self, *, lease_gone: float) -> None:
        self.patience = LEASES_TO_WAIT * lease_gone
        """Seconds from its answer after which nothing more is heard of a write."""
        self._unended: dict[str, asyncio.Event] = {}

    def watch(self, pending: Pending) -> None:
        """Expect word of an answered write, for longer than anybody waits for it."""
        key = pending.key
        self._unended[key] = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * self.patience, self._unended.pop, key, None)

    def heard(self, keys: Iterable[str]) -> None:
        """These have ended, or nobody wants to know any more."""
        for key in keys:
            if (ended := self._unended.get(key)) is not None:
                ended.set()

    async def end_of(self, pending: Pending) -> bool:
        """Whether an answered write has ended; waits for word of it for as long as that may come.

        One that goes on in the background is not waited for: that may take a day.
        """
        if pending.is_open:
            return False
        return await self.wait(pending, pending.ended + self.patience - time.monotonic())

    async def wait(self, pending: Pending, seconds: float) -> bool:
        """Whether an answered write has ended, as far as anybody says so within `seconds`."""
        ended = self._unended.get(pending.key)
        if ended is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        return True
