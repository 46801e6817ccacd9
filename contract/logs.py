"""The loggers of toolpool, and the logging of its own processes.

A line is an event with fields, `lease_lost calls=3: why`. In a host's process the host's logging
handles it; `configure` is for toolpool's own processes. In both, repeated lines are counted, text
from outside cannot add lines, and exceptions are shown without their messages, which may hold
anything. In toolpool's processes this also holds for lines of Python and the libraries in use.
"""

import atexit
import contextlib
import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from toolpool.contract import log_filters
from toolpool.contract.log_filters import lines as lines
from toolpool.contract.log_writer import LogWriter

CHANGE = {"is_change": True}
"""The `extra` for a line that is never suppressed as a repeat, such as the end of an outage."""

_YES = ("1", "true", "t", "yes", "y", "on")
_NAME = re.compile(r"\w+$")
_NAME_CHARACTERS = 64
_own_lines = log_filters.OwnLines()
_library_lines = log_filters.LibraryLines()


def forget_repeats() -> None:
    """Write every line again, even if it was written less than a minute ago."""
    for each in (_own_lines, _library_lines):
        each.repeats.forget()


def forget_library_repeats() -> None:
    """Write lines of libraries again, as after the end of an outage."""
    _library_lines.repeats.forget()


def logger(name: str) -> logging.Logger:
    """The logger `toolpool.{name}`. Errors of its handlers are suppressed."""
    found = logging.getLogger(f"toolpool.{name}")
    if "handle" not in vars(found):
        found.addFilter(_own_lines)
        found.handle = partial(_handle_safely, found.handle)  # type: ignore[method-assign]
    return found


def _handle_safely(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Handle a record. A host's handler may fail, for example if its stderr is closed."""
    with contextlib.suppress(Exception):
        handle(record)


_own = logger("process")
_handler: LogWriter | None = None
"""The handler of this process, if it is one of toolpool's own."""


def configure(
    *, level: str, format: Literal["text", "json"], with_texts: bool, quiet: bool = False
) -> None:
    """Write the log of this process to standard error. Only for toolpool's own processes.

    `with_texts` allows messages of exceptions. With `quiet`, toolpool logs only warnings.
    """
    global _handler
    _own_lines.with_texts = _library_lines.with_texts = with_texts
    _handler = handler = LogWriter(sys.stderr)
    handler.addFilter(_library_lines)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    # Now rather than at the first line: then its thread might be taken for one that a tool left
    # behind, and at the end of the process no thread can be started.
    handler.start()
    atexit.register(handler.flush)  # logging does not flush it if a tool reconfigures logging
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in log_filters.LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.getLogger("toolpool").setLevel(max(number, logging.WARNING) if quiet else number)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _not_raised
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Prints of tools appear at once, in whole lines: with PYTHONUNBUFFERED a line and its
            # line feed are written separately, and a log line may come between them.
            stream.reconfigure(line_buffering=True, write_through=False)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:
        name = failed.thread.name if failed.thread is not None else None
        _own.error(
            "thread_failed thread=%s: an exception was not caught",
            name,
            exc_info=failed.exc_value,
        )


def _not_raised(failed: "sys.UnraisableHookArgs") -> None:
    name = type(failed.object).__qualname__
    with contextlib.suppress(Exception):  # the object may be a tool's
        name = str(getattr(failed.object, "__qualname__", name))
    _own.error("exception_ignored in=%s: it cannot be caught", name, exc_info=failed.exc_value)


def restore() -> None:
    """Re-enable the loggers and the handler that imports since `configure` have disabled.

    By default `logging.config` disables every logger that it does not name, and removes all
    handlers.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("toolpool", *log_filters.LIBRARIES):
            logging.getLogger(name).disabled = False
    if _handler is not None:
        others = [handler for handler in logging.root.handlers if handler is not _handler]
        logging.root.handlers[:] = [
            _handler,
            *others,
        ]  # first, so that the other handlers do not get the lines that it suppresses


def flush() -> None:
    """Wait until all lines are written, for a second at most.

    Called before the process ends abruptly.
    """
    for handler in logging.getLogger().handlers:
        with contextlib.suppress(Exception):
            handler.flush()


def configure_child(environment: Mapping[str, str]) -> None:
    """Configure a child process, whose parent has read and checked the settings."""
    configure(
        level=environment.get("TOOLPOOL_LOG_LEVEL", "info").lower(),
        format="json" if environment.get("TOOLPOOL_LOG_FORMAT") == "json" else "text",
        with_texts=environment.get("TOOLPOOL_ERROR_TEXTS", "").lower() in _YES,
    )


class TextFormatter(logging.Formatter):
    """`2026-11-22T10:04:05.123Z warning toolpool.worker worker_stalled id=w-1: why`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, then the traceback."""
        level = record.levelname.lower()
        line = f"{_time(record)} {level} {record.name} {record.getMessage()}"
        traceback = _traceback_in(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonFormatter(logging.Formatter):
    """A JSON object per line: time, level, logger, event, message, the fields, traceback."""

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
            line.setdefault(name, value if _is_json(value) else str(value))
        if traceback := _traceback_in(record) or below:
            line["traceback"] = traceback
        return json.dumps(line)  # in ASCII, so that it fits any encoding of the stream


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values that the format of a line names, as in `tool=%s`."""
    if not record.args or not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return {}
    values = [match for match in log_filters.VALUE.finditer(record.msg) if match[0][-1] != "%"]
    if len(values) != len(record.args):
        return {}
    names = [_name_before(record.msg, match.start()) for match in values]
    pairs = zip(names, record.args, strict=True)
    return {name: None if value == "None" else value for name, value in pairs if name}


def _is_json(value: object) -> bool:
    """Whether a value is valid JSON as it is: NaN is not, and an object may be recursive."""
    return (
        value is None
        or isinstance(value, str | int)
        or (isinstance(value, float) and math.isfinite(value))
    )


def _name_before(format: str, at: int) -> str:
    """The name in `name=%s`; empty if other text precedes the value."""
    if not format.endswith("=", 0, at):
        return ""
    name = _NAME.search(format[max(0, at - 1 - _NAME_CHARACTERS) : at - 1])
    return name[0] if name is not None else ""


def _traceback_in(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
