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


class Latch:
    """Opens when every call it holds is answered: one future for a whole stage of a turn."""

    __slots__ = ("_left", "_open")

    def __init__(self, pendings: Iterable[Awaited]) -> None:
        self._left = 0
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

    async def wait(self) -> None:
        """Return when all are answered; cancelling it touches none of them."""
        if self._left:
            self._open = asyncio.get_running_loop().create_future()
            await self._open
