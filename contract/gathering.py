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
    is called where nothing waited before.
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
        waiting = self._waiting
        if waiting:
            waiting.append(item)
            return
        waiting.append(item)
        try:
            asyncio.get_running_loop().call_soon(self.flush, context=Context())
        except RuntimeError:
            self.flush()
        if self._began is not None:
            self._began()

    def flush(self) -> None:
        """Hand over what waits."""
        with self._taking:
            waiting = self._waiting
            if waiting:
                self._take([waiting.popleft() for _ in range(len(waiting))])
