"""Shares circuit state with the other dispatchers, on every survey of the server.

Each dispatcher judges a tool by the outcomes that it sees. A circuit that one dispatcher opens is
open for all. When the pause is over, one dispatcher sends a trial call and shares the result.
"""

from typing import ClassVar

from toolpool.contract import encoding, logs
from toolpool.contract.envelope import Signed
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.calls.services import Services

log = logs.logger("circuits")

_TRIAL_SECONDS = 10.0
"""How long a dispatcher keeps the right to send a trial call without renewing it, in seconds."""
_KEPT_SECONDS = 3_600.0
"""How long a circuit's state is kept after the circuit has closed."""


class CircuitState(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """The circuit of a tool, open until `open_until`; 0 if it is closed.

    Both times are fleet time in seconds. Of two states of a tool under one key prefix, the one with
    the later `set_at` holds.
    """

    purpose: ClassVar[str] = "circuit"

    tool: str
    open_until: float
    set_at: float
    prefix: str = ""


class FleetCircuits:
    """Synchronizes the circuits of one dispatcher with those of the others."""

    def __init__(self, services: Services, breaker: Breaker) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._prefix = services.settings.key_prefix
        self._keep = services.settings.circuit_reset_timeout + _KEPT_SECONDS
        self._breaker = breaker
        self._known: dict[str, CircuitState] = {}
        self._own_name = new_nonce()
        self._trials: set[str] = set()

    async def follow(self) -> None:
        """Publish local changes, apply remote ones, and claim the trials that are due.

        Does nothing if each dispatcher judges for itself. Raises what the transport raises.
        """
        if not self._breaker.is_fleet_wide:
            return
        now = self._transport.server_time()
        for body in await self._transport.circuits():
            self._apply_state(body, now)
        for tool, pause in self._breaker.changes().items():
            await self._tell(tool, pause, now)
        wanted = self._breaker.trials_wanted()
        for tool in self._trials - wanted:
            await self._transport.end_trial(_name(tool), self._own_name)
        self._trials &= wanted
        for tool in wanted:
            has_right = await self._transport.try_circuit(
                _name(tool), self._own_name, keep=_TRIAL_SECONDS
            )
            if has_right:
                self._trials.add(tool)
                self._breaker.grant_trial(tool)

    def _apply_state(self, body: bytes, now: float) -> None:
        """Apply a state; ignore it if it is not signed for this key prefix or is not newer."""
        try:
            state = self._envelope.decode(CircuitState, body)
        except MessageRejected:
            return
        known = self._known.get(state.tool)
        if state.prefix != self._prefix or (known is not None and known.set_at >= state.set_at):
            return
        self._known[state.tool] = state
        if state.set_at < now - self._keep:
            return
        self._breaker.follow(state.tool, state.open_until - now if state.open_until else None)

    async def _tell(self, tool: str, pause: float | None, now: float) -> None:
        known = self._known.get(tool)
        set_at = now if known is None else max(now, known.set_at + 0.001)
        open_until = 0.0 if pause is None else now + pause
        state = CircuitState(prefix=self._prefix, tool=tool, open_until=open_until, set_at=set_at)
        self._known[tool] = state
        body = self._envelope.encode(state)
        try:
            await self._transport.set_circuit(_name(tool), body, keep=self._keep)
        except BaseException:
            self._breaker.report_again(tool)
            raise


def _name(tool: str) -> str:
    return encoding.digest([tool])
