"""Process trees, by parent: other people's processes are never touched."""

import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

STOP = signal.SIGSTOP
CONTINUE = signal.SIGCONT


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    return _families()[pid]


def descendants_of(pid: int) -> list[int]:
    """Everything below a process, nearest first."""
    families = _families()
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in families[parent]]
        found += level
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal; those already gone are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _families() -> defaultdict[int, list[int]]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    families: defaultdict[int, list[int]] = defaultdict(list)
    for line in listing.stdout.splitlines():
        pid, parent = line.split()
        families[int(parent)].append(int(pid))
    return families
