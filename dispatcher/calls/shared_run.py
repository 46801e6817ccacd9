"""Equal calls of this dispatcher and the run that answers them all."""

import time
from asyncio import TimerHandle
from collections.abc import Sequence

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import Switch
from toolpool.contract.kill_switches import switch_name
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.shared_runs import SharedRunRequest
from toolpool.contract.redis_keys import root_of
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.turn_options import TurnOptions

KEPT_SECONDS = 300.0
"""How many seconds the outcome of a shared run is kept after its result has become invalid."""


def equality_of(
    call: ToolCall, spec: ToolSpec, turn: TurnOptions, tenant: str, switches: Sequence[Switch]
) -> str | None:
    """A digest that is equal for calls that may share a run; None if the call may not.

    A worker compares typed arguments only with the policy verdict of the call that it runs, and
    with the `switches` on arguments at that time, so both are part of the digest. A tool with a
    `ToolContext` may use its session and host context, so these are part of the digest too. A call
    that may move to the background has its own run, which its handle stands for.
    """
    if not spec.is_shared or turn.wait is not None:
        return None
    whose: list[object] = []
    if spec.injected:
        if turn.session is None:
            return None
        whose = [turn.session, turn.context]
    verdict = call.verdict
    compared: list[object] = [*sorted(map(switch_name, switches))]
    if verdict is not None:
        compared += [verdict.policy, verdict.paths, verdict.is_whole]
    parts = ["shared", tenant, spec.name, spec.digest, call.arguments, whose, compared]
    try:
        return encoding.digest(parts)
    except (TypeError, ValueError):  # a host may have mixed text keys with others
        return None


class SharedRun:
    """The calls that share one run, in order. `anew`: a run that began earlier must not be used."""

    __slots__ = (
        "_asked", "_timers", "anew", "askers", "digest", "is_joined", "is_over", "key",
        "run", "unless", "was_refused",
    )  # fmt: skip

    def __init__(self, digest: str, *, anew: bool) -> None:
        self.digest = digest
        self.anew = anew
        self.key = digest + new_nonce()
        self.askers: dict[PendingCall, None] = {}
        self._timers: dict[PendingCall, TimerHandle] = {}
        self._asked = 0.0
        self.run: PendingCall | None = None
        self.unless = ""
        """The key of a run that these calls must not use."""
        self.is_joined = False
        """Whether a call of another dispatcher began the run."""
        self.is_over = False
        """Whether no further call may join."""
        self.was_refused = False
        """Whether a run of one of these calls was refused for lack of room."""

    @property
    def timeout(self) -> float:
        """How long the tool may run, in seconds."""
        if self.run is not None:
            return self.run.message.timeout
        return max(asker.message.timeout for asker in self.askers)

    def takes(self, asker: PendingCall) -> bool:
        """Whether a call may join: the limits of the other calls must not end it early."""
        limit = self._asked if self.run is None else self.timeout
        return not self.is_over and (not limit or asker.message.timeout <= limit)

    def add(self, asker: PendingCall, timer: TimerHandle) -> None:
        """Add a call."""
        asker.share = self
        self.askers[asker] = None
        self._timers[asker] = timer

    def remove(self, asker: PendingCall) -> None:
        """Remove a call."""
        self.askers.pop(asker, None)
        if (timer := self._timers.pop(asker, None)) is not None:
            timer.cancel()

    def begins(self, run: PendingCall, *, is_joined: bool) -> None:
        """Set the run. It is about to be sent, or another dispatcher has sent it (`is_joined`)."""
        self.run, run.share, self.is_joined, self.key = run, self, is_joined, run.key

    def was_over(self, run: PendingCall) -> bool:
        """Whether the run, in the requested attempt, had ended before it was requested."""
        return not run.is_new_outcome and run.key == self.key

    def may_retry(self, run: PendingCall) -> bool:
        """Whether a call is the current run and still has sharers."""
        return run is self.run and bool(self.askers) and not self.was_over(run)

    def again(self, *, unless: str) -> None:
        """Request another run, as the outcome of the current run does not apply."""
        self.key, self.unless = self.digest + new_nonce(), root_of(unless)
        self.run, self.is_joined, self.is_over, self._asked = None, False, False, 0.0

    def asks(self) -> SharedRunRequest:
        """The request to the ledger."""
        spec = next(iter(self.askers)).spec
        wait = max(asker.start_by for asker in self.askers) - time.monotonic()
        self._asked = self.timeout
        return SharedRunRequest(
            digest=self.digest,
            key=self.key,
            timeout=self.timeout,
            wait=max(0.0, wait),
            cached=spec.cached_for,
            unless=self.unless,
            anew=self.anew,
        )
