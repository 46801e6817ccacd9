"""Which tools may be called now: none that is denied, and none whose circuit is open."""

from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import Envelope
from toolpool.contract.outcome import Code, Outcome
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.admission.switches import Switches
from toolpool.dispatcher.observe import Observers
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.words.classify import not_queued


class Availability:
    """What the kill switch and the circuit breaker say of a call."""

    def __init__(
        self,
        transport: Transport,
        envelope: Envelope,
        observers: Observers,
        *,
        switches: Switches,
        breaker: Breaker,
    ) -> None:
        self._transport = transport
        self._envelope = envelope
        self._observers = observers
        self._switches = switches
        self._breaker = breaker

    def refusal(self, call: ToolCall) -> Outcome | None:
        """Why a call may not be sent now: its tool is denied, or left alone for a while."""
        denied = self.denial(call)
        if denied is not None:
            return denied
        retry_after = self._breaker.retry_after(call.name)
        if retry_after is None:
            return None
        return not_queued(Code.CIRCUIT_OPEN, retry_after=round(retry_after, 1))

    def denial(self, call: ToolCall) -> Outcome | None:
        """Why a call may not be sent at all."""
        reason = self._switches.denial(call)
        return not_queued(Code.DENIED, reason) if reason is not None else None

    def preview(self, call: ToolCall) -> Outcome | None:
        """What `refusal` would say, without letting a call through to try the tool."""
        denied = self.denial(call)
        if denied is not None:
            return denied
        left = self._breaker.open_circuits().get(call.name)
        return None if left is None else not_queued(Code.CIRCUIT_OPEN, retry_after=left)

    async def turn_switch(
        self, tool: str, argument: str | None, value: Any, reason: str, *, on: bool, by: str
    ) -> None:
        """Deny a tool, or take that back. Raises ValueError for what nobody could follow."""
        name, body = self._switches.turned(
            self._envelope, tool, argument, value, reason, now=self._transport.server_time(), on=on
        )
        await self._transport.set_switch(name, body)
        what = "switched_off" if on else "switched_on"
        self._observers.audited(what, tool=tool, by=by, reason=reason)
