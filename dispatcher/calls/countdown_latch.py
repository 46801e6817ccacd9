"""Waits until calls are answered."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from toolpool.contract.outcome import Outcome


class Waiter(Protocol):
    """An object that is notified when a call is answered."""

    def release(self) -> None:
        """Record that the call was answered."""
        ...


class Awaited(Protocol):
    """A call that can be waited for; it is answered once it has an outcome."""

    latches: list[Waiter]
    outcome: Outcome | None


class CountdownLatch:
    """Opens when every call that it holds is answered.

    A whole stage of a turn needs only one future.
    """

    __slots__ = ("_is_interrupted", "_open", "left")

    def __init__(self, pendings: Iterable[Awaited]) -> None:
        self.left = 0
        """How many calls have no answer yet."""
        self._is_interrupted = False
        self._open: asyncio.Future[None] | None = None
        for pending in pendings:
            if pending.outcome is None:
                pending.latches.append(self)
                self.left += 1

    def release(self) -> None:
        """Record that one call was answered."""
        self.left -= 1
        if self.left == 0 and self._open is not None and not self._open.done():
            self._open.set_result(None)

    def interrupt(self) -> None:
        """Wake the waiter, because a call has to wait for approval and the timeout changes."""
        if self._open is None or self._open.done():
            self._is_interrupted = True
        else:
            self._open.set_result(None)

    def was_interrupted(self) -> bool:
        """Whether the wait was interrupted since this was last called."""
        was_interrupted, self._is_interrupted = self._is_interrupted, False
        return was_interrupted

    def all_answered(self) -> "asyncio.Future[None]":
        """A future that ends once all calls are answered, or with an interruption.

        Cancelling it does not affect the calls.
        """
        self._open = asyncio.get_running_loop().create_future()
        if not self.left or self._is_interrupted:
            self._is_interrupted = False
            self._open.set_result(None)
        return self._open
