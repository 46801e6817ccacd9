"""The order of one turn's calls: reads side by side, a declared write alone."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from toolpool.contract.spec import Effects

T = TypeVar("T")


def stages(
    calls: Sequence[T], effects: Callable[[T], Effects | None], *, strict: bool = False
) -> list[list[T]]:
    """Groups that run one after another; the calls of a group run together.

    A write waits for the calls before it, and those after it wait for the write. `strict`: if there
    is a write, every call waits for the one before it.
    """
    if len(calls) == 1:
        return [list(calls)]
    if strict and Effects.WRITE in map(effects, calls):
        return [[call] for call in calls]
    groups: list[list[T]] = []
    open_group: list[T] | None = None
    for call in calls:
        if effects(call) is Effects.WRITE:
            groups.append([call])
            open_group = None
        elif open_group is None:
            open_group = [call]
            groups.append(open_group)
        else:
            open_group.append(call)
    return groups
