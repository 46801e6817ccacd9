"""A word that a child process leaves for its worker before it enters a tool.

A child that is lost did not start its call if the mark does not name that call, whatever became of
the socket between them. It is memory that both share: to leave it costs no system call, and what
was left is there after any kind of death.
"""

import mmap
import os
import sys
import tempfile

_BYTES = 8


class Mark:
    """Eight shared bytes; the descriptor is not needed any more."""

    def __init__(self, descriptor: int) -> None:
        self._number = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")

    @property
    def run(self) -> int:
        """The run whose tool may have been entered; 0 before the first."""
        return self._number[0]

    def leave(self, run: int) -> None:
        """From here on the tool of `run` may be entered."""
        self._number[0] = run


def create() -> int:
    """A descriptor, to be closed by the caller, of memory for one mark. Raises OSError."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("toolpool-mark")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor
