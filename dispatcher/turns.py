"""The accepted calls of one turn: stage after stage, each call to its result (R1, R32)."""

import asyncio
import time
from collections.abc import Callable, Sequence

from contract.call import ToolCall
from contract.outcome import Code
from contract.result import ToolResult
from contract.settings import Settings
from contract.spec import Effects, ToolSpec
from dispatcher import task_tools
from dispatcher.background import Background
from dispatcher.classify import not_queued
from dispatcher.order import stages
from dispatcher.pending import Latch, Pending
from dispatcher.traffic import LEASES_TO_WAIT, Traffic, TurnContext
from dispatcher.validate import Accepted

Classify = Callable[[Pending, str | None], ToolResult]
"""The result of an answered call. The name is that of a write before it whose end nobody saw."""


class Turns:
    """Runs turns, any number at once."""

    def __init__(
        self, traffic: Traffic, background: Background, settings: Settings, classify: Classify
    ) -> None:
        self._traffic = traffic
        self._background = background
        self._settings = settings
        self._classify = classify

    async def run(
        self, accepted: Sequence[Accepted], shared: TurnContext, since: float
    ) -> dict[int, ToolResult]:
        """A result for each call, by its index. The first calls' times run from `since`."""
        results: dict[int, ToolResult] = {}
        is_strict = self._settings.order == "strict"
        groups = stages(accepted, lambda item: item[1].spec.effects, strict=is_strict)
        unseen: str | None = None
        for group in groups:
            pendings = [self._submit(call, offer.spec, shared, since) for call, offer in group]
            found = await self._await(pendings, shared, unseen)
            for pending, result in zip(pendings, found, strict=True):
                results[pending.call.index] = result
            if group is not groups[-1]:
                unseen = await self._end_of(pendings)
            since = time.monotonic()
        return results

    async def _end_of(self, pendings: Sequence[Pending]) -> str | None:
        """Wait for the end of a write that may still run; its name, if nobody saw it end.

        A worker that lost its lease stops what it runs before the time is over.
        """
        give_up_after = LEASES_TO_WAIT * self._settings.lease_gone
        for pending in pendings:
            if pending.spec.effects is Effects.WRITE and not pending.is_open:
                left = pending.ended + give_up_after - time.monotonic()
                if not await self._traffic.has_ended(pending, left):
                    return pending.call.name
        return None

    def _submit(self, call: ToolCall, spec: ToolSpec, shared: TurnContext, since: float) -> Pending:
        """Send an accepted call on its way, or answer it here."""
        if spec is task_tools.SPECS.get(spec.name):
            work = self._background.answer(call, shared.session)
            return self._traffic.run_here(call, spec, work)
        denial = self._traffic.switches.denial(call)
        if denial is not None:
            return self._traffic.refuse(call, spec, not_queued(Code.DENIED, denial))
        retry_after = self._traffic.breaker.retry_after(call.name)
        if retry_after is not None:
            outcome = not_queued(Code.CIRCUIT_OPEN, retry_after=round(retry_after, 1))
            return self._traffic.refuse(call, spec, outcome)
        return self._traffic.submit(call, spec, shared, since)

    async def _await(
        self, pendings: Sequence[Pending], shared: TurnContext, unseen: str | None
    ) -> list[ToolResult]:
        """A result each, at the latest when its wait budget ends, if it has one."""
        latch = Latch(pendings)
        try:
            handed = await self._hand_over_late(pendings, shared)
            rest = [pending for pending in pendings if pending.key not in handed]
            await (Latch(rest) if handed else latch).wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(pendings, latch))
            raise
        return [handed.get(p.key) or self._classify(p, unseen) for p in pendings]

    async def _hand_over_late(
        self, pendings: Sequence[Pending], shared: TurnContext
    ) -> dict[str, ToolResult]:
        """The answers of calls that outlive their wait budget, by key (R35)."""
        if shared.wait is None and not any(pending.spec.background for pending in pendings):
            return {}
        budgets: list[tuple[float, Pending]] = []
        for pending in pendings:
            wait = shared.wait
            if wait is None and pending.spec.background:
                wait = self._settings.background_wait
            if wait is not None and pending.queue:
                budgets.append((pending.began + wait, pending))
        handed: dict[str, ToolResult] = {}
        for until, pending in sorted(budgets, key=lambda item: item[0]):
            await pending.wait(until - time.monotonic())
            answer = await self._background.hand_over(pending) if pending.is_open else None
            if answer is not None:
                handed[pending.key] = answer
        return handed

    async def _abandon(self, pendings: Sequence[Pending], latch: Latch) -> None:
        """Cancel the calls of a cancelled dispatch that nobody else asked for."""
        unwanted = [p for p in pendings if p.is_open and set(p.latches) <= {latch}]
        await self._traffic.cancel(unwanted)
