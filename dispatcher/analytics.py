"""Counts which tools, fields and models calls are rejected for, to show which schema to improve.

Calls are counted when they are answered, or read back from a session record. No argument value is
kept: only names, and the kinds of problems.
"""

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolpool.contract import logs
from toolpool.contract.outcome import Code, ErrorType
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.problem import Problem
from toolpool.dispatcher.observer import Alert, Observers

log = logs.logger("analytics")

_WINDOW = 20
_ENOUGH = 10
_ALERT_RATE = 0.5
_RETRIES_REMEMBERED = 10_000
_TOOLS_AT_MOST = 5_000
_FIELDS_AT_MOST = 500
_WHOLE = "(all)"

_NO_SCHEMA_S_FAULT = frozenset({Code.UNKNOWN_TOOL, Code.LOOP})
"""Codes that no schema can prevent: a model may send any tool name, any number of times."""

Fields = Sequence[tuple[str, str]]
"""Paths, with `*` for list indexes, and the kind of each problem."""


@dataclass(slots=True)
class ToolFigures:
    """The counts of one tool: `fields` by path and kind; `models`, calls and rejections by name."""

    tool: str
    calls: int = 0
    rejected: int = 0
    retried: int = 0
    right_at_once: int = 0
    fields: Counter[tuple[str, str]] = field(default_factory=Counter)
    models: dict[str, list[int]] = field(default_factory=dict)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    is_alerted: bool = False

    @property
    def worst_field(self) -> str:
        """The field with the most rejections."""
        return self.fields.most_common(1)[0][0][0] if self.fields else _WHOLE


class _Rejection(msgspec.Struct, frozen=True):
    """The last call of a tool in a session: its turn, and whether it was a first rejection."""

    turn: int
    is_first: bool


class Analytics:
    """Counts calls and rejections, and raises an alert if half of a tool's last 20 are rejected."""

    def __init__(self, *, observers: Observers) -> None:
        self._tools: dict[str, ToolFigures] = {}
        self._turn = 0
        self._retries: OrderedDict[tuple[str, str], _Rejection] = OrderedDict()
        # Reported when a tool's rate exceeds the threshold, and again only after it has recovered.
        self._observers = observers

    def note(
        self, results: Iterable[ToolResult | None], *, session: str | None, model: str | None
    ) -> None:
        """Count the results of one turn."""
        self._turn += 1
        for result in results:
            if result is None or result.code in _NO_SCHEMA_S_FAULT or not result.name:
                continue
            self._count(
                result.name,
                session=session,
                model=model,
                rejected=not result.ok and result.error_type is ErrorType.VALIDATION,
                fields=(result.details or {}).get("fields", ()),
            )

    def count(
        self, tool: str, *, session: str | None, model: str | None, rejected: bool, fields: Fields
    ) -> None:
        """Count one call as a turn of its own."""
        self._turn += 1
        self._count(tool, session=session, model=model, rejected=rejected, fields=fields)

    def _count(
        self, tool: str, *, session: str | None, model: str | None, rejected: bool, fields: Fields
    ) -> None:
        figures = self._tools.get(tool)
        if figures is None:
            if len(self._tools) >= _TOOLS_AT_MOST:
                return
            figures = self._tools[tool] = ToolFigures(tool)
        figures.calls += 1
        figures.rejected += rejected
        figures.recent.append(rejected)
        if model is not None and (model in figures.models or len(figures.models) < 100):
            counts = figures.models.setdefault(model, [0, 0])
            counts[0] += 1
            counts[1] += rejected
        if session is not None and (rejected or self._retries):
            self._note_retry(figures, session, rejected=rejected)
        if rejected:
            for path, kind in fields or ((_WHOLE, "call"),):
                if (path, kind) in figures.fields or len(figures.fields) < _FIELDS_AT_MOST:
                    figures.fields[path, kind] += 1
        if rejected or figures.is_alerted or len(figures.recent) == _ENOUGH:
            self._alert(figures)

    def tools(self) -> list[ToolFigures]:
        """The figures of every tool, the most rejected first."""
        return sorted(self._tools.values(), key=lambda each: (-each.rejected, each.tool))

    def _note_retry(self, figures: ToolFigures, session: str, *, rejected: bool) -> None:
        """Count whether the call right after a rejection of the same tool was accepted."""
        key = (session, figures.tool)
        before = self._retries.get(key)
        if before is not None and before.turn == self._turn:
            return  # in the same turn as the rejection, not after it
        self._retries.pop(key, None)
        if before is not None and before.is_first:
            figures.retried += 1
            figures.right_at_once += not rejected
        if rejected:
            self._retries[key] = _Rejection(self._turn, is_first=before is None)
            if len(self._retries) > _RETRIES_REMEMBERED:
                self._retries.popitem(last=False)

    def _alert(self, figures: ToolFigures) -> None:
        if len(figures.recent) < _ENOUGH:
            return
        rate = sum(figures.recent) / len(figures.recent)
        if rate < _ALERT_RATE / 2:
            figures.is_alerted = False
        if rate < _ALERT_RATE or figures.is_alerted:
            return
        figures.is_alerted = True
        alert = Alert(tool=figures.tool, field=figures.worst_field, rate=round(rate, 3))
        log.warning("rejections_high tool=%s field=%s rate=%.2f", alert.tool, alert.field, rate)
        self._observers.notify("alerted", alert)


def fields_of(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Reduce problems to what analytics keep: paths without indexes, and kinds."""
    return [
        (
            ".".join("*" if isinstance(step, int) else step[:40] for step in problem.path)
            or _WHOLE,
            problem.kind,
        )
        for problem in problems[:20]
    ]


def read_record(lines: Iterable[str]) -> tuple[Analytics, int]:
    """The analytics of a session record, and the number of its lines that could not be read.

    The `fields` in the metadata of a result row name the fields that a call was rejected for: pairs
    of path and kind.
    """
    analytics = Analytics(observers=Observers())
    calls: dict[str, str] = {}
    unread = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["type"] == "tool_call":
                calls[row["id"]] = str(json.loads(row["content"])["name"])
            elif row["type"] == "tool_result" and row.get("parentId") in calls:
                _count_row(analytics, calls.pop(row["parentId"]), row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            unread += 1
    return analytics, unread


def _count_row(analytics: Analytics, tool: str, row: dict[str, Any]) -> None:
    metadata = row.get("metadata") or {}
    payload: Any = row.get("content")
    if isinstance(payload, str):
        try:
            payload = json.loads(payload)
        except ValueError:
            payload = {}
    payload = payload if isinstance(payload, dict) else {}
    code = str(metadata.get("code") or payload.get("code") or "")
    kind = metadata.get("errorType") or payload.get("errorType") or code.partition(".")[0]
    if code in _NO_SCHEMA_S_FAULT:
        return
    fields = [(str(path), str(what)) for path, what in metadata.get("fields") or ()]
    analytics.count(
        tool,
        session=str(metadata.get("session") or "record"),
        model=metadata.get("model"),
        rejected=kind == ErrorType.VALIDATION.value,
        fields=fields,
    )
