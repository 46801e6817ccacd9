"""Whether this process is a worker or a worker's child, and what its modules may start.

Workers import the modules that hold their tools. A script that starts workers at its top level
would be imported by them and start workers recursively.
"""

import os
import sys
from pathlib import Path

from toolpool.contract.errors import Misconfigured

DEPTH = "TOOLPOOL_WORKER_DEPTH"
"""The variable that counts the fleets that this process is nested in."""
SHOWS_TEXTS = "TOOLPOOL_WORKER_TEXTS"
"""The variable that says that a terminal shows what a worker of `Dispatcher.local` says."""
_DEEPEST = 2
"""A tool may start a program that has its own fleet; deeper nesting is a recursion."""

_importing: list[str] = []
_is_worker = False


def mark() -> None:
    """Mark this process as a worker or a child of one."""
    global _is_worker
    _is_worker = True


def depth() -> int:
    """How many fleets this process is nested in; 0 outside of any."""
    value = os.environ.get(DEPTH, "0")
    return int(value) if value.isdigit() else 0


def import_from_here() -> None:
    """Make modules in the current directory importable."""
    current = str(Path.cwd())
    if current not in sys.path:
        sys.path.insert(0, current)


class Importing:
    """Marks the time in which this process imports the tools in `source`."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None:
        _importing.append(self._source)

    def __exit__(self, *error: object) -> None:
        _importing.remove(self._source)


def require_outside() -> None:
    """Raise `Misconfigured`, with the remedy, if no fleet may be started here."""
    if not _importing and not _is_worker and depth() < _DEEPEST:
        return
    where = f"importing {_importing[-1]} for its tools" if _importing else "running as a worker"
    script = Path(_importing[-1] if _importing else sys.argv[0]).name
    raise Misconfigured(
        f"this process is {where}, and must not start workers of its own: in {script}, put what "
        'starts them (Dispatcher.local, SyncDispatcher.local) under `if __name__ == "__main__":`; '
        "a tool that dispatches calls uses Dispatcher.connect"
    )
