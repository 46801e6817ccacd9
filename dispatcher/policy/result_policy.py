"""What a model is shown of results: a hook of the host may redact or replace it."""

from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.policy.verdicts import ProposedCall, Replace, copied

HOOK = "after_result"


class ResultPolicy:
    """One dispatcher's. A hook that fails withholds the result, unless the settings say otherwise.

    It is asked for every result of a tool that a model or a host reads: at once, later by its
    handle, and page by page.
    """

    def __init__(
        self, settings: Settings, wording: Wording, observers: Observers, hook: Hook
    ) -> None:
        self._settings = settings
        self._wording = wording
        self._observers = observers
        self._hook = hook

    async def shown(self, result: ToolResult, call: ProposedCall) -> ToolResult:
        """The result that is told in its place. Never raises for what the hook does."""
        if result.is_running:
            return result
        try:
            return self._replaced(result, await self._hook.ask(_copy_of(result), call))
        except HookFailed as error:
            self._observers.hook_failed(
                HOOK, error.kind, error.__cause__, tool=result.name, call_id=result.call_id
            )
        if self._settings.hook_failure == "allow":
            return result
        self._observers.audited(
            "withheld",
            tool=call.tool,
            call_id=call.call_id,
            session=call.session,
            by=f"{HOOK}, which failed",
        )
        return self.withheld(result)

    def withheld(self, result: ToolResult) -> ToolResult:
        """A result that nobody may read: whether its tool ran is told, and nothing else."""
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
        """Raises `HookFailed` for what is no answer, and for data that is not JSON.

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
            changes["data"] = copied(answer.data)
        if answer.error is not msgspec.UNSET:
            if not isinstance(answer.error, str):
                raise HookFailed(HOOK, "the error it gave is no text")
            changes["error"] = encoding.printable(answer.error)
            if result.ok:
                result, changes["data"] = self.withheld(result), None
        return msgspec.structs.replace(result, **changes)


def _copy_of(result: ToolResult) -> ToolResult:
    """What a hook does to the data of it changes nothing."""
    return msgspec.structs.replace(result, data=copied(result.data))
