"""The kill switch: a tool, or a tool with one argument value, denied to the whole fleet at once.

Kept in Redis, signed, and followed by every dispatcher within a second (`aborted.denied`). A switch
stays until it is taken back: it must not switch itself off.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from contract import encoding
from contract.call import ToolCall
from contract.envelope import Envelope, Switch
from contract.errors import MessageRejected
from dispatcher.formats.blocks import LONGEST_NAME

_LONGEST_REASON = 1_000


class Switches:
    """The switches that are on."""

    def __init__(self) -> None:
        self._by_tool: dict[str, list[Switch]] = {}
        self._bodies: dict[str, bytes] = {}
        self._known: dict[str, Switch] = {}
        self.listeners: list[Callable[[Switch, bool], None]] = []
        """Told each switch that is turned, and whether it denies now."""

    def replace(self, entries: Iterable[bytes], envelope: Envelope) -> None:
        """Take what the server has; entries nobody we trust has signed do not count."""
        by_tool: dict[str, list[Switch]] = {}
        known, self._known, self._bodies = self._known, {}, {}
        for data in entries:
            try:
                switch = envelope.decode_switch(data)
            except MessageRejected:
                continue
            by_tool.setdefault(switch.tool, []).append(switch)
            name = switch_name(switch.tool, switch.argument, switch.value)
            self._known[name], self._bodies[name] = switch, data
        self._by_tool = by_tool
        for turned, now in ((self._known, known), (known, self._known)):
            for name in turned.keys() - now.keys():
                for listener in self.listeners:
                    listener(turned[name], turned is self._known)

    def missing_in(self, entries: Iterable[bytes]) -> list[tuple[str, bytes]]:
        """What was on at the last look and is not among these: name and signed switch."""
        there = set(entries)
        return [(name, body) for name, body in self._bodies.items() if body not in there]

    def denial(self, call: ToolCall) -> str | None:
        """Why a call is denied; None where it is not."""
        for switch in self._by_tool.get(call.name, ()):
            if switch.argument is None:
                return switch.reason
            arguments = call.arguments or {}
            if switch.argument in arguments and arguments[switch.argument] == switch.value:
                return switch.reason
        return None


def switch_name(tool: str, argument: str | None, value: Any) -> str:
    """The name a switch is kept under: the same switch has the same."""
    return encoding.digest([tool, argument, value if argument is not None else None])


def _require_text(what: str, text: Any, longest: int = LONGEST_NAME) -> None:
    if not isinstance(text, str) or not text:
        raise ValueError(f"{what} must be a text that is not empty")
    if len(text) > longest or encoding.printable(text) != text:
        raise ValueError(f"{what} must be Unicode of at most {longest} characters")


def make_switch(tool: str, argument: str | None, value: Any, reason: str) -> Switch:
    """A switch. Raises ValueError for one that no dispatcher could read: it would deny nothing."""
    _require_text("tool", tool)
    _require_text("reason", reason, _LONGEST_REASON)
    if argument is not None:
        _require_text("argument", argument)
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
    )
