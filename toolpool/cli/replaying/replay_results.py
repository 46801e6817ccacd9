"""Judges recorded calls by today's tools, and runs them again if that is safe."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toolpool.cli.replaying.recorded_calls import Recorded
from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.admission.acceptance import Acceptance
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.messages.wording import wording_of

_JUDGED_BY_SCHEMA = ("", Code.INVALID_ARGUMENTS.value, Code.UNKNOWN_TOOL.value)
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """A call with another result: `what` in a few words, and both texts."""

    row: str
    tool: str
    what: str
    before: str
    now: str


@dataclass(slots=True)
class Report:
    """The results of all calls."""

    calls: int = 0
    judged: int = 0
    run: int = 0
    unread: int = 0
    differences: list[Difference] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {"same": not self.differences, **asdict(self)}


class Judge:
    """Judges recorded calls by these tools."""

    def __init__(self, specs: Sequence[ToolSpec], settings: Settings) -> None:
        self._catalog = Catalog()
        self._catalog.replace(specs)
        self._accepting = Acceptance(self._catalog, settings, wording_of(settings), None)

    def judge(self, calls: Iterable[Recorded], report: Report) -> list[Recorded]:
        """Compare each call with its recorded result.

        Returns the calls that would be accepted today.
        """
        accepted: list[Recorded] = []
        for recorded in calls:
            report.calls += 1
            if not isinstance(recorded.input, (dict, str)):
                continue
            if recorded.was_rejected and recorded.code not in _JUDGED_BY_SCHEMA:
                continue
            report.judged += 1
            verdict = self._verdict(recorded)
            if verdict is None:
                accepted.append(recorded)
            found = _compared(recorded, verdict)
            if found is not None:
                report.differences.append(found)
        return accepted

    def may_run(self, recorded: Recorded, *, everything: bool) -> bool:
        """Whether a call can be run again safely, or is to be run in any case."""
        spec = self._catalog.offers[recorded.tool].spec
        return not task_tools.is_own(spec) and (everything or spec.rerunnable)

    def _verdict(self, recorded: Recorded) -> ToolResult | None:
        is_text = isinstance(recorded.input, str)
        call = ToolCall(
            index=0,
            id=recorded.row,
            name=recorded.tool,
            arguments=None if is_text else recorded.input,
            text=recorded.input if is_text else None,
        )
        verdict = self._accepting.judge(call, None, "bare")
        return verdict if isinstance(verdict, ToolResult) else None


def _compared(recorded: Recorded, verdict: ToolResult | None) -> Difference | None:
    was = str((recorded.payload or {}).get("error", ""))
    now = (verdict.error or "") if verdict is not None else ""
    if recorded.payload is None:
        return None
    if not recorded.was_rejected:
        if verdict is None:
            return None
        return _difference(recorded, "accepted before, rejected now", "", now)
    if verdict is None:
        return _difference(recorded, "rejected before, accepted now", was, "")
    code = verdict.code.value if verdict.code is not None else ""
    if code != recorded.code:
        return _difference(recorded, f"{recorded.code} before, {code} now", was, now)
    if code == Code.INVALID_ARGUMENTS.value and was != now:
        return _difference(recorded, "rejected with another text", was, now)
    return None


def compared_run(recorded: Recorded, result: ToolResult) -> Difference | None:
    """How the result of a repeated call differs from the recorded one."""
    if recorded.payload is None or recorded.was_rejected:
        return None
    code = result.code.value if result.code is not None else ""
    if code != recorded.code:
        what = f"{recorded.code or 'ok'} before, {code or 'ok'} now"
        return _difference(recorded, what, _said(recorded.payload), _said(result.payload()))
    if recorded.metadata.get("truncated") or not result.ok:
        return None
    if recorded.payload.get("data") != result.data:
        was, now = _said(recorded.payload), _said(result.payload())
        return _difference(recorded, "another result", was, now)
    return None


def _said(payload: dict[str, Any]) -> str:
    from toolpool.dispatcher.formats.result_text import text_of

    return text_of(payload.get("data") if payload.get("ok") else payload.get("error"))


def _difference(recorded: Recorded, what: str, before: str, now: str) -> Difference:
    return Difference(recorded.row, recorded.tool, what, before[:_SHOWN], now[:_SHOWN])
