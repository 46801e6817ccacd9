"""`fs_write`, `fs_edit`, `fs_multi_edit`: each replaces a file as a whole or not at all."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from toolpool.contract.errors import ToolError
from toolpool.workers.tool import tool
from toolpool.workers.tools.files.reading import looks_binary
from toolpool.workers.tools.files.workspace import LONGEST_PATH, Place, Workspace

_LARGEST = 10 * 1024 * 1024
_MOST_EDITS = 100
_NAMED_LINES = 5
_MOST_LINES = 100


FilePath = Annotated[
    str, Field(max_length=LONGEST_PATH, description="The file, relative to the workspace root.")
]
Old = Annotated[
    str,
    Field(
        min_length=1,
        max_length=_LARGEST,
        description="The text to replace, exactly as in the file, with its indentation. It must "
        "occur once, unless replace_all is true.",
    ),
]
New = Annotated[
    str, Field(max_length=_LARGEST, description="The text to put there; empty to delete.")
]
ReplaceAll = Annotated[bool, Field(description="Replace every occurrence of old.")]


class Edit(BaseModel):
    """One replacement."""

    model_config = ConfigDict(extra="forbid")

    old: Old
    new: New
    replace_all: ReplaceAll = False


@tool(timeout=30, effects="write", run_in="thread")
def fs_write(
    path: FilePath,
    content: Annotated[
        str, Field(max_length=_LARGEST, description="The whole new content of the file.")
    ],
) -> dict[str, Any]:
    """Write a whole text file, new or in place of the old one; missing folders are made.

    To change part of a file, use fs_edit. Returns the path, the bytes written, and whether the file
    was created.
    """
    workspace = Workspace.current()
    place = workspace.file_place(path)
    data = _encoded(content, place)
    with workspace.held(place, create=True) as file:
        created = file.replace(data)
    return {"path": str(place), "bytes": len(data), "created": created}


@tool(timeout=30, effects="write", run_in="thread")
def fs_edit(path: FilePath, old: Old, new: New, replace_all: ReplaceAll = False) -> dict[str, Any]:
    """Replace a piece of text in a file of the workspace.

    Read the file first: `old` must be in it character by character, and only once (add the lines
    around it to make it unique) unless `replace_all` is true. Returns the path, the number of
    replacements, and the line of each.
    """
    return _edit(path, [Edit(old=old, new=new, replace_all=replace_all)], numbered=False)


@tool(timeout=30, effects="write", run_in="thread")
def fs_multi_edit(
    path: FilePath,
    edits: Annotated[
        list[Edit],
        Field(
            min_length=1,
            max_length=_MOST_EDITS,
            description="Replacements, made in this "
            "order, each in the text that the ones before it left.",
        ),
    ],
) -> dict[str, Any]:
    """Replace several pieces of text in one file of the workspace, all of them or none.

    Each edit follows the rules of fs_edit. If one cannot be made, the file stays as it was. Returns
    the path, the number of replacements, and the line of each.
    """
    return _edit(path, edits, numbered=True)


def _edit(path: str, edits: list[Edit], *, numbered: bool) -> dict[str, Any]:
    workspace = Workspace.current()
    place = workspace.file_place(path)
    lines: list[int] = []
    replacements = 0
    with workspace.held(place) as file:
        text = _decoded(file.read(_LARGEST), place)
        for number, edit in enumerate(edits):
            where = f"edits.{number}: " if numbered else ""
            text, count, changed = _replaced(text, edit, place, where)
            replacements += count
            lines += changed
        file.replace(_encoded(text, place))
    return {"path": str(place), "replacements": replacements, "lines": lines[:_MOST_LINES]}


def _replaced(text: str, edit: Edit, place: Place, where: str) -> tuple[str, int, list[int]]:
    old, new = edit.old, edit.new
    if "\r\n" in text and "\r" not in old:
        # Models see and write plain line ends; the file keeps its own.
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    if old == new:
        raise ToolError(f"{where}old and new are the same text, so nothing would change.")
    count = text.count(old)
    if not count:
        raise _not_there(text, edit.old, place, where)
    lines = _line_numbers(text, old)
    if count > 1 and not edit.replace_all:
        named = ", ".join(map(str, lines[:_NAMED_LINES])) + (", …" if count > _NAMED_LINES else "")
        raise ToolError(
            f"{where}the text to replace occurs {count} times in {place} (lines {named}); "
            "nothing was changed.",
            recommendations=(
                "Make old unique with more of the lines around it.",
                "Or set replace_all to true to replace every occurrence.",
            ),
        )
    if len(text) + count * (len(new) - len(old)) > _LARGEST:
        raise ToolError(f"{where}the file would grow over {_LARGEST:,} bytes; nothing was changed.")
    return text.replace(old, new), count, lines


def _line_numbers(text: str, old: str) -> list[int]:
    """The line numbers of the first occurrences."""
    numbers: list[int] = []
    line, counted, at = 1, 0, text.find(old)
    while at >= 0 and len(numbers) < _MOST_LINES:
        line += text.count("\n", counted, at)
        counted = at
        numbers.append(line)
        at = text.find(old, at + len(old))
    return numbers


def _not_there(text: str, old: str, place: Place, where: str) -> ToolError:
    advice = [f"Read {place} again with fs_read and copy the text exactly, spaces included."]
    lines = _same_but_for_spaces(text, old)
    if lines:
        named = ", ".join(map(str, lines[:_NAMED_LINES]))
        advice.insert(0, f"Line {named} has the same text with other spaces or indentation.")
    return ToolError(
        f"{where}the text to replace is not in {place}; nothing was changed.",
        recommendations=advice,
    )


def _same_but_for_spaces(text: str, old: str) -> list[int]:
    wanted = [" ".join(line.split()) for line in old.strip().splitlines()]
    if not any(wanted) or len(wanted) > _MOST_LINES or len(text) > _LARGEST // 10:
        return []  # a hint is omitted if it would be expensive
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return [
        number + 1
        for number in range(len(lines) - len(wanted) + 1)
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted
    ]


def _decoded(data: bytes, place: Place) -> str:
    if not looks_binary(data):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            pass
    raise ToolError(
        f"{place} is not UTF-8 text, so editing could damage it; nothing was changed.",
        recommendations=("Write a whole new file with fs_write if that is what is wanted.",),
    )


def _encoded(text: str, place: Place) -> bytes:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolError(
            f"The text for {place} holds an unpaired surrogate, which no file can; "
            "nothing was written."
        ) from None
    if len(data) > _LARGEST:
        raise ToolError(
            f"{place} would have over {_LARGEST:,} bytes; nothing was written.",
            recommendations=("Split the content over several files.",),
        )
    return data
