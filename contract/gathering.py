"""Work that can wait for the next turn of the event loop, and is then done in a row.

Code that runs once among much other code takes several times as long as the same code in a row.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathered(Generic[T]):
    """Hands `take` all that was added in one turn of the event loop, in order and in no context.

    `add` is called on one thread; `flush` on any, for who cannot wait for the event loop. `began`
    is called by `add` where nothing waited before, so that whoever flushes can be woken.
    """

    def __init__(
        self, take: Callable[[list[T]], None], *, began: Callable[[], None] | None = None
    ) -> None:
        self._take = take
        self._began = began
        self._waiting: deque[T] = deque()
        self._taking = threading.RLock()

    def add(self, item: T) -> None:
        """Hand it over in the next turn; at once where no event loop runs."""
        self._waiting.append(item)
        if len(self._waiting) > 1:  # whoever takes those before it goes on until none is left
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush, context=Context())
        except RuntimeError:
            self.flush()
        if self._began is not None:
            self._began()

    def flush(self, within: float = -1.0) -> None:
        """Hand over what waits.

        Gives up after `within` seconds where another thread is still at it; never where negative.
        """
        if not self._taking.acquire(timeout=within):
            return
        try:
            waiting = self._waiting
            taken: list[T] = []
            while waiting:
                taken.append(waiting.popleft())
            if taken:
                self._take(taken)
        finally:
            self._taking.release()
