"""Checks that a dispatcher is used while open, in its process and on its event loop.

Any other use would wait for replies that cannot arrive.
"""

import asyncio
import os
from collections.abc import Callable
from enum import Enum

_forks = 0
"""How many forks lie between this process and the one that imported this module."""

ENTER = "use it inside `async with Dispatcher.connect(…) as dispatcher:`"
MAKE_ANOTHER = "make another, and use that"
AFTER_A_FORK = (
    "this dispatcher belongs to the process that was forked: make one of its own in the new process"
)


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _Stage(Enum):
    NEW = "new"
    ENTERING = "entering"
    OPEN = "open"
    CLOSED = "closed"


class Lifetime:
    """The lifetime of one dispatcher. Using it at the wrong time or place raises at once.

    Counting forks instead of comparing process ids keeps the check free of system calls.
    """

    def __init__(self) -> None:
        self._stage = _Stage.NEW
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = _forks

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""
        return self._stage is _Stage.CLOSED

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that created it."""
        return self._forks != _forks

    def enter(self) -> None:
        """Begin entering, on the running loop. Raises RuntimeError the second time."""
        if self.is_forked or self.is_closed:
            raise RuntimeError(self._what_is_wrong())
        if self._stage is not _Stage.NEW:
            raise RuntimeError(
                "this dispatcher has been entered already: enter it once and share it, any number "
                "of tasks may use it at the same time"
            )
        self._loop = asyncio.get_running_loop()
        self._stage = _Stage.ENTERING

    def open(self) -> None:
        """Mark it open. Raises RuntimeError if it was closed meanwhile."""
        if self.is_closed:
            raise RuntimeError(self._what_is_wrong())
        self._stage = _Stage.OPEN

    def close(self) -> bool:
        """Mark it closed; return False if it was not open.

        Raises RuntimeError on another event loop than the one it was entered on.
        """
        if self.is_forked or self.is_closed:
            return False
        if self._loop is not None and _running_loop() is not self._loop:
            raise RuntimeError(self._elsewhere())
        self._stage = _Stage.CLOSED
        return True

    def require(self) -> None:
        """Raises RuntimeError unless it is open and this is its event loop."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if not is_here or self._stage is not _Stage.OPEN or self._forks != _forks:
            raise RuntimeError(self._what_is_wrong())

    def require_open(self) -> None:
        """Raises RuntimeError unless it is open, on any thread."""
        if self._stage is not _Stage.OPEN or self._forks != _forks or self._loop_has_ended():
            raise RuntimeError(self._what_is_wrong())

    def _loop_has_ended(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def _what_is_wrong(self) -> str:
        if self.is_forked:
            return AFTER_A_FORK
        if self._stage is _Stage.CLOSED:
            return f"this dispatcher is closed: {MAKE_ANOTHER}"
        if self._stage is not _Stage.OPEN:
            return f"this dispatcher is not entered: {ENTER}"
        return self._elsewhere()

    def _elsewhere(self) -> str:
        if self._loop_has_ended():
            return (
                "the event loop of this dispatcher has ended: make and use a dispatcher inside one "
                "asyncio.run(…), or use SyncDispatcher"
            )
        return (
            "this dispatcher belongs to another event loop: use it there, or use SyncDispatcher, "
            "which any thread may call"
        )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def in_a_thread(work: Callable[[], None]) -> None:
    """Run blocking work in a thread, or directly if the interpreter is shutting down."""
    try:
        await asyncio.to_thread(work)
    except RuntimeError:
        work()
