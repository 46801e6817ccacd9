"""The output of commands: results on stdout, everything else on stderr.

rich omits colours if NO_COLOR is set or the stream is not a terminal.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolpool.cli.exit_codes import ReaderGone

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDTH_WITHOUT_TERMINAL = 110


def write(text: str) -> None:
    """One or more lines of result on stdout."""
    with _reader():
        sys.stdout.write(text + "\n")


def write_json(value: Any) -> None:
    """A result for programs: one JSON document on stdout, indented for a person's terminal."""
    write(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def escaped(text: str) -> str:
    """Text of a model or a tool, with `?` for characters that move a cursor or hide text."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def show(renderable: "RenderableType") -> None:
    """A result for people: a rich table or text on stdout."""
    with _reader():
        _console(stderr=False).print(renderable)


def print_error(message: str) -> None:
    """Write one line on stderr that says what is wrong and what to do."""
    line = " ".join(message.split("\n")) if "\n  " not in message else message
    sys.stderr.write(f"toolpool: {line}\n")


def note(message: str) -> None:
    """Write a line of information on stderr, only if it is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{message}\n")


def stderr_console() -> "Console":
    """A rich console for progress and summaries."""
    return _console(stderr=True)


def flush() -> None:
    """Flush stdout. Raises `ReaderGone` if its reader has ended."""
    with _reader():
        sys.stdout.flush()


@contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Otherwise the interpreter would try to flush again at its end, and report the failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, highlight=False)
