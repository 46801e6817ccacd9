"""Writes answers as whole lines, one write each, to a file or standard output."""

import os
import stat
import sys
from types import TracebackType
from typing import Self

from toolpool.cli.exit_codes import ExitNow, ReaderGone
from toolpool.contract.daemon_threads import DaemonThreads
from toolpool.contract.errors import Misconfigured


class Sink:
    """A JSONL output: a path, or None for standard output.

    Raises `Misconfigured` at once if it cannot be written. A file keeps its content until
    `begin()`, so that a run that never starts loses nothing.
    """

    def __init__(self, path: str | None) -> None:
        self.name = path or "standard output"
        try:
            self._fd = _open(path)
            self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        except (OSError, AttributeError, ValueError) as error:  # the last two: stdout is closed
            reason = getattr(error, "strerror", None) or "it is closed"
            raise Misconfigured(
                f"cannot write {self.name} ({reason}): name a file that this user can write"
            ) from None
        self._owned = path is not None
        self._threads = DaemonThreads("toolpool-output")

    def begin(self) -> None:
        """Empty the file."""
        if self._owned and self._is_file:
            os.ftruncate(self._fd, 0)

    async def write(self, lines: bytes) -> None:
        """Write whole lines, completely.

        Raises `ReaderGone` when the reader has ended, and `ExitNow` for a full disk and similar
        faults; the file then ends with a whole line.
        """
        if self._is_file:
            _report(self.name, self._write(lines))
            return
        # A slow reader must not block the event loop. A daemon thread, because a blocked write
        # cannot be cancelled.
        _report(self.name, await self._threads.call(self._write, lines))

    def _write(self, lines: bytes) -> OSError | None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            if self._is_file:
                self._cut_half_line(len(lines) - len(rest), lines)
            return error
        return None

    def _cut_half_line(self, written: int, lines: bytes) -> None:
        whole = lines.rfind(b"\n", 0, written) + 1
        position = os.lseek(self._fd, 0, os.SEEK_CUR)
        os.ftruncate(self._fd, position - (written - whole))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._owned:
            os.close(self._fd)


def _open(path: str | None) -> int:
    if path is None:
        sys.stdout.flush()
        return sys.stdout.fileno()
    return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)


def _report(name: str, error: OSError | None) -> None:
    if isinstance(error, BrokenPipeError):
        raise ReaderGone
    if error is not None:
        raise ExitNow(
            f"cannot write {name} any more ({error.strerror}): what was written so far is whole; "
            "make room and run the rest again"
        )
