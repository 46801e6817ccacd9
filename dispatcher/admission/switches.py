"""The kill switch: a tool, or a tool with one argument value, denied to the whole fleet at once.

Kept in Redis, signed, and followed by every dispatcher within a second (`aborted.denied`). A switch
stays until it is taken back: it must not switch itself off, nor be taken back or turned on again by
somebody who can write to the server and has no key.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import Envelope, Switch
from toolpool.contract.errors import MessageRejected
from toolpool.dispatcher.observe import Observers, Turned
from toolpool.dispatcher.turn_context import require_text

_LONGEST_REASON = 1_000


class Switches:
    """The switches as this dispatcher knows them: for each the latest state that it ever saw."""

    def __init__(self, observers: Observers) -> None:
        self._by_tool: dict[str, list[Switch]] = {}
        self._known: dict[str, tuple[Switch, bytes]] = {}
        self._observers = observers

    def replace(self, entries: Iterable[bytes], envelope: Envelope) -> list[tuple[str, bytes]]:
        """Take what the server has; entries nobody we trust has signed do not count.

        Answers what it lacks, or has in an older state, by name: somebody lost or removed it who
        could not sign that.
        """
        found: dict[str, tuple[Switch, bytes]] = {}
        for data in entries:
            try:
                switch = envelope.decode_switch(data)
            except MessageRejected:
                continue
            name = switch_name(switch.tool, switch.argument, switch.value)
            found[name] = max(found.get(name, (switch, data)), (switch, data), key=_age)
        before = {name for name, (switch, _) in self._known.items() if switch.on}
        for name, state in found.items():
            self._known[name] = max(self._known.get(name, state), state, key=_age)
        self._by_tool = {}
        for switch, _ in self._known.values():
            if switch.on:
                self._by_tool.setdefault(switch.tool, []).append(switch)
        for name, (switch, _) in self._known.items():
            if switch.on is not (name in before):
                turned = Turned(tool=switch.tool, argument=switch.argument, denied=switch.on)
                self._observers.tell("switched", turned)
        return [
            (name, body)
            for name, (switch, body) in self._known.items()
            if name not in found or found[name][0].set_at < switch.set_at
        ]

    def turned(
        self,
        envelope: Envelope,
        tool: str,
        argument: str | None,
        value: Any,
        reason: str,
        *,
        now: float,
        on: bool,
    ) -> tuple[str, bytes]:
        """The name and the signed state of a switch that is turned now, later than its last state.

        Raises ValueError for one that no dispatcher could follow.
        """
        switch = make_switch(tool, argument, value, reason, set_at=now, on=on)
        name = switch_name(tool, argument, value)
        known = self._known.get(name)
        if known is not None:
            set_at = max(now, known[0].set_at + 0.001)
            switch = msgspec.structs.replace(switch, set_at=set_at)
        return name, envelope.encode_switch(switch)

    def denying(self) -> list[Switch]:
        """The switches that deny calls, by tool and age."""
        on = [switch for switch, _ in self._known.values() if switch.on]
        return sorted(on, key=lambda switch: (switch.tool, switch.set_at))

    def denial(self, call: ToolCall) -> str | None:
        """Why a call is denied; None where it is not."""
        for switch in self._by_tool.get(call.name, ()):
            if switch.argument is None:
                return switch.reason
            arguments = call.arguments or {}
            if switch.argument in arguments and _same(arguments[switch.argument], switch.value):
                return switch.reason
        return None


def switch_name(tool: str, argument: str | None, value: Any) -> str:
    """The name a switch is kept under: the same switch has the same."""
    return encoding.digest([tool, argument, value if argument is not None else None])


def make_switch(
    tool: str, argument: str | None, value: Any, reason: str, *, set_at: float, on: bool = True
) -> Switch:
    """A switch, or one taken back.

    Raises ValueError for one that no dispatcher could read: it would deny nothing.
    """
    require_text("tool", tool)
    if on:
        require_text("reason", reason, _LONGEST_REASON)
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
    )


def _same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, and 1 is 1.0."""
    return encoding.canonical(one) == encoding.canonical(other) or (
        not isinstance(one, bool) and not isinstance(other, bool) and bool(one == other)
    )


def _age(state: tuple[Switch, bytes]) -> tuple[float, bytes]:
    switch, body = state
    return switch.set_at, body
