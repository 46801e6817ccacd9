"""`fs_glob` and `fs_grep`: list and search files.

They run in child processes: a regular expression can run forever, and only a process can be killed.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from toolpool.contract.errors import ToolError
from toolpool.workers.tool import tool
from toolpool.workers.tools.files.patterns import filter_matcher, path_matcher
from toolpool.workers.tools.files.reading import looks_binary
from toolpool.workers.tools.files.workspace import (
    LONGEST_PATH,
    Found,
    Place,
    Workspace,
    open_regular,
)

_LONGEST_PATTERN = 1000
_MOST_FILES = 1000
_LARGEST_FILE = 32 * 1024 * 1024
_LONGEST_LINE = 300
_ANSWER = 48 * 1024


@tool(timeout=30, effects="read")
def fs_glob(
    pattern: Annotated[
        str,
        Field(
            max_length=_LONGEST_PATTERN,
            description="What the paths look like: '*.toml' in that folder only, '**/*.py' at "
            "any depth, '**/*.{md,txt}' either.",
        ),
    ],
    path: Annotated[
        str,
        Field(
            max_length=LONGEST_PATH,
            description="The folder to look in; the workspace root by default.",
        ),
    ] = ".",
) -> str:
    """List the files of the workspace whose paths match a pattern.

    Returns one path a line, sorted, relative to the workspace root, and a last line in square
    brackets with their number. Folders themselves, links, and what lies in .git, .venv,
    node_modules and __pycache__ are not listed.
    """
    workspace = Workspace.current()
    place = workspace.place(path)
    matches = path_matcher(pattern)
    depth = len(place.parts)
    listed: list[str] = []
    total = 0
    for found in workspace.walk(place):
        if matches(found.place.parts[depth:]):
            total += 1
            if total <= _MOST_FILES:
                listed.append(str(found.place))
    if not total:
        hint = "" if "**" in pattern else "; '**/' in front of the pattern looks at any depth"
        return f"[no file in {place} matches {pattern!r}{hint}]"
    more = f", the first {_MOST_FILES} shown: use a narrower pattern" if total > _MOST_FILES else ""
    listed.append(f"[{_counted(total, 'file')}{more}]")
    return "\n".join(listed)


@dataclass(slots=True)
class _Search:
    """The parameters and results of one fs_grep."""

    expression: re.Pattern[str]
    context: int
    limit: int
    lines: list[str] = field(default_factory=list)
    size: int = 0
    matches: int = 0
    files: int = 0
    too_large: int = 0

    @property
    def full(self) -> bool:
        return self.matches >= self.limit or self.size > _ANSWER


@tool(timeout=30, effects="read")
def fs_grep(
    pattern: Annotated[
        str,
        Field(
            min_length=1,
            max_length=_LONGEST_PATTERN,
            description="A regular expression in Python's syntax, looked for in "
            "each line by itself.",
        ),
    ],
    path: Annotated[
        str,
        Field(
            max_length=LONGEST_PATH,
            description="The file or folder to search; the whole workspace by default.",
        ),
    ] = ".",
    glob: Annotated[
        str | None,
        Field(
            max_length=_LONGEST_PATTERN,
            description="Search only files like this, for example '*.py' (a name at any depth) "
            "or 'src/**/*.py' (a path below `path`).",
        ),
    ] = None,
    ignore_case: Annotated[bool, Field(description="Whether a matches A.")] = False,
    literal: Annotated[
        bool, Field(description="Take the pattern as plain text, without special characters.")
    ] = False,
    context: Annotated[
        int, Field(ge=0, le=20, description="Lines to show before and after each match.")
    ] = 0,
    limit: Annotated[int, Field(ge=1, le=1000, description="The most matching lines.")] = 200,
) -> str:
    """Search the text files of the workspace line by line.

    Returns `path:line number:text` for each match, `path-line number-text` for lines of context,
    and a last line in square brackets with the count. Binary files, links, and what lies in .git,
    .venv, node_modules and __pycache__ are passed over.
    """
    search = _Search(_compiled(pattern, ignore_case=ignore_case, literal=literal), context, limit)
    workspace = Workspace.current()
    place = workspace.place(path)
    if workspace.is_folder(place):
        wanted = filter_matcher(glob)
        depth = len(place.parts)
        for found in workspace.walk(place):
            if wanted(found.place.parts[depth:]):
                _search_found(found, search)
                if search.full:
                    break
    else:
        with workspace.file(place) as file:
            _search_data(file.read(_LARGEST_FILE + 1), place, search)
    search.lines.append(_conclusion(search, pattern))
    return "\n".join(search.lines)


def _compiled(pattern: str, *, ignore_case: bool, literal: bool) -> re.Pattern[str]:
    flags = re.IGNORECASE if ignore_case else re.NOFLAG
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the model's pattern, not about our code
            return re.compile(re.escape(pattern) if literal else pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"The pattern is no regular expression: {error}",
            recommendations=(
                "Put a backslash before ( ) [ ] { } . * + ? ^ $ | where they stand for themselves.",
                "Or set literal to true to search for the text as it is.",
            ),
        ) from None


def _search_found(found: Found, search: _Search) -> None:
    try:
        with open_regular(found.folder, found.place) as file:
            data = file.read(_LARGEST_FILE + 1)
    except ToolError:
        return  # gone, unreadable or replaced since it was listed
    _search_data(data, found.place, search)


def _search_data(data: bytes, place: Place, search: _Search) -> None:
    if len(data) > _LARGEST_FILE:
        search.too_large += 1
        return
    if looks_binary(data):
        return
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()  # text after the last line end is not a line
    hits = []
    for number, line in enumerate(lines):
        if search.expression.search(line.removesuffix("\r")):
            hits.append(number)
            if len(hits) + search.matches >= search.limit:
                break
    if hits:
        search.files += 1
        for line in _shown(lines, hits, place, search):
            search.lines.append(line)
            search.size += len(line.encode()) + 1


def _shown(lines: list[str], hits: list[int], place: Place, search: _Search) -> Iterator[str]:
    last = -1
    for position, hit in enumerate(hits):
        if search.full:
            return
        start = max(hit - search.context, last + 1)
        if search.context and (start > last + 1 or last < 0) and search.lines:
            yield "--"
        for number in range(start, hit):
            yield f"{place}-{number + 1}-{_clipped(lines[number])}"
        search.matches += 1
        yield f"{place}:{hit + 1}:{_clipped(lines[hit], search.expression)}"
        following = hits[position + 1] if position + 1 < len(hits) else len(lines)
        last = min(hit + search.context, following - 1)
        for number in range(hit + 1, last + 1):
            yield f"{place}-{number + 1}-{_clipped(lines[number])}"


def _clipped(line: str, expression: re.Pattern[str] | None = None) -> str:
    line = line.removesuffix("\r")
    if len(line) <= _LONGEST_LINE:
        return line
    found = expression.search(line) if expression else None
    start = max(0, (found.start() if found else 0) - _LONGEST_LINE // 3)
    end = start + _LONGEST_LINE
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


def _conclusion(search: _Search, pattern: str) -> str:
    left_out = (
        f"; {_counted(search.too_large, 'file')} over {_LARGEST_FILE:,} bytes not searched"
        if search.too_large
        else ""
    )
    if not search.matches:
        return f"[no match for {pattern[:200]!r}{left_out}]"
    more = "; there may be more: use a narrower pattern, path or glob" if search.full else ""
    found = f"{_counted(search.matches, 'match')} in {_counted(search.files, 'file')}"
    return f"[{found}{more}{left_out}]"


def _counted(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}es" if noun.endswith("ch") else f"{number:,} {noun}s"
