"""Splits a docstring into parameter descriptions and the tool's description.

It reads Google's `Args:` section and NumPy's underlined `Parameters`. Entries that do not describe
a parameter of the function stay in the description.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_GOOGLE = re.compile(r"(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments):\s*")
_NUMPY = re.compile(r"(?:Other )?Parameters\s*")
_UNDERLINE = re.compile(r"-{3,}\s*")
_GOOGLE_ENTRY = re.compile(r"\s*\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_LIST_ITEM = re.compile(r"[-*•]\s|\d+[.)]\s")


@dataclass(frozen=True, slots=True)
class Docstring:
    """`text` is the description without the descriptions of `parameters`, by name."""

    text: str
    parameters: dict[str, str]


def read_docstring(text: str, names: Collection[str]) -> Docstring:
    """Split a cleaned docstring; `names` are the function's parameters."""
    lines = text.splitlines()
    found: dict[str, str] = {}
    kept: list[str] = []
    at = 0
    while at < len(lines):
        heading = _heading(lines, at)
        if not heading:
            kept.append(lines[at])
            at += 1
            continue
        body = at + heading
        end = _end_of_section(lines, body, is_numpy=heading == 2)
        rest = _taken(lines[body:end], names, found, is_numpy=heading == 2)
        if any(line.strip() for line in rest):
            kept += [*lines[at:body], *rest]
        if end < len(lines) and kept and kept[-1].strip():
            kept.append("")
        at = end
    return Docstring("\n".join(kept).rstrip(), found) if found else Docstring(text, {})


def _heading(lines: list[str], at: int) -> int:
    """The number of lines of a parameter section's heading that begins here: 0, 1 or 2."""
    if _GOOGLE.fullmatch(lines[at]):
        return 1
    is_underlined = at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1])
    return 2 if is_underlined and _NUMPY.fullmatch(lines[at]) else 0


def _end_of_section(lines: list[str], start: int, *, is_numpy: bool) -> int:
    """Where the section ends: in Google's format at the first unindented line."""
    for at in range(start, len(lines)):
        line = lines[at]
        if not line.strip() or line[0].isspace():
            continue
        is_heading = at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1])
        if not is_numpy or is_heading or not _NUMPY_ENTRY.fullmatch(line.rstrip()):
            return at
    return len(lines)


def _taken(
    lines: list[str], names: Collection[str], found: dict[str, str], *, is_numpy: bool
) -> list[str]:
    """Collect the entries of `names`; returns the lines of all other entries."""
    rest: list[str] = []
    for entry in _entries(lines, is_numpy=is_numpy):
        match = (_NUMPY_ENTRY if is_numpy else _GOOGLE_ENTRY).fullmatch(entry[0].rstrip())
        named = re.findall(r"\w+", match[1]) if match else []
        if not named or not all(name in names for name in named):
            rest += entry
            continue
        first = [] if is_numpy or match is None or not match[2] else [match[2]]
        said = _flowing([*first, *entry[1:]])
        for name in named:
            if said:
                found.setdefault(name, said)
    return rest


def _entries(lines: list[str], *, is_numpy: bool) -> Iterator[list[str]]:
    """The lines of each entry: it begins at the smallest indentation."""
    widths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    least = 0 if is_numpy else min(widths, default=0)
    entry: list[str] = []
    for line in lines:
        begins = line.strip() and len(line) - len(line.lstrip()) == least
        if begins and entry and (is_numpy or _GOOGLE_ENTRY.fullmatch(line.rstrip())):
            yield entry
            entry = []
        if entry or line.strip():
            entry.append(line)
    if entry:
        yield entry


def _flowing(lines: list[str]) -> str:
    """Join wrapped lines; paragraphs and list items keep their own lines."""
    text = ""
    for line in lines:
        words = line.strip()
        if not words:
            text += "" if text.endswith("\n") else "\n"
        elif not text or text.endswith("\n") or _LIST_ITEM.match(words):
            text = f"{text.rstrip()}\n{words}" if text else words
        else:
            text += f" {words}"
    return text.strip()
