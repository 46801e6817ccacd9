"""`fs_read`: part of one text file."""

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, BinaryIO

from pydantic import Field

from toolpool.contract.errors import ToolError
from toolpool.workers.tool import tool
from toolpool.workers.tools.files.workspace import LONGEST_PATH, Place, Workspace

_MOST_LINES = 2000
_LONGEST_LINE = 2000
_SCANNED = 64 * 1024 * 1024
_ANSWER = 48 * 1024  # leaves room for the closing line below the default output limit
_SNIFFED = 8192
_EMPTY = "[the file is empty]"


@tool(timeout=30, effects="read", run_in="thread")
def fs_read(
    path: Annotated[
        str, Field(max_length=LONGEST_PATH, description="The file, relative to the workspace root.")
    ],
    offset: Annotated[
        int,
        Field(
            description="First line to read, from 1. Negative counts from the end: -20 is the "
            "last 20 lines."
        ),
    ] = 1,
    limit: Annotated[
        int, Field(ge=1, le=_MOST_LINES, description="The most lines to read.")
    ] = _MOST_LINES,
) -> str:
    """Read a text file of the workspace.

    Returns the lines as they are, without line numbers. When there is more, a last line in square
    brackets says which lines these were and how to go on. Binary files are refused. Lines over
    2,000 bytes are cut.
    """
    workspace = Workspace.current()
    place = workspace.file_place(path)
    with workspace.file(place) as file:
        _refuse_binary(file, place)
        if offset < 0:
            return _tail(file, place, -offset, limit)
        return _from(file, place, min(max(offset, 1), sys.maxsize), limit)


def looks_binary(head: bytes) -> bool:
    """Whether a file that starts with `head` is binary: it has NUL bytes, as in git's rule."""
    return b"\0" in head[:_SNIFFED]


def _refuse_binary(file: BinaryIO, place: Place) -> None:
    head = file.read(_SNIFFED)
    if looks_binary(head):
        size = file.seek(0, 2)
        raise ToolError(
            f"{place} is a binary file ({size:,} bytes), not text.",
            recommendations=("Read a text file instead; binary files cannot be shown.",),
        )
    file.seek(0)


def _from(file: BinaryIO, place: Place, first: int, limit: int) -> str:
    lines = _lines(file)
    skipped = sum(1 for _ in islice(lines, first - 1))
    taken, more = _fitting(lines, limit)
    if not taken:
        if not skipped:
            return _EMPTY
        if file.read(1):
            raise ToolError(
                f"{place} is over {_SCANNED:,} bytes, and this tool reads only its first "
                f"{skipped:,} lines.",
                recommendations=("Read an earlier part, or work on a smaller file.",),
            )
        raise ToolError(
            f"{place} has {skipped} lines, so there is nothing from line {first} on.",
            recommendations=("Use a smaller offset, or a negative one to read the end.",),
        )
    last = first + len(taken) - 1
    total = last + more + sum(1 for _ in lines)
    if file.read(1):
        taken.append(f"[lines {first}-{last}; this tool reads the first {_SCANNED:,} bytes only]")
    elif more:
        taken.append(f"[lines {first}-{last} of {total}; go on with offset={last + 1}]")
    elif first > 1:
        taken.append(f"[lines {first}-{last} of {total}]")
    return "\n".join(taken)


def _tail(file: BinaryIO, place: Place, wanted: int, limit: int) -> str:
    kept: deque[str] = deque(maxlen=min(wanted, _MOST_LINES))
    total = 0
    for line in _lines(file):
        total += 1
        kept.append(line)
    if file.read(1):
        raise ToolError(
            f"{place} is over {_SCANNED:,} bytes, and this tool does not reach its end.",
            recommendations=("Read it from the start with a positive offset.",),
        )
    if not total:
        return _EMPTY
    taken, _ = _fitting(iter(kept), limit)
    first = total - len(kept) + 1
    taken.append(f"[lines {first}-{first + len(taken) - 1} of {total}]")
    return "\n".join(taken)


def _fitting(lines: Iterator[str], limit: int) -> tuple[list[str], bool]:
    """The lines that fit into one answer, and whether another one was dropped."""
    taken: list[str] = []
    size = 0
    for line in lines:
        size += len(line.encode()) + 1
        if len(taken) == limit or (size > _ANSWER and taken):
            return taken, True
        taken.append(line)
    return taken, False


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines without line ends, each truncated; stops after `_SCANNED` bytes."""
    while file.tell() < _SCANNED:
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        cut = 0
        if not line.endswith(b"\n"):
            cut = _skip_rest(file)
        text = line.rstrip(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        yield f"{text} [… {cut:,} bytes more in this line]" if cut else text


def _skip_rest(file: BinaryIO) -> int:
    skipped = 0
    while piece := file.readline(65_536):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            return skipped - 1
        if file.tell() >= _SCANNED:
            break
    return skipped
