"""Writes log lines from a thread of its own: nobody who logs waits for whoever reads them.

A pipe that nobody reads is full at 64 KiB, and the next write to it never returns.
"""

import contextlib
import copy
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

from toolpool.contract.redaction import are_in_use, without_secrets_in_use

_LINES_AT_MOST = 10_000
_FLUSH_SECONDS = 1.0
_LOOK_SECONDS = 0.005


class LogWriter(logging.Handler):
    """Takes a line and returns at once; where too many wait, the next are dropped and counted."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        # Its `put` may be called from a signal handler that has interrupted another one.
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = 0
        self._taken = self._written = self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written. Never raises: a stream may have been closed by a tool."""
        try:
            line = without_secrets_in_use(self.format(_without_secrets(record))) + "\n"
        except Exception:  # noqa: BLE001 - a tool's own arguments, which do not fit its format
            line = self.format(_unusable(record)) + "\n"
        if self._process != os.getpid():
            try:
                self.start()
            except RuntimeError:  # there is no room for a thread
                return
        if self._taken - self._written >= _LINES_AT_MOST:
            self._dropped += 1
            return
        self._taken += 1
        self._waiting.put(line)

    def flush(self) -> None:
        """Wait until what was logged is written, for a second at most."""
        give_up_at = time.monotonic() + _FLUSH_SECONDS
        while self._taken > self._written and time.monotonic() < give_up_at:
            time.sleep(_LOOK_SECONDS)

    def start(self) -> None:
        """Start the thread; the first line does so as well, and the first in a fork of the process.

        A fork has no thread, and has nothing to write that waited before it.
        """
        self._waiting = queue.SimpleQueue()
        self._taken = self._written = self._dropped = 0
        threading.Thread(
            target=self._write_all, args=(self._waiting,), name="toolpool-log", daemon=True
        ).start()
        self._process = os.getpid()

    def _write_all(self, waiting: "queue.SimpleQueue[str]") -> None:
        while True:
            line = waiting.get()
            with contextlib.suppress(Exception):
                self._stream.write(line)
                if waiting.empty():
                    self._stream.flush()
            self._written += 1
            if self._dropped and waiting.empty():
                dropped, self._dropped = self._dropped, 0
                with contextlib.suppress(Exception):
                    self._stream.write(self.format(_dropped(dropped)) + "\n")
                    self._stream.flush()


def _dropped(count: int) -> logging.LogRecord:
    said = "log_lines_dropped count=%d: nobody read them"
    return logging.LogRecord("toolpool.log", logging.WARNING, "", 0, said, (count,), None)


def _unusable(record: logging.LogRecord) -> logging.LogRecord:
    said = "log_line_lost of=%s at=%s:%d: it could not be written out"
    args = (record.name, record.filename, record.lineno)
    return logging.LogRecord("toolpool.log", logging.ERROR, "", 0, said, args, None)


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    """The record without the secrets in use, before a formatter cuts or splits what it says."""
    if not are_in_use():
        return record
    hidden = copy.copy(record)
    hidden.msg = _hidden(record.msg)
    if isinstance(record.args, tuple):
        hidden.args = tuple(map(_hidden, record.args))
    elif isinstance(record.args, Mapping):
        hidden.args = {name: _hidden(value) for name, value in record.args.items()}
    return hidden


def _hidden(value: Any) -> Any:
    said = str(value)
    shown = without_secrets_in_use(said)
    return value if shown == said else shown
