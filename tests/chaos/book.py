"""What was asked and what was answered, and the verdict over a row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.journal import Journal
from toolpool.contract.result import ToolResult

CONTROL = "control"
LATE_SECONDS = 0.25
RECOVERY_SECONDS = 15.0
_SHOWN = 6
_AT_THE_DEADLINE_SECONDS = 0.15
"""From 0.1 s before it, a dispatcher makes sure that a call has an answer."""
_WELL_AFTER_SECONDS = 10.0
"""A call whose deadline is this long after an outage has the time to be settled: workers renew
their leases, dispatchers look again, and a worker that was waited for has returned."""


@dataclass(slots=True)
class Asked:
    """One call. `allowed` is how long after `at` its answer may come; times are monotonic."""

    key: str
    tool: str
    at: float
    allowed: float
    answers: list["Answer"] = field(default_factory=list)
    askers: int = 1
    """How many living dispatchers owe an answer."""

    @property
    def may_run_twice(self) -> bool:
        """Whether a second start does no harm."""
        return self.tool.startswith("read_")

    @property
    def mode(self) -> str:
        """How its tool runs: loop, thread or process."""
        return self.tool.partition("_")[2]

    def was_answered(self, at: float) -> bool:
        """Whether an answer had come by then."""
        return any(self.at + self.allowed + answer.late_by < at for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Answer:
    """A result and how long after the call's deadline it came (less than 0: before it)."""

    ok: bool
    code: str | None
    executed: str
    late_by: float
    data: object = None
    attempts: int = 1


