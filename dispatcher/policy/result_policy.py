"""Applies the host's hook for results, which may redact or replace them."""

from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.policy.verdict_types import ProposedCall, Replace, copied

HOOK = "after_result"


class ResultPolicy:
    """The result policy of one dispatcher. If the hook fails, the result is withheld.

    It is called for every tool result that a model or a host reads: at once, later by its handle,
    and page by page.
    """

    def __init__(self, wording: Wording, observers: Observers, hook: Hook) -> None:
        self._wording = wording
        self._observers = observers
        self._hook = hook

    async def shown(self, result: ToolResult, call: ProposedCall) -> ToolResult:
        """The result to return instead. Never raises for a fault of the hook."""
        if result.is_running:
            return result
        try:
            return self._replaced(result, await self._hook.ask(_copy_of(result), call))
        except HookFailed as error:
            self._observers.hook_failed(
                HOOK, error.kind, error.__cause__, tool=result.name, call_id=result.call_id
            )
        self._observers.audited(
            "withheld",
            tool=call.tool,
            call_id=call.call_id,
            session=call.session,
            by=f"{HOOK}, which failed",
        )
        return self.withheld(result)

    def withheld(self, result: ToolResult) -> ToolResult:
        """A withheld result: it says whether its tool ran, and nothing else."""
        return ToolResult(
            call_id=result.call_id,
            name=result.name,
            ok=False,
            error=self._wording.words.withheld.format(name=result.name),
            code=Code.DENIED,
            retryable=False,
            executed=result.executed if not result.is_running else Executed.UNKNOWN,
            duration=result.duration,
            attempts=result.attempts,
            id_given=result.id_given,
            origin=result.origin,
        )

    def _replaced(self, result: ToolResult, answer: Any) -> ToolResult:
        """The replaced result. Raises `HookFailed` for an invalid answer or non-JSON data.

        A success whose error is replaced becomes a failure without data.
        """
        if answer is None:
            return result
        if not isinstance(answer, Replace):
            kind = type(answer).__name__
            raise HookFailed(HOOK, f"it answered a {kind}, and not Replace or None")
        changes: dict[str, Any] = {"recommendations": (), "details": None}
        if answer.note:
            if not isinstance(answer.note, str):
                raise HookFailed(HOOK, "the note it gave is no text")
            note = encoding.printable(answer.note)
            changes["note"] = " ".join(filter(None, (result.note, note)))
        if answer.data is not msgspec.UNSET:
            if encoding.size_of(answer.data) is None:
                raise HookFailed(HOOK, "the data it gave is not JSON")
            changes["data"] = encoding.decode(encoding.encode(answer.data))  # of plain types
        if answer.error is not msgspec.UNSET:
            if not isinstance(answer.error, str):
                raise HookFailed(HOOK, "the error it gave is no text")
            changes["error"] = encoding.printable(answer.error)
            if result.ok:
                result, changes["data"] = self.withheld(result), None
        return msgspec.structs.replace(result, **changes)


def _copy_of(result: ToolResult) -> ToolResult:
    """A copy, so that the hook cannot change the data."""
    return msgspec.structs.replace(result, data=copied(result.data))
