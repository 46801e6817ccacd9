"""Waits until calls are answered."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from toolpool.contract.outcome import Outcome


class Waiter(Protocol):
    """An object that is notified when a call is answered."""

    def release(self) -> None:
        """Note that the call was answered."""
        ...


class Awaited(Protocol):
    """A call that can be waited for; it is answered once it has an outcome."""

    latches: list[Waiter]
    outcome: Outcome | None


class CountdownLatch:
    """Opens when every call that it holds is answered: one future for a whole stage of a turn."""

    __slots__ = ("_is_interrupted", "_left", "_open")

    def __init__(self, pendings: Iterable[Awaited]) -> None:
        self._left = 0
        self._is_interrupted = False
        self._open: asyncio.Future[None] | None = None
        for pending in pendings:
            if pending.outcome is None:
                pending.latches.append(self)
                self._left += 1

    def release(self) -> None:
        """Note that one call was answered."""
        self._left -= 1
        if self._left == 0 and self._open is not None and not self._open.done():
            self._open.set_result(None)

    def interrupt(self) -> None:
        """Wake the waiter, because a call has to wait for approval and the timeout changes."""
        self._is_interrupted = True
        if self._open is not None and not self._open.done():
            self._open.set_result(None)

    def was_interrupted(self) -> bool:
        """Whether the wait was interrupted since this was last called."""
        was_interrupted, self._is_interrupted = self._is_interrupted, False
        return was_interrupted

    async def wait(self) -> bool:
        """Return True once all calls are answered; False if the wait was interrupted.

        Cancelling the wait does not affect the calls.
        """
        if self._left and not self._is_interrupted:
            self._open = asyncio.get_running_loop().create_future()
            await self._open
        self._is_interrupted = False
        return not self._left
