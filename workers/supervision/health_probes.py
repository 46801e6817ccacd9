"""Whether a worker is alive and ready, for probes of a container: a file, and two pages of HTTP."""

import os
import time
from contextlib import suppress
from pathlib import Path

from toolpool.contract import logs

log = logs.logger("supervise")

_FRESH_SECONDS = 15.0
"""How long a supervisor may take from one note to the next; it notes once a second."""


class Health:
    """What the supervisor noted last. `fault` and `unready` may be called from any thread.

    The file at `path` says it in a word or a sentence, and is touched with every note while the
    worker is alive: its age is all that a cheap probe has to look at.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._noted = ("", "the worker has not been started", time.monotonic())
        self._written = ""
        self._is_told = False

    def note(self, *, fault: str, unready: str) -> None:
        """What is wrong with the worker, and why it takes no calls; empty where all is well."""
        if self._path is not None:  # before the pages say so: they are never ahead of it
            self._write(self._path, fault or unready or "ready", is_alive=not fault)
        self._noted = (fault, unready, time.monotonic())

    def fault(self) -> str:
        """Why the worker should be started anew; empty while its loops turn."""
        fault, _, at = self._noted
        silent = time.monotonic() - at
        if silent > _FRESH_SECONDS:
            return f"the supervisor has not looked at its worker for {silent:.0f} s"
        return fault

    def unready(self) -> str:
        """Why it takes no calls now; empty where it does."""
        return self.fault() or self._noted[1]

    def close(self) -> None:
        """Remove the file."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()

    def _write(self, path: Path, words: str, *, is_alive: bool) -> None:
        try:
            if words != self._written:
                path.write_text(words + "\n", encoding="utf-8")
                self._written = words
            if is_alive:
                os.utime(path)
            else:
                os.utime(path, (0, 0))
        except OSError as error:
            self._written = ""
            if not self._is_told:
                self._is_told = True
                log.warning("health_file_not_written path=%s: %s", path, error.strerror or error)
