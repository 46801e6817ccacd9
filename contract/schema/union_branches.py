"""Finds the branch of a union that was certainly meant, if any.

`branches` are a validator's errors, a list for each branch in the order of the schema, and `nodes`
the schemas of the branches. `path` is the path to the value that matches none of them.
"""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs

from toolpool.contract.schema.json_values import json_type, listed_values

Error = jsonschema_rs.ValidationError
Path = tuple[str | int, ...]
Branches = Sequence[Sequence[Error]]

_UNKNOWN = frozenset({"additionalProperties", "unevaluatedProperties"})
_ABOUT_THE_VALUE = frozenset({"type", "enum", "const", "falseSchema"})
_NUMBERS = frozenset({"integer", "number"})


def open_branches(branches: Branches, path: Path, value: Any) -> list[int]:
    """The positions of the branches that accept values of this type."""
    return [
        number
        for number, branch in enumerate(branches)
        if not any(_excludes_the_type(error, path, value) for error in branch)
    ]


def branch_by_names(branches: Branches, numbers: Sequence[int], path: Path) -> int | None:
    """The only branch without missing and unknown fields."""
    fitting = [number for number in numbers if not any(_names(branches[number], path))]
    return fitting[0] if len(fitting) == 1 else None


def wrong_names(
    branches: Branches, numbers: Sequence[int], path: Path
) -> tuple[list[str], list[str]]:
    """The fields that each of these branches lacks, and those unknown to all of them."""
    found = [_names(branches[number], path) for number in numbers]
    if not found:
        return [], []
    missing, unknown = found[0]
    return (
        [name for name in missing if all(name in others for others, _ in found)],
        [name for name in unknown if all(name in others for _, others in found)],
    )


def listed_in(nodes: Sequence[Any]) -> tuple[list[Any], bool]:
    """All values that the branches list, and whether they accept no others."""
    listed: list[Any] = []
    is_all = True
    for node in nodes:
        if not isinstance(node, dict):
            return listed, False
        values = listed_values(node)
        if values is None and node.get("type") == "null":
            values = [None]
        if values is None:
            is_all = False
        else:
            listed += values
    return listed, is_all


def _names(branch: Sequence[Error], path: Path) -> tuple[list[str], list[str]]:
    """The fields that a branch lacks in the value itself, and those unknown to it."""
    missing: list[str] = []
    unknown: list[str] = []
    for error in branch:
        kind: Any = error.kind
        name = kind.name
        if name == "required" and len(error.instance_path) == len(path):
            missing.append(kind.property)
        elif name in _UNKNOWN and len(error.instance_path) == len(path):
            unknown += kind.unexpected
    return missing, unknown


def _excludes_the_type(error: Error, path: Path, value: Any) -> bool:
    """Whether a branch accepts no value of this type, or lists only values of other types."""
    kind: Any = error.kind
    name = kind.name
    if name not in _ABOUT_THE_VALUE or len(error.instance_path) != len(path):
        return False
    if name in ("enum", "const"):
        options = kind.options if name == "enum" else [kind.expected_value]
        return not any(_are_alike(option, value) for option in options)
    return True


def _are_alike(one: Any, other: Any) -> bool:
    kinds = {json_type(one), json_type(other)}
    return len(kinds) == 1 or kinds <= _NUMBERS
