"""Filters that keep log lines on one line, without texts of errors, and suppress repeats.

`OwnLines` is for toolpool's lines, in any process. `LibraryLines` is for lines of Python and of the
libraries that toolpool uses, in toolpool's processes.
"""

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from toolpool.contract.encoding import printable
from toolpool.contract.exception_report import faults_in, faults_of, traceback_of

LIBRARIES = (
    "celery",
    "kombu",
    "amqp",
    "redis",
    "asyncio",
    "httpcore",
    "httpx",
    "urllib3",
    "mcp",
    "concurrent",
)
"""Loggers whose lines below `warning` are of no use to an operator."""

_REPEATED_SECONDS = 60.0
_LINES_REMEMBERED = 1_000
_FIELD_CHARACTERS = 500
_OBJECT = re.compile(r"\n|<|(?<=Exception in callback) ")
"""Where asyncio's messages show an object: a callback with arguments, a task with its error."""
_IN_ONE_FORMAT = ("celery", "kombu", "amqp")
"""Libraries whose lines with one format differ only in the number of attempts and the delay."""
VALUE = re.compile(r"%[-#0 +\d.*]*[a-zA-Z%]")
"""A placeholder of a format, or an escaped percent sign."""
_WORD = re.compile(r"[a-zA-Z]{2}")


@dataclass(slots=True)
class _Repeated:
    """A line that was suppressed `times` times since it was last written."""

    until: float
    times: int = 0


class _Repeats:
    """Counts lines that are repeated within a minute."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer that runs here may log as well
        self.lines: OrderedDict[Hashable, _Repeated] = OrderedDict()

    def before(self, line: Hashable) -> int:
        """How often the line was suppressed since it was last written; -1 to suppress it now."""
        now = time.monotonic()
        with self._lock:
            known = self.lines.get(line)
            if known is not None and now < known.until:
                known.times += 1
                return -1
            self.lines.pop(line, None)
            self.lines[line] = _Repeated(now + _REPEATED_SECONDS)
            if len(self.lines) > _LINES_REMEMBERED:
                self.lines.popitem(last=False)
            return known.times if known is not None else 0

    def forget(self) -> None:
        """Forget all lines: each is written again."""
        with self._lock:
            self.lines.clear()


class _Filter(logging.Filter):
    """`with_texts` allows messages of exceptions in lines."""

    def __init__(self) -> None:
        super().__init__()
        self.with_texts = False
        self.repeats = _Repeats()

    def _show_error(self, record: logging.LogRecord) -> None:
        error, record.exc_info = record.exc_info[1] if record.exc_info else None, None
        if error is not None:
            record.exc_text = traceback_of(faults_in({"faults": faults_of(error)}))
            if self.with_texts:
                record.exc_text += f": {_plain(error)}"

    def _is_written(self, record: logging.LogRecord, line: Hashable) -> bool:
        times = self.repeats.before(line)
        if times > 0:
            record.msg = f"{record.msg} (and {times} times more since it was last written)"
        return times >= 0


class OwnLines(_Filter):
    """Suppresses repeats of toolpool's lines, and keeps their arguments on one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if isinstance(record.args, tuple):
            record.args = tuple(_plain(value) for value in record.args)
        self._show_error(record)
        args = record.args if isinstance(record.args, tuple) else ()
        same = tuple(value for value in args if not isinstance(value, float))
        if getattr(record, "is_change", False):
            return True
        return self._is_written(record, (record.name, record.msg, same, record.exc_text))


class LibraryLines(_Filter):
    """Joins messages of libraries to one line each, and suppresses repeats.

    For the first handler of toolpool's processes: later handlers get no suppressed lines either.
    Lines of tools pass unchanged, as do lines of libraries below `warning`, which a tool enabled.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        name = record.name.partition(".")[0]
        if name not in (*LIBRARIES, "py") or record.levelno < logging.WARNING:
            return True
        try:
            text, format = record.getMessage(), str(record.msg)
        except Exception:  # noqa: BLE001 - the arguments do not fit: the handler reports it
            return True
        if name == "asyncio" and not self.with_texts:
            text = format = _OBJECT.split(text, maxsplit=1)[0]
        is_kind = name in _IN_ONE_FORMAT and _WORD.search(VALUE.sub("", format))
        self._show_error(record)
        record.msg, record.args = " ".join(text.split()), ()
        return self._is_written(record, (record.name, format if is_kind else text, record.exc_text))


def _plain(value: object) -> object:
    """Numbers unchanged; any other value as printable text of limited length."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, _Lines):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - the line is written anyway
        text = type(value).__name__
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if len(text) > _FIELD_CHARACTERS:
        text = text[:_FIELD_CHARACTERS] + "…"
    return text


class _Lines(str):
    """Trusted text with several lines, such as a stack."""


def lines(text: str) -> str:
    """A field that keeps its line breaks: for stacks, never for text from outside."""
    return _Lines(printable(text))
