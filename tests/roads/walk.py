"""One walk over the roads of several calls, and what must hold of each of them."""

import asyncio
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from hypothesis import strategies as st

from tests.roads.host import FOREIGN, Case, Said
from toolpool import Code, Executed, ToolResult

FREE = "look"
"""Nobody has to approve it; calls of it share their runs."""
ALONE = "look_alone"
"""One of its calls may run at a time in the whole fleet."""
TOOLS = ("pay", "pay", "pay_rated", "pay_rated", "pay_rated", ALONE, ALONE, ALONE, "look_again",
         FREE, FREE, FOREIGN)  # fmt: skip
WRITES = ("pay", "pay_rated")
RATED = ("pay_rated", FREE)
OFTEN = ("ask", "approve", "approve", "wait", "cancel handle", "cancel session")
SELDOM = ("ask", "ask again", "deny", "result", "resume", "switch off", "switch on", "fill",
          "empty")  # fmt: skip
WRITTEN = ("copy", "restore", "delete", "junk")
"""By somebody who can write to the server and has no key."""
HAPPENS = ("kill host", "kill worker", "jump", *WRITTEN)
ENDS = (Code.CANCELLED, Code.DENIED, Code.EXPIRED)
RATED_A_SECOND = 2
_BETWEEN_SECONDS = 0.02
"""How much the time from a start to its note may differ."""
_STARTED_SECONDS = 1.5
"""How long after its claim a call is started at most, on a busy machine."""
_PATIENCE_SECONDS = 0.05
"""A step that takes longer goes on beside the next ones."""
_numbers = count(1)

Step = tuple[str, int, int | None]
"""What is done, by which host, to which call; None for all of them at once."""


def steps(*more: str, most: int) -> st.SearchStrategy[list[Step]]:
    """Any steps; `more` are those of the scene itself."""
    return st.integers(0, 2**32).map(lambda seed: _steps(random.Random(seed), more, most))


def _steps(rng: random.Random, more: Sequence[str], most: int) -> list[Step]:
    """Hypothesis repeats parts of what it made; most walks should get far."""
    what = rng.choices((*OFTEN * 3, *SELDOM, *more), k=rng.randint(2, most))
    calls: list[int | None] = [*range(len(TOOLS)), *[None] * len(TOOLS)]
    walk = [(each, rng.randrange(2), rng.choice(calls)) for each in what]
    return [("ask", 0, None), *walk] if rng.random() < 0.7 else walk


class Taking(Protocol):
    """A host, in this process or another. Raises `Lost` where it dies before it answers."""

    async def do(self, what: str, case: Case, handle: str | None = None) -> Said: ...


class Lost(Exception):
    """Nobody knows what came of a step."""


class Scene(Protocol):
    """Two hosts, and what else may happen to them."""

    hosts: list[Taking]

    async def happen(self, what: str, number: int) -> None:
        """Take a step of the scene itself."""
        ...


@dataclass
class Decision:
    """When a person decided, and when that was answered."""

    began: float
    ended: float = math.inf
    is_accepted: bool = False


@dataclass
class Story:
    """What was done to a call, and what was said of it. Times are monotonic."""

    case: Case
    approvals: list[Decision] = field(default_factory=list)
    denials: list[Decision] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)
    told: list[tuple[float, ToolResult]] = field(default_factory=list)


