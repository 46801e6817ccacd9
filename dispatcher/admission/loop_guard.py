"""The loop guard: refuses calls that keep failing in the same way."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from toolpool.contract import encoding, logs
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.call import ToolCall
from toolpool.contract.credentials import missing_secret_in
from toolpool.contract.errors import ServerError
from toolpool.contract.ledger.failure_memory import FailureHistory, FailureMemory
from toolpool.contract.outcome import Code, ErrorType
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.observer import Loop, Observers

log = logs.logger("loop_guard")

_PATIENCE_SECONDS = 0.5
_NOTE_SECONDS = 0.1
"""How long results are held back while failures are being recorded, in seconds."""
_COUNTED = frozenset({ErrorType.VALIDATION, ErrorType.RUNTIME, ErrorType.LOGICAL})
_NOT_COUNTED = frozenset({Code.LOOP, Code.TOO_MANY_CALLS})


class LoopGuard:
    """Decides which calls of a session to refuse.

    If the server is unreachable, no call is delayed.
    """

    def __init__(
        self,
        ledger: FailureMemory,
        settings: Settings,
        observers: Observers,
        on_loop: Hook | None = None,
    ) -> None:
        self._ledger = ledger
        self.suspects = ledger.suspects
        """Whether a session has failures that `look` compares with. Needs no round trip."""
        self._settings = settings
        self._on_loop = on_loop
        self._following: asyncio.Task[None] | None = None
        self._noting = BackgroundTasks()
        self._is_closed = False
        self._observers = observers

    def start(self) -> None:
        """Follow the failures that other dispatchers record, on the running event loop."""
        if self._settings.failure_loop_threshold:
            self._following = asyncio.ensure_future(self._ledger.follow())

    async def close(self) -> None:
        """Stop following and recording. Idempotent."""
        self._is_closed = True
        self._noting.cancel()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None

    async def look(self, calls: Sequence[ToolCall], session_key: str) -> dict[int, FailureHistory]:
        """The calls that keep failing or alternate, by index, with their history."""
        digests = [digest_of(call) for call in calls]
        try:
            seen = await self._ledger.look(session_key, digests, _soon())
        except ServerError as error:
            log.warning("loops_not_looked_up: %s", error)
            return {}
        return {
            call.index: found
            for call, found in zip(calls, seen, strict=True)
            if found.failures >= self._settings.failure_loop_threshold or found.alternates
        }

    async def refused(
        self,
        calls: Sequence[ToolCall],
        looping: dict[int, FailureHistory],
        session: str,
        turn: str | None,
    ) -> dict[int, FailureHistory]:
        """The calls in `looping` that are refused. Observers and the hook are notified of each."""
        refused: dict[int, FailureHistory] = {}
        for call in calls:
            found = looping.get(call.index)
            if found is not None and await self._is_refused(call, session, turn, found):
                refused[call.index] = found
        return refused

    async def note(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult | None], session_key: str
    ) -> None:
        """Record failures, and forget successes of a session that has failures.

        Returns when they are recorded, or continues in the background: results are not delayed.
        """
        if self._is_closed or not self._settings.failure_loop_threshold:
            return
        ended = [
            (digest_of(call), not result.ok)
            for call, result in zip(calls, results, strict=True)
            if result is not None and (result.ok or _counts(result))
        ]
        if not ended:
            return
        noting = self._noting.start(self._note(session_key, ended))
        await asyncio.wait({noting}, timeout=_NOTE_SECONDS)

    async def _note(self, session_key: str, ended: list[tuple[str, bool]]) -> None:
        try:
            await self._ledger.note(session_key, ended, _soon())
        except ServerError as error:
            log.warning("loops_not_noted: %s", error)

    async def _is_refused(
        self, call: ToolCall, session: str, turn: str | None, found: FailureHistory
    ) -> bool:
        loop = Loop(
            session=session,
            tool=call.name,
            call_id=call.id,
            failures=found.failures,
            alternates=found.alternates,
            turn=turn,
        )
        log.warning(
            "call_keeps_failing tool=%s call=%s failures=%d", loop.tool, loop.call_id, loop.failures
        )
        self._observers.notify("looped", loop)
        return not await self._ask(loop)

    async def _ask(self, loop: Loop) -> bool:
        """Whether the hook lets the call run; a hook that raises or hangs does not."""
        if self._on_loop is None:
            return False
        try:
            return bool(await self._on_loop.ask(loop))
        except HookFailed as error:
            # Without the tool's name: if no such tool exists, the model made it up.
            self._observers.hook_failed(
                "on_loop", error.kind, error.__cause__, call_id=loop.call_id
            )
            return False


def digest_of(call: ToolCall) -> str:
    """A digest that ignores key order, white space and the form of numbers."""
    if call.text is not None:
        return encoding.digest([call.name, call.text])
    if call.arguments is None:
        flaw = call.flaw
        return encoding.digest([call.name, flaw and [flaw.reason, flaw.blanks]])
    try:
        return encoding.digest([call.name, _plain(call.arguments)])
    except TypeError:  # a host may have mixed text keys with others
        return encoding.digest([call.name, repr(call.arguments)])


def _plain(value: Any) -> Any:
    """`value` with 1.0 as 1."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _counts(result: ToolResult) -> bool:
    if result.error_type not in _COUNTED or result.code in _NOT_COUNTED:
        return False
    # the same call succeeds once a user has signed in
    return missing_secret_in(result.details) is None


def _soon() -> float:
    return time.monotonic() + _PATIENCE_SECONDS
