"""What toolpool logs, and how its own processes write it.

A line is an event and its fields, `lease_lost calls=3: why`. In a host's process the host's logging
takes it; `configure` is for the processes that are ours. Wherever it goes, a line that is repeated
is counted, text from outside cannot break out of its line, and an exception is shown without what
it says, which may hold anything. In our own processes the same goes for what Python and the
libraries we build on have to say.
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
"""`extra` of a line that is written however often it comes: that what there was is over."""
LEVELS = ("debug", "info", "warning", "error")

_YES = ("1", "true", "t", "yes", "y", "on")
_NAME = re.compile(r"\w+$")
_NAME_CHARACTERS = 64
_careful = log_filters.Careful()
_foreign = log_filters.Foreign()


def forget_repeats() -> None:
    """Write every line again, also one that was written just now."""
    for each in (_careful, _foreign):
        each.repeats.forget()


def forget_library_repeats() -> None:
    """Write what libraries say again, as where what they have said is over."""
    _foreign.repeats.forget()


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


_own = logger("process")
_handler: LogWriter | None = None
"""What this process writes its log with, where it is one of ours."""


def configure(
    *, level: str, format: Literal["text", "json"], with_texts: bool, quiet: bool = False
) -> None:
    """Write what this process logs to standard error. To be called in our own processes alone.

    `with_texts` lets lines hold what exceptions say. `quiet`: of our own only warnings are written.
    """
    global _handler
    _careful.with_texts = _foreign.with_texts = with_texts
    _handler = handler = LogWriter(sys.stderr)
    handler.addFilter(_foreign)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    # At once: at the first line it might pass for a thread that a tool has left behind, and where
    # that comes as the process ends, none can be started any more.
    handler.start()
    atexit.register(handler.flush)  # logging itself forgets it where a tool configures anew
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
            # What a tool prints is seen as it does, and whole: with PYTHONUNBUFFERED a line and its
            # end are written apart, and a line of the log may come between them.
            stream.reconfigure(line_buffering=True, write_through=False)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:
        name = failed.thread.name if failed.thread is not None else None
        _own.error(
            "thread_failed thread=%s: nothing caught what it raised",
            name,
            exc_info=failed.exc_value,
        )


def _not_raised(failed: "sys.UnraisableHookArgs") -> None:
    name = type(failed.object).__qualname__
    with contextlib.suppress(Exception):  # it is an object of a tool's
        name = str(getattr(failed.object, "__qualname__", name))
    _own.error("exception_ignored in=%s: nothing can catch it", name, exc_info=failed.exc_value)


def keep_on() -> None:
    """Write on, whatever the modules switched off that this process has imported since `configure`.

    `logging.config` disables every logger that it does not name, unless it is told not to, and
    removes the handlers that there are.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("toolpool", *log_filters.LIBRARIES):
            logging.getLogger(name).disabled = False
    if _handler is not None:
        others = [handler for handler in logging.root.handlers if handler is not _handler]
        logging.root.handlers[:] = [_handler, *others]  # first: what it leaves out, none has


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
        with_texts=environment.get("TOOLPOOL_ERROR_TEXTS", "").lower() in _YES,
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
            line.setdefault(name, value if _is_json(value) else str(value))
        if traceback := _traceback_in(record) or below:
            line["traceback"] = traceback
        return json.dumps(line)  # in ASCII, whatever the stream's encoding


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values of a line that its format names, as in `tool=%s`."""
    if not record.args or not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return {}
    values = [match for match in log_filters.VALUE.finditer(record.msg) if match[0][-1] != "%"]
    if len(values) != len(record.args):
        return {}
    names = [_name_before(record.msg, match.start()) for match in values]
    pairs = zip(names, record.args, strict=True)
    return {name: None if value == "None" else value for name, value in pairs if name}


def _is_json(value: object) -> bool:
    """Whether it may stand in a line as it is: NaN is no JSON, and an object may hold itself."""
    return (
        value is None
        or isinstance(value, str | int)
        or (isinstance(value, float) and math.isfinite(value))
    )


def _name_before(format: str, at: int) -> str:
    """The name in `name=%s`; none where another text stands before the value."""
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
