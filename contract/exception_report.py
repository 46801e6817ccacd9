"""A tool's exceptions as data: classes and frames, without the exceptions' text.

The text may hold anything, also arguments or secrets. The data here may go to logs and to Sentry.
"""

import hashlib
import linecache
import math
import os
import re
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import msgspec

from toolpool.contract.encoding import canonical, encode, printable
from toolpool.contract.outcome import Outcome

_FIRST_FRAMES, _LAST_FRAMES = 10, 30
_CHAIN_AT_MOST, _MEMBERS_AT_MOST, _FAULTS_AT_MOST = 5, 5, 15
_LINE_CHARACTERS, _CODE_CHARACTERS, _NAME_CHARACTERS = 1_000, 200, 200
_TEXT = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*\1""")
_TEXT_OF_LINES = re.compile(
    r"""#[^\n]*|(?P<quotes>"{3}|'{3})(?:\\.|(?!(?P=quotes)).)*(?:(?P=quotes)|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?""",
    re.DOTALL,
)
"""A comment or a string literal. Comments are matched too, so that a quotation mark in a comment
does not begin a string.
"""
_LINES_REMEMBERED = 1_000
_FILE_CHARACTERS = 1_000_000
_QUOTES = re.compile(r"""(["'])…\1|["']""")
_PACKAGE = str(Path(__file__).resolve().parent.parent)
_OURS = tuple(
    f"{Path(root) / room}/"
    for root in {_PACKAGE, str(Path(_PACKAGE) / "toolpool")}
    for room in ("contract", "dispatcher", "workers")
)
_TOOLS = tuple(f"{ours}tools/" for ours in _OURS if ours.endswith("/workers/"))
_LIBRARIES = tuple(
    dict.fromkeys(
        f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
)
_COMPILED = (*EXTENSION_SUFFIXES, ".pyc")
"""Modules without a source file. Their code objects name a file of the build machine."""
_NAME = type.__dict__["__qualname__"]
_MODULE = type.__dict__["__module__"]
_MRO = type.__dict__["__mro__"]
_MADE_AT_RUN_TIME = "(code made at run time)"

_imported_at = math.inf
"""When this process finished importing its tools, in Unix time."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a traceback. `is_own`: the file belongs to the tool's author, not to a library.

    For code made at run time, which a model may have written, only the line number is given.
    """

    file: str
    line: int
    function: str
    module: str = ""
    code: str = ""
    is_own: bool = False


class ExceptionReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One exception: its class and the frames of its traceback, outermost first.

    `left_out` counts omitted frames in the middle. `is_cause`: the next exception in the list was
    raised from this one; otherwise while this one was handled. `members`: those of an exception
    group, each with the exceptions that led to it; nested groups are flattened.
    """

    kind: str
    module: str = ""
    frames: tuple[Frame, ...] = ()
    left_out: int = 0
    is_cause: bool = False
    members: tuple[tuple["ExceptionReport", ...], ...] = ()

    @property
    def name(self) -> str:
        """The qualified class name; the module is omitted for builtins."""
        is_known = self.module in ("", "builtins")
        return self.kind if is_known else f"{self.module}.{self.kind}"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call as observers see it. `digest` identifies its arguments.

    `arguments_bytes` is their size. `cause` says how the tool's process ended, or what is wrong
    with the result of `result_bytes` bytes; "" and 0 if not applicable. `text` is the error message
    of the tool or the pool. It may hold anything, so it is None unless the setting `error_texts`
    allows it.
    """

    text: str | None
    faults: tuple[ExceptionReport, ...]
    digest: str
    arguments_bytes: int
    cause: str = ""
    result_bytes: int = 0


def failure_of(outcome: Outcome, arguments: dict[str, Any], *, with_text: bool) -> Failure | None:
    """The `Failure` of an outcome; None if it is ok."""
    if outcome.ok:
        return None
    try:
        encoded = canonical(arguments)
    except TypeError:  # a host's keys may be no texts
        encoded = encode(arguments)
    details = outcome.details or {}
    cause, result_bytes = details.get("cause"), details.get("result_bytes")
    return Failure(
        text=outcome.error if with_text else None,
        faults=faults_in(outcome.details),
        digest=hashlib.blake2b(encoded, digest_size=8).hexdigest(),
        arguments_bytes=len(encoded),
        cause=cause if isinstance(cause, str) else "",
        result_bytes=result_bytes if isinstance(result_bytes, int) else 0,
    )


def tools_imported(at: float | None = None) -> float:
    """Hide the code of files that change after the tools were imported.

    Returns the Unix time of the import: now, or `at`. A replacement child passes the time of its
    worker's import as `at`; `inf` hides nothing.
    """
    global _imported_at
    _imported_at = time.time() if at is None else at
    return _imported_at


def is_own(file: str) -> bool:
    """Whether a file belongs to the tool's author rather than to toolpool or a library."""
    return not _is_ours(file) and not file.startswith((*_LIBRARIES, "<frozen ", _MADE_AT_RUN_TIME))


def faults_of(error: BaseException) -> list[dict[str, Any]]:
    """`ExceptionReport`s as JSON: causes first, `error` last. Never raises."""
    try:
        return [_encoded(fault) for fault in _chain(error, set())]
    except BaseException:  # noqa: BLE001 - a tool may override __cause__ and __context__
        return []


def faults_in(details: dict[str, Any] | None) -> tuple[ExceptionReport, ...]:
    """The exception reports in an outcome's details; none if they are missing or malformed."""
    try:
        return msgspec.convert((details or {}).get("faults", ()), tuple[ExceptionReport, ...])
    except msgspec.ValidationError:
        return ()


def own_frame(faults: Sequence[ExceptionReport]) -> Frame | None:
    """The deepest frame of the tool's author, in the last exception that has one.

    If all frames belong to libraries, as for tools installed as a package, the outermost frame.
    """
    for fault in reversed(faults):
        for frame in reversed(fault.frames):
            if frame.is_own:
                return frame
    return next((fault.frames[0] for fault in reversed(faults) if fault.frames), None)


def reported_apart(faults: Sequence[ExceptionReport]) -> Sequence[Sequence[ExceptionReport]]:
    """The chains to report separately: the members of an exception group, else the one chain."""
    return faults[-1].members if faults and faults[-1].members else [faults]


def traceback_of(faults: Iterable[ExceptionReport]) -> str:
    """The traceback as Python prints it, without the exceptions' messages."""
    parts: list[str] = []
    for fault in faults:
        if fault.frames:
            parts.append("Traceback (most recent call last):")
        for frame in fault.frames:
            parts += _shown(frame)
        if fault.left_out:
            parts.append(f"  ({fault.left_out} more frames in between)")
        parts.append(fault.name)
        for number, member in enumerate(fault.members, 1):
            parts.append(f"  +-- {number} of {len(fault.members)}")
            parts.append(textwrap.indent(traceback_of(member), "  | "))
    return "\n".join(parts)


def _encoded(fault: ExceptionReport) -> dict[str, Any]:
    encoded: dict[str, Any] = msgspec.to_builtins(fault)
    return encoded


def _chain(error: BaseException, seen: set[int]) -> list[ExceptionReport]:
    """The exception and its causes, oldest first, without those already in `seen`."""
    chain: list[ExceptionReport] = []
    current: BaseException | None = error
    is_cause = False
    while current is not None and id(current) not in seen and len(chain) < _CHAIN_AT_MOST:
        if len(seen) >= _FAULTS_AT_MOST:
            break
        seen.add(id(current))
        chain.append(_fault(current, seen, is_cause=is_cause))
        is_cause = True
        if current.__cause__ is not None or current.__suppress_context__:
            current = current.__cause__
        else:
            current, is_cause = current.__context__, False
    return chain[::-1]


def _fault(error: BaseException, seen: set[int], *, is_cause: bool) -> ExceptionReport:
    kind = _named_class(error)
    frames = _frames(error.__traceback__)
    left_out = max(0, len(frames) - _FIRST_FRAMES - _LAST_FRAMES)
    if left_out:
        frames = frames[:_FIRST_FRAMES] + frames[-_LAST_FRAMES:]
    members = (_chain(member, seen) for member in _members(error))
    return ExceptionReport(
        kind=_short(str.__str__(_NAME.__get__(kind))),
        module=_short(_module_of(kind)),
        frames=tuple(_frame(frame, line) for frame, line in frames),
        left_out=left_out,
        is_cause=is_cause,
        members=tuple(tuple(chain) for chain in members if chain),
    )


def _members(error: BaseException) -> Iterator[BaseException]:
    """The members of a group and of its nested groups, up to a limit."""
    left = [error] if isinstance(error, BaseExceptionGroup) else []
    found = 0
    while left and found < _MEMBERS_AT_MOST:
        member = left.pop()
        if isinstance(member, BaseExceptionGroup):
            left += reversed(member.exceptions)
        else:
            found += 1
            yield member


def _named_class(error: BaseException) -> type:
    """The first class in the MRO that is importable by its name; a model may create others."""
    mro: tuple[type, ...] = _MRO.__get__(type(error))
    return next(filter(_is_in_module, mro), BaseException)


def _is_in_module(kind: type) -> bool:
    found: Any = sys.modules.get(_module_of(kind))
    for part in _NAME.__get__(kind).split("."):
        try:
            found = vars(found).get(part)
        except TypeError:  # no __dict__
            return False
    return found is kind


def _module_of(kind: type) -> str:
    module = _MODULE.__get__(kind)
    return module if type(module) is str else ""


def _frames(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The frames and lines of a traceback, without toolpool's frames above the tool's."""
    frames: list[tuple[FrameType, int]] = []
    while traceback is not None:
        if frames or not _is_ours(traceback.tb_frame.f_code.co_filename):
            frames.append((traceback.tb_frame, traceback.tb_lineno or 0))
        traceback = traceback.tb_next
    return frames


def stack_of(frame: FrameType | None, at_most: int) -> str:
    """A frame and its callers as Python prints them, outermost first, without string contents."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < at_most:
        frames.append(_frame(frame, frame.f_lineno or 0))
        frame = frame.f_back
    return "".join(f"{line}\n" for found in reversed(frames) for line in _shown(found))


def _shown(frame: Frame) -> list[str]:
    where = f'  File "{frame.file}", line {frame.line}, in {frame.function}'
    return [where, f"    {frame.code}"] if frame.code else [where]


def _frame(frame: FrameType, line: int) -> Frame:
    code, module = frame.f_code, frame.f_globals.get("__name__")
    file, module = code.co_filename, module if type(module) is str else ""
    if not _was_imported(file, module):
        return Frame(file=_MADE_AT_RUN_TIME, line=line, function="?")
    found, own = linecache.getline(file, line), is_own(file)
    if own:  # library files hold no secrets, and masking them would take long
        found = _without_texts_of_lines(file, line, found)
    return Frame(
        file=_on_one_line(file),
        line=line,
        function=_short(code.co_name),
        module=_short(module),
        code=_without_texts(found.strip()),
        is_own=own,
    )


def _was_imported(file: str, module: str) -> bool:
    """Whether the code belongs to a loaded module whose file is unchanged since the import.

    Other code may have been written by a tool's program. Compares ctime, because a program can set
    a file's mtime.
    """
    if _imported_at == math.inf:
        return True
    if file.startswith("<frozen "):
        return file[8:-1] in sys.modules
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if isinstance(loaded, str) and loaded.endswith(_COMPILED):
        return True
    if loaded != file:
        return False
    try:
        return os.stat(file).st_ctime < _imported_at
    except (OSError, ValueError):  # in an archive
        return True


@lru_cache(_LINES_REMEMBERED)
def _without_texts_of_lines(file: str, line: int, found: str) -> str:
    """A line without its parts of multi-line strings."""
    text = "".join(linecache.getlines(file))
    if len(text) > _FILE_CHARACTERS:
        return ""  # masking it would block the worker
    blanked = _TEXT_OF_LINES.sub(_blank, text).split("\n")
    return blanked[line - 1] if 0 < line <= len(blanked) else found


def _blank(text: re.Match[str]) -> str:
    """A string literal without its contents.

    Unbalanced braces may mean an f-string with nested quotes (Python 3.12+), in which the quotation
    mark does not end the string.
    """
    found = text[0]
    if found[0] == "#":
        return found
    closed = found[0] if found.count("{") == found.count("}") else ""
    return f"{found[0]}…{closed}" + "\n" * found.count("\n")


def _without_texts(line: str) -> str:
    """A line of code without the contents of its string literals, which may be passwords."""
    blanked = _TEXT.sub(_blank, line[:_LINE_CHARACTERS])
    for quotes in _QUOTES.finditer(blanked):
        if len(quotes[0]) == 1:  # a string that continues on the next line
            blanked = blanked[: quotes.start()] + "…"
            break
    return _on_one_line(blanked[:_CODE_CHARACTERS])


def _is_ours(file: str) -> bool:
    """Whether a file is toolpool's own; the built-in tools count as tools."""
    return file.startswith(_OURS) and not file.startswith(_TOOLS)


def _short(name: str) -> str:
    return _on_one_line(name[:_NAME_CHARACTERS])


def _on_one_line(text: str) -> str:
    """Escape line breaks so that outside text cannot forge lines of its own."""
    text = printable(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
