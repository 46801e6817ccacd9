"""Counts what a run did, for the table at its end, in constant space."""

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolpool.cli.screen import escaped
from toolpool.contract.outcome import ErrorType
from toolpool.contract.result import ToolResult

if TYPE_CHECKING:
    from rich.table import Table

_TOOLS_SHOWN = 100
_OTHER_TOOLS = "(other tools)"
_SAMPLE = 2_000
_OK = "ok"
_NONE = "·"


@dataclass(slots=True)
class Durations:
    """A uniform random sample of durations."""

    seen: int = 0
    sample: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.seen += 1
        if len(self.sample) < _SAMPLE:
            self.sample.append(seconds)
        elif (place := random.randrange(self.seen)) < _SAMPLE:  # noqa: S311 - statistics
            self.sample[place] = seconds

    def percentile(self, percent: int) -> float | None:
        """The duration that `percent` of the sample do not exceed; None without any."""
        if not self.sample:
            return None
        ordered = sorted(self.sample)
        return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


@dataclass(slots=True)
class ToolCounts:
    """One row: calls by how they ended (`ok` or an error type), and how long they took."""

    ended: Counter[str] = field(default_factory=Counter)
    durations: Durations = field(default_factory=Durations)

    def add(self, result: ToolResult) -> None:
        """Count one call."""
        self.ended[result.error_type.value if result.error_type is not None else _OK] += 1
        if result.error_type is not ErrorType.VALIDATION:  # rejections take almost no time
            self.durations.add(result.duration)

    def as_json(self) -> dict[str, Any]:
        """The row for programs; durations are seconds."""
        return {
            "calls": self.ended.total(),
            **{name: self.ended[name] for name in _ENDINGS},
            "p50": _rounded(self.durations.percentile(50)),
            "p95": _rounded(self.durations.percentile(95)),
        }


_ENDINGS = (_OK, *(error_type.value for error_type in ErrorType))


class Summary:
    """The counts of a run so far.

    Results for which no tool with their name exists are counted as well.
    """

    def __init__(self) -> None:
        self.turns = 0
        self.broken_lines = 0
        self.total = ToolCounts()
        self._tools: dict[str, ToolCounts] = {}
        self._started = time.monotonic()

    @property
    def calls(self) -> int:
        """The number of calls that got their result."""
        return self.total.ended.total()

    @property
    def failed(self) -> int:
        """The number of calls whose result is not ok."""
        return self.calls - self.total.ended[_OK]

    def begin(self) -> None:
        """Start the clock, after the set-up."""
        self._started = time.monotonic()

    def add(self, results: Iterable[ToolResult], *, broken: bool) -> None:
        """Count one turn."""
        self.turns += 1
        self.broken_lines += broken
        for result in results:
            self.total.add(result)
            name = result.name or "(no name)"
            if name not in self._tools and len(self._tools) >= _TOOLS_SHOWN:
                name = _OTHER_TOOLS
            self._tools.setdefault(name, ToolCounts()).add(result)

    def as_json(self) -> dict[str, Any]:
        """All counts, for programs."""
        seconds = time.monotonic() - self._started
        return {
            "turns": self.turns,
            "broken_lines": self.broken_lines,
            "seconds": round(seconds, 3),
            "calls_per_second": round(self.calls / seconds, 1) if seconds else None,
            "total": self.total.as_json(),
            "tools": {name: self._tools[name].as_json() for name in sorted(self._tools)},
        }

    def headline(self) -> str:
        """The main counts in one line, for people."""
        seconds = time.monotonic() - self._started
        rate = f", {self.calls / seconds:,.0f} calls/s" if self.calls and seconds else ""
        broken = f"; {_lines(self.broken_lines)} no model response" if self.broken_lines else ""
        return f"{self.turns:,} turns, {self.calls:,} calls in {seconds:.1f} s{rate}{broken}"

    def table(self) -> "Table":
        """The counts as a table, for people."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE,
            show_footer=len(self._tools) > 1,
        )
        headings = ("tool", "calls", "ok", "p50", "p95", "failed")
        for heading, footer in zip(headings, _cells("total", self.total), strict=True):
            is_text = heading in ("tool", "failed")
            table.add_column(
                heading,
                footer,
                justify="left" if is_text else "right",
                no_wrap=not is_text,
                overflow="fold",
                min_width=len(heading),
            )
        for name in sorted(self._tools):
            *cells, failed = _cells(name, self._tools[name])
            table.add_row(*(Text(escaped(cell)) for cell in cells), Text(failed, style="red"))
        return table


def _cells(name: str, counts: ToolCounts) -> list[str]:
    """The cells of a row.

    `failed` lists the counts of error types in one cell, to fit a narrow terminal.
    """
    times = [_duration(counts.durations.percentile(percent)) for percent in (50, 95)]
    failed = [f"{counts.ended[each]} {each}" for each in _ENDINGS[1:] if counts.ended[each]]
    return [
        name,
        str(counts.ended.total()),
        str(counts.ended[_OK] or _NONE),
        *times,
        ", ".join(failed),
    ]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _NONE
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _lines(count: int) -> str:
    return "1 line was" if count == 1 else f"{count} lines were"
