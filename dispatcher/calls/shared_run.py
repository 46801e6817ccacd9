"""Equal calls of this dispatcher, and the run that answers them all."""

import time
from asyncio import TimerHandle

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.shared_runs import SharedAsk
from toolpool.contract.record_keys import root_of
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.turn_context import TurnContext

KEPT_SECONDS = 300.0
"""How much longer the outcome of a shared run is kept than its result is good for."""


def equality_of(call: ToolCall, spec: ToolSpec, turn: TurnContext, tenant: str) -> str | None:
    """What all calls have in common that may share a run with this one; None where none may.

    A tool with a `ToolContext` may act by its session and by its host's context, so that these are
    part of it. A call that may be handed over has a run of its own, which its handle stands for.
    """
    if not spec.is_shared or turn.wait is not None:
        return None
    whose: list[object] = []
    if spec.injected:
        if turn.session is None:
            return None
        whose = [turn.session, turn.context]
    try:
        return encoding.digest(["shared", tenant, spec.name, spec.digest, call.arguments, whose])
    except (TypeError, ValueError):  # keys that are no text, as a host may have put them together
        return None


class SharedRun:
    """The askers of one run, the first of them first. `anew`: none may have what began before."""

    __slots__ = (
        "_asked", "_timers", "anew", "askers", "digest", "is_joined", "is_over", "key",
        "run", "unless", "was_refused",
    )  # fmt: skip

    def __init__(self, digest: str, *, anew: bool) -> None:
        self.digest = digest
        self.anew = anew
        self.key = digest + new_nonce()
        self.askers: dict[Pending, None] = {}
        self._timers: dict[Pending, TimerHandle] = {}
        self._asked = 0.0
        self.run: Pending | None = None
        self.unless = ""
        """The key of a run that is not theirs."""
        self.is_joined = False
        """Whether somebody else's call began the run."""
        self.is_over = False
        """Whether nobody may join any more."""
        self.was_refused = False
        """Whether there was no room for a run of one of them."""

    @property
    def timeout(self) -> float:
        """How long the tool may run, in seconds."""
        if self.run is not None:
            return self.run.message.timeout
        return max(asker.message.timeout for asker in self.askers)

    def takes(self, asker: Pending) -> bool:
        """Whether a call may join: it is not to be ended before its own time by others' limits."""
        limit = self._asked if self.run is None else self.timeout
        return not self.is_over and (not limit or asker.message.timeout <= limit)

    def add(self, asker: Pending, timer: TimerHandle) -> None:
        """One more waits for it."""
        asker.share = self
        self.askers[asker] = None
        self._timers[asker] = timer

    def remove(self, asker: Pending) -> None:
        """One waits for it no longer."""
        self.askers.pop(asker, None)
        if (timer := self._timers.pop(asker, None)) is not None:
            timer.cancel()

    def begins(self, run: Pending, *, is_joined: bool) -> None:
        """It is to be sent, or somebody else's has been."""
        self.run, run.share, self.is_joined, self.key = run, self, is_joined, run.key

    def was_over(self, run: Pending) -> bool:
        """Whether their run, in the try that they asked for, had ended before they did."""
        return not run.is_news and run.key == self.key

    def may_retry(self, run: Pending) -> bool:
        """Whether a call is their run, and one of them waits for it."""
        return run is self.run and bool(self.askers) and not self.was_over(run)

    def again(self, *, unless: str) -> None:
        """It is asked for once more: what came of this run is not for these calls."""
        self.key, self.unless = self.digest + new_nonce(), root_of(unless)
        self.run, self.is_joined, self.is_over, self._asked = None, False, False, 0.0

    def asks(self) -> SharedAsk:
        """What it asks the ledger."""
        spec = next(iter(self.askers)).spec
        wait = max(asker.start_by for asker in self.askers) - time.monotonic()
        self._asked = self.timeout
        return SharedAsk(
            digest=self.digest,
            key=self.key,
            timeout=self.timeout,
            wait=max(0.0, wait),
            cached=spec.cached_for,
            unless=self.unless,
            anew=self.anew,
        )
