"""Paths into the arguments, as the model reads them."""

import json
import re
from collections.abc import Iterable, Sequence

from toolpool.contract.schema.json_values import escaped, pointer_step

_LONGEST_STEP = 40
_INDEXES_AT_MOST = 6
_AMBIGUOUS = re.compile(r'\A\Z|[.,:"]')
"""Field names that could be read as several steps, or not at all."""

Path = tuple[str | int, ...]


def one(path: Path) -> str:
    """A path such as `edits.0.path`."""
    return several([path])[0]


def several(paths: Iterable[Path], *, pointer: bool = False) -> list[str]:
    """One text per path; paths that differ in one index are combined: `items.0…4.qty`."""
    return [text for text, _ in counted(paths, pointer=pointer)]


def counted(paths: Iterable[Path], *, pointer: bool = False) -> list[tuple[str, int]]:
    """Like `several`, with the number of paths that each text combines."""
    listed = list(paths)
    groups: dict[tuple[Path, Path], list[Path]] = {}
    for path in listed:
        groups.setdefault(without_index(path), []).append(path)
    texts = []
    for (before, after), same in groups.items():
        indexes = {int(path[at]) for path in same if (at := _last_index(path)) is not None}
        middle = [_ranges(sorted(indexes))] if indexes else []
        lead, rest = ([_step(step, pointer=pointer) for step in part] for part in (before, after))
        steps = [*lead, *middle, *rest]
        texts.append((_joined(steps, pointer=pointer), len(same)))
    return texts


def without_index(path: Path) -> tuple[Path, Path]:
    """The parts of the path before and after its last index."""
    at = _last_index(path)
    return (path, ()) if at is None else (path[:at], path[at + 1 :])


def middle_out(path: str, characters: int) -> str:
    """A path, at most this long. If it is shortened, its start and its end are kept."""
    if len(path) <= characters:
        return path
    head = characters // 3
    return f"{path[:head]}…{path[head + 1 - characters :]}"


def cut_at(text: str, characters: int) -> str:
    """`text`, at most this long."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def name(text: str) -> str:
    """A name that the model sent, on one line and not too long."""
    return cut_at(escaped(text[: 4 * _LONGEST_STEP]), _LONGEST_STEP)


def _last_index(path: Path) -> int | None:
    return next((at for at in range(len(path) - 1, -1, -1) if isinstance(path[at], int)), None)


def _ranges(indexes: Sequence[int]) -> str:
    """`0…4`, `0,2`, `0…2,7`."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs]
    shown = texts[:_INDEXES_AT_MOST]
    return ",".join(shown) + (",…" if len(texts) > len(shown) else "")


def _step(step: str | int, *, pointer: bool) -> str:
    if isinstance(step, str) and not pointer and _AMBIGUOUS.search(step):
        return escaped(json.dumps(cut_at(step, _LONGEST_STEP), ensure_ascii=False))
    return name(str(step))


def _joined(steps: Sequence[str], *, pointer: bool) -> str:
    if not pointer:
        return ".".join(steps)
    return "".join("/" + pointer_step(step) for step in steps)
