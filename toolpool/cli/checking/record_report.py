"""Shows which schemas the rejected calls of a session record point to."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from toolpool.cli.checking.declarations import Level, Problem
from toolpool.cli.exit_codes import ExitCode, ExitNow
from toolpool.cli.replaying.recorded_calls import files_of
from toolpool.dispatcher.analytics import ToolFigures, read_record

_FIELDS_NAMED = 5
_ADVICE = {
    "required": "say in its description what to send, or give it a default",
    "type": "say in its description which type and form it takes, with an example",
    "enum": "list its members in the description too",
    "const": "name its one value in the description",
    "additionalProperties": "models expect a field of this name: rename one, or say what to use",
    "anyOf": "tell its alternatives apart by a const field, or take one form only",
    "oneOf": "tell its alternatives apart by a const field, or take one form only",
    "format": "show the format in the description, with an example",
    "pattern": "put the pattern into words in the description, with an example",
}


def check_record(path: Path) -> list[Problem]:
    """One warning per tool with rejected calls, and a hint for each of its worst fields."""
    try:
        analytics, unread = read_record(chain.from_iterable(map(_lines, files_of([path]))))
    except OSError as error:
        raise ExitNow(
            f"cannot read the record {path} ({error.strerror}): name a file or folder that "
            "TOOLPOOL_RECORD named",
            ExitCode.USAGE,
        ) from None
    found = [problem for figures in analytics.tools() for problem in _problems(figures)]
    if unread:
        told = "1 line is not a valid row" if unread == 1 else f"{unread} lines are not valid rows"
        found.append(Problem(Level.HINT, str(path), f"{told} of a record"))
    return found


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from lines


def _problems(figures: ToolFigures) -> Iterator[Problem]:
    if not figures.rejected:
        return
    told = f"{figures.rejected} of {figures.calls} calls were rejected"
    if figures.retried:
        told += f"; {figures.right_at_once} of {figures.retried} were right at the first retry"
    by_model = sorted(figures.models.items(), key=lambda item: -item[1][1])
    if by_model:
        told += "; by model: " + ", ".join(
            f"{name} {rejected} of {calls}" for name, (calls, rejected) in by_model[:_FIELDS_NAMED]
        )
    yield Problem(Level.WARNING, figures.tool, told)
    for (path, kind), count in figures.fields.most_common(_FIELDS_NAMED):
        what = _ADVICE.get(kind, "see what its description leaves open")
        times = "once" if count == 1 else f"{count} times"
        yield Problem(Level.HINT, figures.tool, f"{path} ({kind}), {times}: {what}")
