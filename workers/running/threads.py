"""Threads for thread-safe tools: daemons, so that a stuck one never delays the exit."""

import contextvars
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]


class ThreadPool:
    """Starts a thread when none is idle; the caller limits how many calls run at once."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[contextvars.Context, Work] | None]
        self._work = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self.threads = 0

    def submit(self, work: Work) -> None:
        """Run `work`, which must not raise, on a thread soon, in a copy of this context."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self.threads += 1
                threading.Thread(target=self._serve, name="tool", daemon=True).start()
        self._work.put((contextvars.copy_context(), work))

    def close(self) -> None:
        """End the idle threads; a busy one ends after its call."""
        for _ in range(self.threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (taken := self._work.get()) is not None:
            # A copy: context variables that a call sets are for that call alone.
            variables, work = taken
            variables.run(work)
            del taken, variables, work
            with self._lock:
                self._idle += 1
