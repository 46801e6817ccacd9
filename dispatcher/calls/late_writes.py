"""Tracks writes that were answered and may still run.

Later calls wait until these writes have ended.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from toolpool.contract.errors import ServerError
from toolpool.dispatcher.calls.pending import PendingCall

LEASES_TO_WAIT = 2
"""After this many lease times, a lost worker has stopped its writes."""
_LOOK_SECONDS = 1.0


class LateWrites:
    """Waits for late writes to end. `lease_ttl` is in seconds; `has_ended` asks the server."""

    def __init__(self, *, lease_ttl: float, has_ended: Callable[[str], Awaitable[bool]]) -> None:
        self._has_ended = has_ended
        self.patience = LEASES_TO_WAIT * lease_ttl
        """How many seconds after the answer a report about the write can still arrive."""
        self._unended: dict[str, asyncio.Event] = {}

    def watch(self, pending: PendingCall) -> None:
        """Track an answered write, for longer than any call waits for it."""
        key = pending.key
        self._unended[key] = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * self.patience, self._unended.pop, key, None)

    def record_ends(self, keys: Iterable[str]) -> None:
        """Record that these writes have ended, or that their end no longer matters."""
        for key in keys:
            if (ended := self._unended.get(key)) is not None:
                ended.set()

    async def end_of(self, pending: PendingCall, since: float) -> bool:
        """Return whether an answered write has ended, after waiting while its end may be reported.

        The write cannot have been started after `since`, on the monotonic clock. A background call
        is not waited for, because it may take a day.
        """
        if pending.is_open:
            return False
        return await self.wait(pending, since + self.patience - time.monotonic())

    async def wait(self, pending: PendingCall, seconds: float) -> bool:
        """Return whether an answered write is known to have ended within `seconds`."""
        ended = self._unended.get(pending.key)
        if ended is None:
            return True
        give_up_at = time.monotonic() + seconds
        while not ended.is_set():
            if await self._is_noted(pending.key):  # for example where the call was dispatched again
                return True
            left = give_up_at - time.monotonic()
            if left <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await ended.wait()
        return True

    async def _is_noted(self, key: str) -> bool:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await self._has_ended(key)
        except (ServerError, TimeoutError):
            return False
