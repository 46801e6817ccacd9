"""Which tools may be called now: not denied, and with a closed circuit."""

from collections.abc import Iterable
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import Switch
from toolpool.contract.kill_switches import Canonical, KillSwitches
from toolpool.contract.outcome import Code, Outcome
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.observer import Observers, SwitchChanged
from toolpool.dispatcher.outcomes import not_queued
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.turn_options import require_text

_LONGEST_REASON = 1_000


class Availability:
    """Applies kill switches and circuit breakers to calls."""

    def __init__(
        self,
        transport: Transport,
        observers: Observers,
        *,
        tenant: str,
        switches: KillSwitches,
        breaker: Breaker,
        canonical: Canonical,
    ) -> None:
        self._canonical = canonical
        self._transport = transport
        self._tenant = tenant
        self._observers = observers
        self._switches = switches
        self._breaker = breaker
        self.is_closed = False
        """Whether the dispatcher is closed, so that no call may be sent any more."""

    def close(self) -> None:
        """Refuse every call from now on."""
        self.is_closed = True

    def refusal(self, call: ToolCall, *, is_sent: bool = True) -> Outcome | None:
        """Why a call may not be sent now: its tool is denied, or its circuit is open.

        If the circuit is open and the call is let through to be sent (`is_sent`), it becomes the
        trial call.
        """
        if self.is_closed:
            return not_queued(Code.CANCELLED)
        if self._switches.on and (denied := self.denial(call)) is not None:
            return denied
        if call.name not in self._breaker.circuits:
            return None
        retry_after = self._breaker.retry_after(call.name, tries=is_sent, call=call.id)
        if retry_after is None:
            return None
        return not_queued(Code.CIRCUIT_OPEN, retry_after=round(retry_after, 1))

    def denial(self, call: ToolCall) -> Outcome | None:
        """Why a call may not be sent at all."""
        reason = self._switches.denial(call.name, call.arguments, self._tenant, self._canonical)
        return not_queued(Code.DENIED, reason) if reason is not None else None

    async def follow_switches(self) -> None:
        """Read the switches, and restore switches that the server lost.

        Raises what the transport raises.
        """
        self._tell(await self._switches.follow(self._transport))

    async def set_switch(
        self,
        tool: str,
        argument: str | None,
        value: Any,
        reason: str,
        *,
        on: bool,
        tenant: str | None,
        by: str,
    ) -> None:
        """Deny a tool, or remove the denial.

        Raises ValueError for an unenforceable switch, and what the transport raises.
        """
        now = self._transport.server_time()
        switch = make_switch(tool, argument, value, reason, set_at=now, on=on, tenant=tenant)
        await self.follow_switches()
        while True:
            change = self._switches.change(switch)
            version, states = await self._transport.switches(change)
            self._tell(self._switches.take(version, states))
            if states.get(change.field) == change.after:
                break  # else another operator changed it meanwhile
        what = "switched_off" if switch.on else "switched_on"
        self._observers.audited(what, tool=switch.tool, by=by, reason=switch.reason)

    def _tell(self, turned: Iterable[Switch]) -> None:
        for switch in turned:
            told = SwitchChanged(tool=switch.tool, argument=switch.argument, denied=switch.on)
            self._observers.notify("switched", told)


def make_switch(
    tool: str,
    argument: str | None,
    value: Any,
    reason: str,
    *,
    set_at: float,
    on: bool,
    tenant: str | None = None,
) -> Switch:
    """A new state of a switch.

    Raises ValueError if the switch is unenforceable: it would deny nothing.
    """
    require_text("tool", tool)
    if on:
        require_text("reason", reason, _LONGEST_REASON)
    if tenant is not None:
        require_text("tenant", tenant)
    if argument is not None:
        require_text("argument", argument)
    elif value is not None:
        raise ValueError("value needs the name of the argument that has it")
    try:
        encoding.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"value must be JSON: {error}") from None
    return Switch(
        tool=tool,
        argument=argument,
        value=msgspec.to_builtins(value) if argument is not None else None,
        reason=reason,
        set_at=set_at,
        on=on,
        tenant=tenant,
    )