class Walk:
    """Calls of one trace. `switched_off`: tool, from when on that was confirmed, until when."""

    def __init__(self, scene: Scene, trace: Path) -> None:
        self._scene = scene
        self._trace = trace
        shared = next(_numbers)
        numbers = [shared if tool == FREE else next(_numbers) for tool in TOOLS]
        self.stories = [
            Story(Case(str(trace), number, tool, f"s{next(_numbers)}"))
            for tool, number in zip(TOOLS, numbers, strict=True)
        ]
        self._off: dict[str, float] = {}
        self.switched_off: list[tuple[str, float, float]] = []
        self._were_off: set[str] = set()
        self._switching_on: Counter[str] = Counter()
        self._switched_on: Counter[str] = Counter()
        self._is_written = False
        """Whether somebody wrote who has no key: the place of a call without a record is free."""
        self._taking: set[asyncio.Task[None]] = set()
        self._log: list[str] = []

    async def take(self, chosen: Sequence[Step]) -> None:
        """Take the steps, let everything end, and see that all of it held."""
        try:
            for what, host, call in chosen:
                self._log.append(f"{time.monotonic():.3f} step {what} host={host} call={call}")
                await self._step(what, host, self.stories if call is None else [self.stories[call]])
                self.hold()
            await self._end()
        finally:
            for task in self._taking:
                task.cancel()
            await asyncio.gather(*self._taking, return_exceptions=True)
        self.hold()

    async def _step(self, what: str, host: int, stories: Sequence[Story]) -> None:
        if what == "wait":
            await asyncio.sleep(_PATIENCE_SECONDS)
        elif what in HAPPENS:
            self._is_written |= what in WRITTEN
            await self._scene.happen(what, host)
        else:
            taking = self._scene.hosts[host]
            tasks = {asyncio.ensure_future(self._do(what, taking, story)) for story in stories}
            self._taking |= tasks
            await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
            self._collect()

    def _collect(self) -> None:
        for task in [task for task in self._taking if task.done()]:
            self._taking.discard(task)
            task.result()

    async def _do(self, what: str, host: Taking, story: Story) -> None:
        if what == "resume" and not story.asked:
            return  # without a note of its turn it would be another call than when it is asked
        tool, handle = story.case.tool, story.handles[-1] if story.handles else None
        began = time.monotonic()
        decision = Decision(began)
        if what in ("approve", "deny"):
            (story.approvals if what == "approve" else story.denials).append(decision)
        if what in ("ask", "ask again", "resume"):
            story.asked.append(began)
        if what in ("switch on", "switch off"):
            self._were_off.add(tool)
            self._let_on(tool)
        self._switching_on[tool] += what == "switch on"
        switched_on = self._switched_on[tool]
        try:
            said = await host.do(what, story.case, handle)
        except Lost:
            self._log.append(f"{time.monotonic():.3f} lost {what} {story.case.number}")
            return
        except AssertionError as error:
            if self._is_deleted(error):
                return
            raise
        result = said.result and (said.result.code, said.result.executed, said.result.handle)
        self._log.append(
            f"{time.monotonic():.3f} done {what} {story.case.number} {said.accepted} {result}"
        )
        if what == "switch on":
            self._switching_on[tool] -= 1
            self._switched_on[tool] += 1
        is_last = not self._switching_on[tool] and self._switched_on[tool] == switched_on
        if what == "switch off" and said.accepted and is_last:
            self._off.setdefault(tool, time.monotonic())
        decision.ended, decision.is_accepted = time.monotonic(), said.accepted
        self._note(story, said.result)

    def _let_on(self, tool: str) -> None:
        """A tool is off only when no switch on was under way beside the switch off."""
        if (since := self._off.pop(tool, None)) is not None:
            self.switched_off.append((tool, since, time.monotonic()))

    def _note(self, story: Story, result: ToolResult | None) -> None:
        if result is not None and result.is_running and result.handle is not None:
            story.handles.append(result.handle)
        elif result is not None and not result.is_running:
            story.told.append((time.monotonic(), result))

    async def _end(self) -> None:
        for host in range(2):
            for what in ("switch on", "empty"):
                await self._step(what, host, self.stories)
        give_up_at = time.monotonic() + 30.0
        while self._taking and time.monotonic() < give_up_at:
            await asyncio.wait(self._taking, timeout=1.0)
            self._collect()
        for story in self.stories:
            for handle in dict.fromkeys(story.handles):
                try:
                    said = await self._scene.hosts[0].do("result", story.case, handle)
                except Lost:
                    continue
                except AssertionError as error:
                    if self._is_deleted(error):
                        continue
                    raise
                self._note(story, said.result)

    def _is_deleted(self, error: AssertionError) -> bool:
        """Whether a writer without a key has deleted the handle that a host was asked for."""
        return self._is_written and "no such handle" in str(error)

    def starts(self, what: str = "start") -> dict[int, list[float]]:
        """When each call was started, or has ended."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        if self._trace.exists():
            for line in self._trace.read_text().splitlines():
                number, at, noted = line.split()
                if noted == what:
                    found[int(number)].append(float(at))
        return found

    def hold(self) -> None:
        """What must hold at any time."""
        try:
            self._hold()
        except AssertionError:
            print("\n".join(self._log))
            raise

    def _hold(self) -> None:
        starts = self.starts()
        for story in self.stories:
            self._hold_of(story, starts.get(story.case.number, []))
        by_tool: defaultdict[str, list[float]] = defaultdict(list)
        for number, tool in {story.case.number: story.case.tool for story in self.stories}.items():
            by_tool[tool] += starts.get(number, [])
        for at in (sorted(by_tool[tool]) for tool in RATED):
            for early, late in zip(at, at[RATED_A_SECOND:], strict=False):
                assert late - early >= 1.0 - _BETWEEN_SECONDS, f"over the rate: {late - early} s"
        if not self._is_written:
            self._hold_alone(starts)
        for tool, since, until in self._all_off():
            late_starts = [s for s in by_tool[tool] if since + _STARTED_SECONDS < s < until]
            assert not late_starts, f"{tool} was switched off"

    def _hold_alone(self, starts: dict[int, list[float]]) -> None:
        """One at a time; of a call that was killed nobody noted the end."""
        numbers = {story.case.number for story in self.stories if story.case.tool == ALONE}
        ends = self.starts("end")
        all_starts = sorted(at for number in numbers for at in starts.get(number, []))
        for number in numbers:
            for end in ends.get(number, []):
                start = max(at for at in starts[number] if at < end)
                assert not [at for at in all_starts if start < at < end], "two ran at once"

    def _all_off(self) -> list[tuple[str, float, float]]:
        now = time.monotonic()
        return self.switched_off + [(tool, since, now) for tool, since in self._off.items()]

    def _hold_of(self, story: Story, starts: list[float]) -> None:
        results = [result for _, result in story.told]
        if story.case.tool not in (FREE, ALONE):
            granted = [at for at, result in story.told if story.case.tool == FOREIGN and result.ok]
            for at in starts + granted:
                self._hold_allowed(story, at)
        if story.case.tool not in WRITES:
            return
        assert len(starts) <= 1, f"ran twice: {story}"
        for at, result in story.told:
            if starts and result.executed is Executed.NO:
                assert starts[0] > at, f"told no, and ran before: {story}"
                assert not self._is_end(story, at, result), f"told no, and ran: {story}"
        finals = {(r.code, str(r.data)) for r in results if self._is_final(r)}
        is_switched = story.case.tool in self._were_off
        assert len(finals) <= 1 or is_switched, f"two ends: {story}"

    def _hold_allowed(self, story: Story, at: float) -> None:
        """Who writes without the key can have a person asked once more, but never overrule one."""
        approvals = [approval for approval in story.approvals if approval.began < at]
        assert approvals, f"never granted, and ran: {story}"
        for denial in story.denials:
            if denial.is_accepted and self._is_written:
                is_before = denial.ended < at and story.case.tool != FOREIGN
                is_anew = any(approval.ended > denial.began for approval in approvals)
                assert is_anew or not is_before, f"denied, and ran: {story}"
            else:
                assert not denial.is_accepted, f"denied, and ran: {story}"

    def _is_end(self, story: Story, at: float, result: ToolResult) -> bool:
        """Whether it may not run after this, unless it is asked anew of a tool that was off."""
        was_off = result.code is Code.DENIED and story.case.tool in self._were_off
        return result.code in ENDS and not (was_off and max(story.asked) > at)

    def _is_final(self, result: ToolResult) -> bool:
        return result.ok or (result.code in ENDS and result.executed is Executed.NO)
