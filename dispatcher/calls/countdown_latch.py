"""Waiting for the answers of calls."""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Waiter(Protocol):
    """Whatever is told that a call was answered."""

    def release(self) -> None:
        """The call was answered."""
        ...


class Awaited(Protocol):
    """What can be waited for."""

    latches: list[Waiter]

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered it yet."""
        ...


class CountdownLatch:
    """Opens when every call it holds is answered: one future for a whole stage of a turn."""

    __slots__ = ("_is_interrupted", "_left", "_open")

    def __init__(self, pendings: Iterable[Awaited]) -> None:
        self._left = 0
        self._is_interrupted = False
        self._open: asyncio.Future[None] | None = None
        for pending in pendings:
            if pending.is_open:
                pending.latches.append(self)
                self._left += 1

    def release(self) -> None:
        """One call was answered."""
        self._left -= 1
        if self._left == 0 and self._open is not None and not self._open.done():
            self._open.set_result(None)

    def interrupt(self) -> None:
        """A call has to wait for a person: whoever waits here decides anew for how long."""
        self._is_interrupted = True
        if self._open is not None and not self._open.done():
            self._open.set_result(None)

    def was_interrupted(self) -> bool:
        """Whether that was so since the last time this was asked."""
        was_interrupted, self._is_interrupted = self._is_interrupted, False
        return was_interrupted

    async def wait(self) -> bool:
        """Whether all are answered, when they are; False where the wait was interrupted.

        Cancelling it touches none of them.
        """
        if self._left and not self._is_interrupted:
            self._open = asyncio.get_running_loop().create_future()
            await self._open
        self._is_interrupted = False
        return not self._left
