"""Hooks that decide about every call of a row, and a person who approves some of them."""

import asyncio
import random
from contextlib import suppress

from redis.exceptions import RedisError

from toolpool import (
    ApprovalRefused,
    AskApproval,
    Dispatcher,
    Hooks,
    ProposedCall,
    Replace,
    Rewrite,
    ToolResult,
)
from toolpool.contract.ledger.steps import ServerAway

_EVERY_SECONDS = 0.1


def hooks(rng: random.Random) -> Hooks:
    """A policy on both sides that changes nothing that a row looks at."""

    def before_call(call: ProposedCall) -> Rewrite | None:
        return Rewrite(call.arguments) if rng.random() < 0.2 else None

    async def after_result(result: ToolResult, _: ProposedCall) -> Replace | None:
        return Replace(data=result.data) if result.ok and rng.random() < 0.2 else None

    return Hooks(before_call=before_call, after_result=after_result)


def asking(rng: random.Random) -> Hooks:
    """Some calls wait for a person, and some of these for somebody in particular."""

    def before_call(_: ProposedCall) -> AskApproval | None:
        chance = rng.random()
        if chance < 0.2:
            return AskApproval("a person decides")
        return AskApproval(approvers=("anna",)) if chance < 0.4 else None

    return Hooks(before_call=before_call)


class Approver:
    """Anna, who looks at what waits again and again, and approves most of it."""

    def __init__(self, dispatcher: Dispatcher, rng: random.Random) -> None:
        self._dispatcher = dispatcher
        self._rng = rng
        self.approved: set[str] = set()
        """The keys of the calls that she approved."""
        self.denied: set[str] = set()

    async def decide(self) -> None:
        """For ever; a server that is away is looked at again."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            with suppress(ServerAway, RedisError, OSError, TimeoutError):
                for approval in await self._dispatcher.approvals.waiting():
                    await self._decide(approval.id, str(approval.arguments["key"]))

    async def _decide(self, id: str, key: str) -> None:
        approvals = self._dispatcher.approvals
        with suppress(ApprovalRefused, KeyError):
            if self._rng.random() < 0.8:
                self.approved.add(key)  # before, since a lost reply may have been a yes
                await approvals.approve(id, by="anna")
            else:
                self.denied.add(key)
                await approvals.deny(id, by="anna", reason="as the dice fell")
