"""What toolpool logs, and how its own processes write it.

A line is an event and its fields, `lease_lost calls=3: why`. In a host's process the host's logging
takes it; `configure` is for the processes that are ours. Wherever it goes, a line that is repeated
is counted, text from outside cannot break out of its line, and an exception is shown without what
it says, which may hold anything.
"""

import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from toolpool.contract.encoding import printable
from toolpool.contract.faults import faults_in, faults_of, traceback_of
from toolpool.contract.log_writer import LogWriter

LEVELS = ("debug", "info", "warning", "error")

_REPEATED_SECONDS = 60.0
_LINES_REMEMBERED = 1_000
_FIELD_CHARACTERS = 500
_FIELD = re.compile(r"(?:(\w+)=)?%(?:%|[-#0 +]*[\d.*]*[a-zA-Z])")
_QUIET = ("celery", "kombu", "amqp", "redis", "asyncio", "httpcore", "httpx", "urllib3", "mcp")
"""Loggers of libraries whose lines below a warning are of no use to an operator."""

_with_texts = False


@dataclass(slots=True)
class _Repeated:
    """A line that was said `times` more since it was last written."""

    until: float
    times: int = 0


class _Careful(logging.Filter):
    """Counts repeated lines, and keeps what comes from outside inside of its line."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lines: OrderedDict[tuple[object, ...], _Repeated] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_plain(value) for value in record.args)
        if record.exc_info and not _with_texts:
            error = record.exc_info[1]
            record.exc_info = None
            if error is not None:
                record.exc_text = _traceback(error)
        times = self._before(record)
        if times:
            record.msg = f"{record.msg} (and {times} times more in the last minute)"
        return times >= 0

    def _before(self, record: logging.LogRecord) -> int:
        """How often it was held back since it was last written; -1 where it is held back now."""
        args = record.args if isinstance(record.args, tuple) else ()
        same = tuple(value for value in args if not isinstance(value, float))
        key, now = (record.name, record.msg, same), time.monotonic()
        with self._lock:
            known = self._lines.get(key)
            if known is not None and now < known.until:
                known.times += 1
                return -1
            self._lines.pop(key, None)
            self._lines[key] = _Repeated(now + _REPEATED_SECONDS)
            if len(self._lines) > _LINES_REMEMBERED:
                self._lines.popitem(last=False)
            return known.times if known is not None else 0

    def forget(self) -> None:
        """Count anew."""
        with self._lock:
            self._lines.clear()


_careful = _Careful()


def forget_repeats() -> None:
    """Write every line again, also one that was written just now."""
    _careful.forget()


def logger(name: str) -> logging.Logger:
    """The logger `toolpool.{name}`. What a handler raises is not raised to who logs."""
    found = logging.getLogger(f"toolpool.{name}")
    if "handle" not in vars(found):
        found.addFilter(_careful)
        found.handle = partial(_handled, found.handle)  # type: ignore[method-assign]
    return found


def _handled(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Hands a line over. A host's handler may fail, as where its stderr is closed."""
    with contextlib.suppress(Exception):
        handle(record)


def configure(
    *, level: str, format: Literal["text", "json"], with_texts: bool, quiet: bool = False
) -> None:
    """Write what this process logs to standard error. To be called in our own processes alone.

    `with_texts` lets lines hold what exceptions say. `quiet`: of our own only warnings are written.
    """
    global _with_texts
    _with_texts = with_texts
    handler = LogWriter(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.getLogger("toolpool").setLevel(max(number, logging.WARNING) if quiet else number)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # What a tool prints is seen as it does, and whole: with PYTHONUNBUFFERED a line and its
            # end are written apart, and a line of the log may come between them.
            stream.reconfigure(line_buffering=True, write_through=False)


def keep_on() -> None:
    """Write on, whatever the modules switched off that this process has imported since `configure`.

    `logging.config` disables every logger that it does not name, unless it is told not to.
    """
    ours = (name for name in logging.root.manager.loggerDict if name.split(".")[0] == "toolpool")
    for name in list(ours):
        logging.getLogger(name).disabled = False


def flush() -> None:
    """Wait until what was logged is written, for a second at most: before an abrupt end."""
    for handler in logging.getLogger().handlers:
        with contextlib.suppress(Exception):
            handler.flush()


def configure_child(environment: Mapping[str, str]) -> None:
    """Write what a process logs whose parent has read and checked the settings."""
    configure(
        level=environment.get("TOOLPOOL_LOG_LEVEL", "info").lower(),
        format="json" if environment.get("TOOLPOOL_LOG_FORMAT") == "json" else "text",
        with_texts=False,
    )


class TextFormatter(logging.Formatter):
    """`2026-11-22T10:04:05.123Z warning toolpool.worker worker_stalled id=w-1: why`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it."""
        level = record.levelname.lower()
        line = f"{_time(record)} {level} {record.name} {record.getMessage()}"
        traceback = _traceback_in(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, logger, event, message, the fields of the line, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        message, _, below = record.getMessage().partition("\n")
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": message.split(maxsplit=1)[0].rstrip(":") if message else "",
            "message": message,
        }
        for name, value in fields_of(record).items():
            line.setdefault(name, value)
        if traceback := _traceback_in(record) or below:
            line["traceback"] = traceback
        return json.dumps(line, ensure_ascii=False, default=str)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values of a line that its format names, as in `tool=%s`."""
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return {}
    names = [match[1] for match in _FIELD.finditer(record.msg) if match[0] != "%%"]
    if len(names) != len(record.args):
        return {}
    pairs = zip(names, record.args, strict=True)
    return {name: None if value == "None" else value for name, value in pairs if name}


def _plain(value: object) -> object:
    """Numbers as they are; anything else as text that stays inside of its line."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, _Lines):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - whatever it is, the line is written
        text = type(value).__name__
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if len(text) > _FIELD_CHARACTERS:
        text = text[:_FIELD_CHARACTERS] + "…"
    return text


class _Lines(str):
    """Text of ours that has several lines, as a stack does."""


def lines(text: str) -> str:
    """For a field that is to keep its line breaks: a stack, and nothing from outside."""
    return _Lines(printable(text))


def _traceback(error: BaseException) -> str:
    return traceback_of(faults_in({"faults": faults_of(error)}))


def _traceback_in(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