@dataclass(slots=True)
class Figures:
    """A row's line in the report."""

    row: str
    seed: int
    calls: int = 0
    faults: int = 0
    missing: int = 0
    duplicate: int = 0
    late: int = 0
    double_starts: int = 0
    false_no: int = 0
    false_yes: int = 0
    lost_running: int = 0
    """Calls that ran when the server went away, came back in time, and were not answered with
    what their tool returned."""
    ok: int = 0
    recovery: float = 0.0
    latest: float = -1e9
    """When the latest answer came, in seconds after its deadline; less than 0 is before it."""
    lag: float = 0.0
    """The longest that this process could not run for: what the machine, not the pool, did."""
    overdue: list[float] = field(default_factory=list)
    """How long after its deadline each call was answered that had no answer until about then."""
    second_starts: list[float] = field(default_factory=list)
    """How long after a fault each read had its result that the fault made start again."""
    seconds: float = 0.0
    codes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """The row's own columns: what may never happen in it, and how often it did."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def never(self, what: str, found: Sequence[object]) -> None:
        """Count what may not happen."""
        self.counts[what] = len(found)
        if found:
            self.problems.append(f"{what}: {len(found)}, among them {list(found[:_SHOWN])}")

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return not self.problems


class Book:
    """Every call of a row, by its key."""

    def __init__(self) -> None:
        self.calls: dict[str, Asked] = {}
        self.extra = 0
        self.faults: list[float] = []
        """When each fault began."""
        self.outages: list[tuple[float, float]] = []
        """From when to when the server did not answer, or took no writes."""
        self.raised: list[str] = []
        """What `dispatch` raised, which it never may (R9)."""

    def ask(self, asked: Asked) -> None:
        """Note a call that is about to be made."""
        self.calls[asked.key] = asked

    def answered(self, key: str, result: ToolResult, late_by: float) -> None:
        """Note one result."""
        code = result.code.value if result.code else None
        self.said(
            key,
            ok=result.ok,
            code=code,
            executed=result.executed.value,
            data=result.data,
            late_by=late_by,
            attempts=result.attempts,
        )

    def said(self, key: str, **answer: Any) -> None:
        """Note what a dispatcher elsewhere said about a call."""
        self.calls[key].answers.append(Answer(**answer))

    def judge(self, figures: Figures, journal: Journal) -> None:
        """Fill in the figures. To be called when the workers have ended."""
        journal.follow()
        starts = journal.starts
        calls = list(self.calls.values())
        answers = [(asked, answer) for asked in calls for answer in asked.answers]
        figures.calls = len(calls)
        figures.ok = sum(answer.ok for _, answer in answers)
        figures.codes = dict(Counter(answer.code or "ok" for _, answer in answers))
        figures.latest = max((answer.late_by for _, answer in answers), default=figures.latest)
        figures.overdue = [a.late_by for _, a in answers if a.late_by >= -_AT_THE_DEADLINE_SECONDS]
        figures.second_starts = [min(since) for since in map(self._since_faults, answers) if since]
        found = {
            "missing": [c.key for c in calls if len(c.answers) < c.askers],
            "duplicate": ["extra"] * self.extra + [c.key for c in calls if _contradict(c)],
            "lost_running": sorted(self._lost_running(journal)),
            "late": [
                f"{c.key}:{c.tool}:{a.code}:+{a.late_by:.2f}s"
                for c, a in answers
                if a.late_by > LATE_SECONDS
            ],
            "double_starts": [
                f"{c.key}:{c.tool}" for c in calls if starts[c.key] > 1 and not c.may_run_twice
            ],
            "false_no": [
                f"{c.key}:{c.tool}:{a.code}"
                for c, a in answers
                if a.executed == "no" and starts[c.key]
            ],
            "false_yes": [
                f"{c.key}:{c.tool}:{a.code}"
                for c, a in answers
                if a.executed == "yes" and not starts[c.key]
            ],
        }
        for name, keys in found.items():
            setattr(figures, name, len(keys))
            if keys:
                figures.problems.append(f"{name}: {len(keys)}, among them {keys[:_SHOWN]}")
        if foreign := [f"{c.key}:{c.tool}:{a.data}" for c, a in answers if not _is_own(c, a)]:
            figures.problems.append(f"answers of other calls: {foreign[:_SHOWN]}")
        if self.raised:
            figures.problems.append(f"raised: {len(self.raised)}, among them {self.raised[0]}")
        if figures.row == CONTROL:
            self._judge_control(figures)
        if figures.recovery > RECOVERY_SECONDS:
            figures.problems.append(f"workers did not consume for {figures.recovery:.1f} s")

    def _lost_running(self, journal: Journal) -> set[str]:
        """Calls that were running when an outage began, and whose tool's word was lost to it."""
        ends = {line.key: line.at for line in journal.lines if line.word == "end"}
        lost = set()
        for began, ended in self.outages:
            for line in journal.lines:
                asked = self.calls.get(line.key)
                if line.word != "start" or asked is None or line.at > began:
                    continue
                was_running = ends.get(line.key, began) >= began and not asked.was_answered(began)
                had_time = asked.at + asked.allowed > ended + _WELL_AFTER_SECONDS
                if was_running and had_time and not any(answer.ok for answer in asked.answers):
                    codes = [answer.code for answer in asked.answers]
                    lost.add(f"{asked.key}:{asked.tool}:{codes}:{ended - began:.1f}s")
        return lost

    def _since_faults(self, answered: tuple[Asked, Answer]) -> list[float]:
        """For a read that was started again: seconds from the faults it met to its result."""
        asked, answer = answered
        if not answer.ok or answer.attempts == 1 or not asked.may_run_twice:
            return []
        came = asked.at + asked.allowed + answer.late_by
        return [came - fault for fault in self.faults if asked.at <= fault <= came]

    @staticmethod
    def _judge_control(figures: Figures) -> None:
        """It holds when it does not keep the promise: what the suite looks for is there to find."""
        figures.notes, figures.problems = figures.problems, []
        if not figures.missing + figures.double_starts:
            figures.problems.append("bare Celery lost nothing: the suite is blind")


def _is_own(asked: Asked, answer: Answer) -> bool:
    """Tools return the key of their call, perhaps with something behind it."""
    if not answer.ok or answer.data is None:
        return True
    key, _, _ = str(answer.data).partition(":")
    return key == asked.key


def _contradict(asked: Asked) -> bool:
    """Whether two askers of one call were told different things about a tool that returned."""
    return len({str(answer.data) for answer in asked.answers if answer.ok}) > 1
