"""Writes log lines from a background thread, so that logging never waits for the reader.

A pipe that no process reads is full at 64 KiB, and the next write to it never returns.
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
_CHECK_SECONDS = 0.005


class LogWriter(logging.Handler):
    """Queues lines for its thread; if too many wait, further ones are dropped and counted."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        # Its `put` is reentrant: a signal handler may log during another `put`.
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = 0
        self._taken = self._written = self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never raises."""
        try:
            line = without_secrets_in_use(self.format(_without_secrets(record))) + "\n"
        except Exception:  # noqa: BLE001 - a tool's arguments may not fit its format
            line = self.format(_unusable(record)) + "\n"
        if self._process != os.getpid():
            try:
                self.start()
            except RuntimeError:  # no thread can be started any more
                return
        if self._taken - self._written >= _LINES_AT_MOST:
            self._dropped += 1
            return
        self._taken += 1
        self._waiting.put(line)

    def flush(self) -> None:
        """Wait until all lines are written, for a second at most."""
        give_up_at = time.monotonic() + _FLUSH_SECONDS
        while self._taken > self._written and time.monotonic() < give_up_at:
            time.sleep(_CHECK_SECONDS)

    def start(self) -> None:
        """Start the thread.

        The first line in this process, or in a fork of it, does this. A fork has no thread at
        first, and does not write the lines that waited in its parent.
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
    said = "log_lines_dropped count=%d: standard error was not read fast enough"
    return logging.LogRecord("toolpool.log", logging.WARNING, "", 0, said, (count,), None)


def _unusable(record: logging.LogRecord) -> logging.LogRecord:
    said = "log_line_lost of=%s at=%s:%d: it could not be formatted"
    args = (record.name, record.filename, record.lineno)
    return logging.LogRecord("toolpool.log", logging.ERROR, "", 0, said, args, None)


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    """A copy without the secrets in use; a formatter could cut or split them."""
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
    text = str(value)
    hidden = without_secrets_in_use(text)
    return value if hidden == text else hidden
