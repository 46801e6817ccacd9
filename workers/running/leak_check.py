"""Counts tasks and threads that tools leave running, and reports growth."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from toolpool.contract.exception_report import stack_of
from toolpool.workers.worker_observer import LeftBehind

_LOOK_SECONDS = 60.0
_MANY = 100
"""The number that is reported first; connection pools and thread pools start fewer."""
_STACKS, _FRAMES = 100, 10
_OWN_THREADS = ("tool", "asyncio-waitpid-")
"""Name prefixes of threads that run tools or wait for child processes: one per slot."""
OWN_TASK = "toolpool child process"
"""The name of the tasks that wait for child processes."""


class Leftovers:
    """Finds tasks and threads older than every running call. Use it on the tools' event loop."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._first_seen: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._limits = {"tasks": _MANY, "threads": _MANY}

    def look(self, now: float, oldest_call: float) -> list[LeftBehind]:
        """What to report: once 100 tasks or 100 threads are left running, and each time their
        number has doubled since.

        Checks once a minute. `oldest_call` is when the oldest running call was entered. Both times
        are monotonic.
        """
        if now < self._look_at:
            return []
        self._look_at = now + _LOOK_SECONDS
        found = []
        threads = [t for t in threading.enumerate() if not t.name.startswith(_OWN_THREADS)]
        tasks = [task for task in asyncio.all_tasks() if task.get_name() != OWN_TASK]
        for what, alive in (("tasks", tasks), ("threads", threads)):
            left = self._outliving(alive, now, oldest_call)
            if len(left) >= self._limits[what]:
                self._limits[what] = 2 * len(left)
                found.append(LeftBehind(what=what, count=len(left), stack=_most_common(left)))
        return found

    def _outliving(self, alive: Iterable[Any], now: float, oldest_call: float) -> list[Any]:
        return [one for one in alive if self._first_seen.setdefault(one, now) < oldest_call]


def _most_common(left: list[Any]) -> str:
    """The most common stack."""
    stacks = (stack_of(_frame_of(one), _FRAMES) for one in left[:_STACKS])
    return Counter(stacks).most_common(1)[0][0]


def _frame_of(one: Any) -> FrameType | None:
    if isinstance(one, threading.Thread):
        return sys._current_frames().get(one.ident or 0)
    frames: list[FrameType] = one.get_stack(limit=1)
    return frames[0] if frames else None
