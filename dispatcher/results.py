"""Results for callers: classified, then passed through the host's policy."""

from collections.abc import Callable
from typing import Any

from toolpool.contract.result import ToolResult
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.policy.result_policy import ResultPolicy
from toolpool.dispatcher.policy.verdict_types import ProposedCall, copied


class Results:
    """Makes the results of one dispatcher. Without a policy they are the calls' outcomes."""

    def __init__(
        self, classify: Callable[[Pending], ToolResult], policy: ResultPolicy | None, tenant: str
    ) -> None:
        self._classify = classify
        self.policy = policy
        self._tenant = tenant

    async def of(self, pending: Pending) -> ToolResult:
        """The result of a call that was answered."""
        result = self._classify(pending)
        return await self.shown(result, pending)

    async def shown(self, result: ToolResult, pending: Pending) -> ToolResult:
        """A call's result after the policy."""
        if self.policy is None or not pending.queue:
            return result
        message, spec = pending.message, pending.spec
        call = ProposedCall(
            tool=pending.call.name,
            arguments=copied(message.arguments),
            call_id=pending.call.provider_id,
            session=message.session,
            turn=message.turn,
            tenant=self._tenant,
            context=copied(message.context) if message.context is not None else None,
            effects=spec.effects,
            provider=pending.provider,
        )
        return await self.policy.shown(result, call)

    def at_once(self, pending: Pending) -> ToolResult:
        """The result if hooks cannot be called: without the policy's approval it is withheld."""
        result = self._classify(pending)
        return result if self.policy is None else self.policy.withheld(result)

    async def page(self, page: dict[str, Any], session: str | None) -> dict[str, Any]:
        """A page of a full output after the policy."""
        if self.policy is None:
            return page
        result = ToolResult(call_id="", name=page["tool"], ok=True, data=page)
        call = ProposedCall(
            tool=page["tool"],
            arguments={},
            call_id="",
            session=session,
            turn=None,
            tenant=self._tenant,
            context=None,
            effects=None,
        )
        shown = await self.policy.shown(result, call)
        if shown.ok and isinstance(shown.data, dict):
            return shown.data
        return page | {"text": str(shown.data if shown.ok else shown.error)}
