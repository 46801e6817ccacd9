"""Glob patterns over paths inside the workspace."""

import re
from collections.abc import Callable
from fnmatch import translate

from toolpool.contract.errors import ToolError

_MOST_ALTERNATIVES = 64
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")

Matches = Callable[[tuple[str, ...]], bool]


def path_matcher(pattern: str) -> Matches:
    """Match path components: `*` within one, `**` across any number, `{a,b}` either.

    Raises ToolError for a pattern that is empty, absolute or goes up with `..`.
    """
    alternatives = [_segments(alternative) for alternative in _expanded(pattern)]
    return lambda parts: any(_match(segments, parts) for segments in alternatives)


def filter_matcher(pattern: str | None) -> Matches:
    """Like `path_matcher`, but a pattern without `/` matches the file's name at any depth."""
    if pattern is None:
        return lambda parts: True
    return path_matcher(pattern if "/" in pattern else f"**/{pattern}")


_Segment = re.Pattern[str] | None  # None stands for `**`


def _segments(pattern: str) -> tuple[_Segment, ...]:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if pattern.startswith("/") or ".." in names or not names:
        raise ToolError(
            f"{pattern[:200]!r} is no pattern for paths inside the workspace.",
            recommendations=(
                "Use a relative pattern such as '*.toml', 'src/**/*.py' or '**/*.{md,txt}'.",
                "Name the folder to look in with path.",
            ),
        )
    segments: list[_Segment] = []
    for name in names:
        if name != "**":
            segments.append(re.compile(translate(name)))
        elif not segments or segments[-1] is not None:  # `**/**` equals `**`
            segments.append(None)
    return tuple(segments)


def _match(segments: tuple[_Segment, ...], parts: tuple[str, ...]) -> bool:
    """Tracks the set of reached positions, so that the cost is linear in the number of `**`."""
    reached = {0}
    for segment in segments:
        if segment is None:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and segment.match(parts[at])}
        if not reached:
            return False
    return len(parts) in reached


def _expanded(pattern: str) -> list[str]:
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        current = waiting.pop()
        braces = _BRACES.search(current)
        if braces is None:
            done.append(current)
        else:
            waiting += [
                current[: braces.start()] + option + current[braces.end() :]
                for option in braces[1].split(",")
            ]
        if len(done) + len(waiting) > _MOST_ALTERNATIVES:
            raise ToolError(
                f"The pattern has over {_MOST_ALTERNATIVES} alternatives in braces; use fewer."
            )
    return done
