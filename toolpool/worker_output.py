"""Copies the output and logs of this process's workers to its standard error."""

import codecs
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import IO

_LOOK_SECONDS = 0.1
_READ_BYTES = 1 << 16


class Echo:
    """Follows files that workers write, so that no worker waits for this process."""

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        self._followed = [_Followed(file) for file in files]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="toolpool-echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the remaining output and stop following."""
        self._stopping.set()
        self._thread.join(_LOOK_SECONDS * 20)

    def _follow(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._show()
        self._show(last=True)

    def _show(self, *, last: bool = False) -> None:
        for followed in self._followed:
            text = followed.lines(last=last)
            # The host may have replaced or closed it.
            with contextlib.suppress(Exception):
                if text and sys.stderr is not None:
                    sys.stderr.write(text)
                    sys.stderr.flush()


class _Followed:
    """An output file, and how much of it was shown."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._at = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def lines(self, *, last: bool) -> str:
        """The complete new lines; with `last`, an incomplete one as well."""
        text = self._begun
        while not self._file.closed:
            read = os.pread(self._file.fileno(), _READ_BYTES, self._at)
            if not read:
                break
            self._at += len(read)
            text += self._decoder.decode(read)
        if last:
            return text + "\n" if text and not text.endswith("\n") else text
        whole, newline, self._begun = text.rpartition("\n")
        return whole + newline
