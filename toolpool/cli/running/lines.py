"""Reads the lines of a file or a pipe as they arrive, with a bounded buffer."""

import asyncio
import codecs
import os
import select
import stat
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from dataclasses import dataclass

from toolpool.contract.errors import Misconfigured

LONGEST_LINE = 16 * 1024 * 1024
_CHUNK = 64 * 1024
_CHUNKS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its line feed.

    `read` counts the bytes of input up to the line's end; `number` starts at 1. A line longer than
    `LONGEST_LINE` is `too_long`, without its text.
    """

    number: int
    text: bytes
    read: int
    too_long: bool = False


class LineSource:
    """A JSONL input: a path, or `-` for standard input.

    Raises `Misconfigured` at once if it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        try:
            self._fd = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
            found = os.fstat(self._fd)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(0, "it is a directory")
        except (OSError, AttributeError, ValueError) as error:  # the last two: stdin is closed
            reason = getattr(error, "strerror", None) or "it is closed"
            raise Misconfigured(
                f"cannot read {self.name} ({reason}): name a JSONL file with one model response a "
                "line, or `-` for standard input"
            ) from None
        self.size = found.st_size if stat.S_ISREG(found.st_mode) else None
        self.is_terminal = os.isatty(self._fd)

    def is_same_file(self, path: str) -> bool:
        """Whether `path` names the input file."""
        try:
            return self.size is not None and os.path.samestat(os.fstat(self._fd), os.stat(path))
        except OSError:
            return False

    async def lines(self) -> AsyncIterator[Line]:
        """Every line that is not blank. Raises OSError if reading fails."""
        rest, number, read, too_long = bytearray(), 0, 0, False
        first = True
        async for chunk in self._chunks():
            if first:
                first = False
                read += len(chunk) - len(chunk.removeprefix(codecs.BOM_UTF8))
                chunk = chunk.removeprefix(codecs.BOM_UTF8)
            *ended, tail = chunk.split(b"\n")
            for piece in ended:
                number, read = number + 1, read + len(piece) + 1
                if rest or too_long:
                    rest += piece
                    piece = bytes(rest)
                    rest.clear()
                too_long = too_long or len(piece) > LONGEST_LINE
                if too_long or piece.strip():
                    text = b"" if too_long else piece.rstrip(b"\r")
                    yield Line(number, text, read, too_long)
                too_long = False
            read += len(tail)
            rest += tail
            if len(rest) > LONGEST_LINE:
                too_long = True
                rest.clear()
        if too_long or rest.strip():  # the last line may lack its newline
            yield Line(number + 1, bytes(rest).rstrip(b"\r"), read, too_long)

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The chunks that a thread reads; it pauses when `_CHUNKS_AHEAD`.

        It is a daemon thread of its own: a file cannot be awaited, and a blocked read from a pipe
        or a terminal cannot be cancelled.
        """
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_AHEAD)

        def read_on() -> None:
            while True:
                got = _read(self._fd)
                put = chunks.put(got)
                try:
                    asyncio.run_coroutine_threadsafe(put, loop).result()
                except (RuntimeError, CancelledError):
                    put.close()
                    return  # the loop has ended
                if not got or isinstance(got, OSError):
                    return

        threading.Thread(target=read_on, name="toolpool-input", daemon=True).start()
        while chunk := await chunks.get():
            if isinstance(chunk, OSError):
                raise chunk
            yield chunk


def _read(fd: int) -> bytes | OSError:
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:  # another process made the pipe non-blocking
            select.select([fd], [], [])
        except OSError as error:
            return error
