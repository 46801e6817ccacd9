"""People who decide about the calls that wait for them, and what came of their decisions."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.asker import Asker
from tests.chaos.book import LATE_SECONDS, Answer, Book, Figures
from tests.chaos.journal import Journal
from tests.chaos.policy import AWAY
from tests.chaos.tools import RATED_A_SECOND
from toolpool import ApprovalRefused, Dispatcher
from toolpool.call_search import Finder
from toolpool.contract.errors import BrokerUnreachable
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.settings import Settings

APPROVE, DENY, CANCEL = "approve", "deny", "cancel"
ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"
ENDED = "ended"
"""Of a cancel that does not say whether the call was faster."""
_EVERY_SECONDS = 0.1
_LONGEST_THOUGHT_SECONDS = 1.5
_ENTERING_SECONDS = 0.5
"""How long after its claim the tool of a call is entered at most."""
_BETWEEN_SECONDS = 0.02
"""How much the time from a start to its note in the journal may differ."""


@dataclass(slots=True)
class Case:
    """A call that waits for a person. Times are monotonic; `expires` is in seconds."""

    key: str
    tool: str
    session: str
    asked_at: float
    expires: float
    turned: dict[str, str] = field(default_factory=dict)
    """What was tried (approve, deny, cancel), and whether it was accepted."""
    decided_at: float | None = None

    def was(self, act: str, *states: str) -> bool:
        """Whether this was tried, and ended like that."""
        return self.turned.get(act) in states

    @property
    def owed_from(self) -> float:
        """From when on the time of the call itself counts, at the latest."""
        if ACCEPTED in self.turned.values() and self.decided_at is not None:
            return max(self.asked_at, self.decided_at)
        return self.asked_at + self.expires


class People:
    """Anna and Ben, at a dispatcher each. `owner` answers which asker has a call now."""

    def __init__(
        self,
        offices: tuple[Dispatcher, Dispatcher],
        settings: Settings,
        rng: random.Random,
        owner: Callable[[str], Asker | None],
    ) -> None:
        self._offices = offices
        self._settings = settings
        self._rng = rng
        self._owner = owner
        self.cases: dict[str, Case] = {}
        self.seen: set[str] = set()
        self._acting: set[asyncio.Task[None]] = set()
        self.switched_off: list[tuple[str, float, float]] = []
        """Tool; monotonic: from when on it was confirmed to be off, and when that was undone."""
        self.lost: list[tuple[float, float]] = []
        """Monotonic: what was decided in between, the server has forgotten."""

    @property
    def decisions(self) -> int:
        """How many calls a person decided about."""
        return sum(not {ACCEPTED, ENDED}.isdisjoint(c.turned.values()) for c in self.cases.values())

    async def decide(self, on_seen: Callable[[Case], None]) -> None:
        """For ever, each call once; a server that is away is looked at again."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            with suppress(*AWAY):
                for approval in await self._rng.choice(self._offices).approvals.waiting():
                    key = str(approval.arguments["key"])
                    if key not in self.seen:
                        self.seen.add(key)
                        on_seen(self.cases[key])
                        task = asyncio.ensure_future(self._act(approval.id, self.cases[key]))
                        self._acting.add(task)
                        task.add_done_callback(self._acting.discard)

    async def switch(self, tool: str, *, seconds: float) -> None:
        """Deny a tool for a while; where the server is away it is taken back when it is there."""
        with suppress(*AWAY):
            await self._offices[0].deny(tool, reason="not now")
            confirmed = time.monotonic()
            await asyncio.sleep(seconds)
            self.switched_off.append((tool, confirmed, time.monotonic()))
        while True:
            with suppress(*AWAY):
                await self._offices[0].allow(tool)
                return

    async def done(self) -> None:
        """Return when nobody is about to decide any more."""
        while self._acting:
            await asyncio.wait(set(self._acting))

    async def _act(self, id: str, case: Case) -> None:
        rng = random.Random(self._rng.random())
        chance = rng.random()
        await asyncio.sleep(rng.uniform(0.0, _LONGEST_THOUGHT_SECONDS))
        anna, ben = self._offices
        if chance < 0.45:
            await self._try(case, APPROVE, lambda: anna.approvals.approve(id, by="anna"))
        elif chance < 0.6:
            await self._try(case, DENY, lambda: ben.approvals.deny(id, by="ben"))
        elif chance < 0.7:
            await asyncio.gather(
                self._try(case, APPROVE, lambda: anna.approvals.approve(id, by="anna")),
                self._try(case, DENY, lambda: ben.approvals.deny(id, by="ben")),
            )
        elif chance < 0.93:
            if chance > 0.8:
                await self._try(case, APPROVE, lambda: anna.approvals.approve(id, by="anna"))
                await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, 0.3))))
            await self._try(case, CANCEL, lambda: self._cancel(case, rng))

    async def _try(self, case: Case, act: str, decide: Callable[[], Awaitable[Any]]) -> None:
        case.turned[act] = UNKNOWN  # a lost reply may have been a yes
        case.decided_at = time.monotonic()
        with suppress(*AWAY, BrokerUnreachable):
            try:
                said = await decide()
            except (ApprovalRefused, KeyError):
                said = REFUSED
            case.turned[act] = said if isinstance(said, str) else ACCEPTED

    async def _cancel(self, case: Case, rng: random.Random) -> str:
        """By its handle, with its session, or as `toolpool cancel` does; what came of it."""
        asker = self._owner(case.key)
        way = rng.randrange(3)
        if way == 0 and asker is not None and case.key in asker.handles:
            handle = asker.handles[case.key]
            result = await self._offices[0].task_cancel(handle, session=case.session)
            if result.code is not Code.CANCELLED and result.executed is Executed.UNKNOWN:
                return UNKNOWN  # the server did not confirm it
            return ACCEPTED if result.code is Code.CANCELLED else REFUSED
        if way == 1 and asker is not None:
            cancelling = asyncio.ensure_future(asker.cancel(case.key, case.session))
            await asyncio.wait([cancelling], timeout=10.0)
            if not cancelling.done() or cancelling.cancelled():
                raise TimeoutError
            # none ended: answered before, or not confirmed yet and tried again until it is
            return ENDED if cancelling.result() else UNKNOWN
        return await asyncio.to_thread(self._cancel_elsewhere, case.key)

    def _cancel_elsewhere(self, id: str) -> str:
        finder = Finder(self._settings)
        found = finder.calls(id)
        if not found or not found[0]["key"]:
            return REFUSED
        told = finder.cancel(found[0])
        if told is None or not told.cancelled:  # a dispatcher that stands still may end it later
            return UNKNOWN
        return ACCEPTED if told.cancelled == Code.CANCELLED else REFUSED

    def judge(self, figures: Figures, book: Book, journal: Journal) -> None:
        """Fill in the row's own columns. To be called when the workers have ended."""
        journal.follow()
        starts, cases = journal.starts, list(self.cases.values())

        def ran(*, twice: bool = False) -> list[Case]:
            return [c for c in cases if starts[c.key] > twice]

        answers = {case.key: book.calls[case.key].answers for case in cases}
        grants = (ACCEPTED, UNKNOWN)
        figures.never("denied and ran", [c for c in ran() if c.was(DENY, ACCEPTED)])
        cancelled = [
            c
            for c in ran()
            if any(a.code == Code.CANCELLED and a.executed == "no" for a in answers[c.key])
        ]
        figures.never("cancelled and ran", cancelled)
        unapproved = [c for c in ran() if not c.was(APPROVE, *grants)]
        figures.never("expired and ran", [c for c in unapproved if not c.turned])
        figures.never("never approved and ran", [c for c in unapproved if c.turned])
        figures.never("ran twice", ran(twice=True))
        figures.never(
            "told no and ran", [c for c in ran() if "no" in [a.executed for a in answers[c.key]]]
        )
        figures.never(
            "not answered in time",
            [c for c in cases if not answers[c.key] or _latest(answers[c.key]) > LATE_SECONDS],
        )
        figures.never(
            "two answers", [(c, answers[c.key]) for c in cases if _differ(answers[c.key])]
        )
        figures.never("over the rate", self._over_rate(journal))
        figures.never("started switched off", self._switched_off(journal))
        figures.never(
            "not obeyed",
            [(c, answers[c.key]) for c in cases if not self._is_obeyed(c, answers[c.key])],
        )

    def _over_rate(self, journal: Journal) -> list[str]:
        """Starts with as many before them, within a second, as may start in one."""
        starts = [line for line in journal.lines if line.word == "start"]
        starts = [line for line in starts if self._tool_of(line.key) == "rated_loop"]
        starts.sort(key=lambda line: line.at)
        pairs = zip(starts, starts[RATED_A_SECOND:], strict=False)
        return [
            f"{late.key} after {late.at - early.at:.3f} s"
            for early, late in pairs
            if late.at - early.at < 1.0 - _BETWEEN_SECONDS
        ]

    def _switched_off(self, journal: Journal) -> list[str]:
        return [
            f"{line.key} {line.at - confirmed:.3f} s after"
            for tool, confirmed, back in self.switched_off
            for line in journal.lines
            if line.word == "start"
            and self._tool_of(line.key) == tool
            and confirmed + _ENTERING_SECONDS < line.at < back
        ]

    def _tool_of(self, key: str) -> str:
        return self.cases[key].tool if key in self.cases else ""

    def _is_obeyed(self, case: Case, answers: list[Answer]) -> bool:
        """Whether every decision that was accepted, and not lost, is what came of the call."""
        codes = {answer.code for answer in answers}
        decided_at = case.decided_at or 0.0
        if any(since <= decided_at <= until for since, until in self.lost):
            return True
        if case.was(APPROVE, ACCEPTED) and case.was(DENY, ACCEPTED):
            return False
        if case.was(DENY, ACCEPTED):
            return codes <= {Code.DENIED}
        if case.was(CANCEL, ACCEPTED):
            return codes <= {Code.CANCELLED}
        if Code.CANCELLED in codes and not case.was(CANCEL, ENDED, UNKNOWN):
            return False
        if case.was(APPROVE, ACCEPTED) and Code.DENIED in codes:
            return any(tool == case.tool for tool, *_ in self.switched_off)
        return True


def _latest(answers: list[Answer]) -> float:
    return max(answer.late_by for answer in answers)


def _differ(answers: list[Answer]) -> bool:
    """Whether askers of one call were told different things; not to know is none."""
    return len({(a.ok, a.code, a.executed) for a in answers if a.executed != "unknown"}) > 1
