"""Tells probes of a container whether a worker is alive and ready: a file and two HTTP pages."""

import os
import time
from contextlib import suppress
from pathlib import Path

from toolpool.contract import logs

log = logs.logger("supervise")

_FRESH_SECONDS = 15.0
"""The largest age in seconds of the last `note`; the supervisor calls it once a second."""


class Health:
    """The health of a worker as last reported.

    `fault` and `unready` may be called from any thread. The file at `path` contains the health in a
    word or a sentence, and is touched with every `note` while the worker is alive, so a cheap probe
    has to check only the file's age.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._noted = ("", "the worker has not been started", time.monotonic())
        self._written = ""
        self._has_warned = False

    def note(self, *, fault: str, unready: str) -> None:
        """Record the worker's fault, and why it accepts no calls; empty if nothing is wrong."""
        if self._path is not None:  # written before the pages change, which are never ahead of it
            self._write(self._path, fault or unready or "ready", is_alive=not fault)
        self._noted = (fault, unready, time.monotonic())

    def fault(self) -> str:
        """Why the worker should be restarted; empty while its loops turn."""
        fault, _, at = self._noted
        silent = time.monotonic() - at
        if silent > _FRESH_SECONDS:
            return f"the supervisor has not looked at its worker for {silent:.0f} s"
        return fault

    def unready(self) -> str:
        """Why the worker accepts no calls now; empty if it accepts calls."""
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
            if not self._has_warned:
                self._has_warned = True
                log.warning("health_file_not_written path=%s: %s", path, error.strerror or error)
