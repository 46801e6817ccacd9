"""The kill switch: denies a tool, or one value of an argument, in the whole fleet at once.

Switches are kept in Redis, signed, and followed by every dispatcher and worker. A switch stays on
until it is removed: it never expires, and nobody without a signing key can remove or restore it by
writing to the server.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.envelope import Envelope, Switch
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.protocols import SwitchChange
from toolpool.contract.schema.canonical import spelling
from toolpool.contract.schema.object_fields import fields_of
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.contract.spec import ToolSpec

log = logs.logger("switches")

Canonical = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Converts arguments of the named tool to the canonical form of the tool's schema."""
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_COMPARED_AT_MOST = 1 << 20
"""How many bytes of arguments are compared with switches, counted for each switch."""
_TOO_LARGE = "its arguments are too large to compare with all of its kill switches"
_LINES_AT_MOST = 8
_CHANGED_AT_ONCE = 1_000
LISTS = (list, tuple, set, frozenset, deque)
"""The types that count as lists. A switch on one value also applies to a list that contains it."""
States = tuple[str, Mapping[str, bytes]]
"""The version of all switches, and the signed state of each by its field."""


class SwitchLedger(Protocol):
    """Stores switches."""

    async def switches(self, *changes: SwitchChange) -> States:
        """The states of all switches, after applying `changes`. Raises what the client raises.

        A change is made only if its switch is still in the state `before`.
        """
        ...


class _State(NamedTuple):
    """A state of a switch, as signed with each key of this process."""

    switch: Switch
    signed: tuple[bytes, ...]


class KillSwitches:
    """The latest known state of each switch.

    Only states signed for this key prefix count; of two states of a switch the one with the higher
    number holds. A state is stored signed with each key that any process has, one a line, so that
    it holds when a key is removed.
    """

    def __init__(self, envelope: Envelope, prefix: str) -> None:
        self._envelope = envelope
        self._prefix = prefix
        self._known: dict[str, _State] = {}
        self.on: dict[str, list[Switch]] = {}
        """The switches that deny calls, by tool."""
        self._found: Mapping[str, bytes] = {}
        self.foreign: set[str] = set()
        """The stored switches of which a later state is signed with another key."""
        self.version = "unread"
        """The server's version when its switches were last read."""

    async def follow(self, ledger: SwitchLedger) -> list[Switch]:
        """Read the server's switches and restore those it lost; returns the changed switches."""
        turned = self.take(*await ledger.switches())
        lost = list(self._lost())
        for start in range(0, len(lost), _CHANGED_AT_ONCE):
            changes = lost[start : start + _CHANGED_AT_ONCE]
            turned += self.take(*await ledger.switches(*changes))
        return turned

    def take(self, version: str, found: Mapping[str, bytes]) -> list[Switch]:
        """Merge the server's states; returns the switches that began or stopped denying."""
        before, foreign = self._denying(), set[str]()
        for field, stored in found.items():
            if self._found.get(field) == stored:  # its signatures were verified before
                if field in self.foreign:
                    foreign.add(field)
                continue
            number = 0
            for state in self._readable(stored):
                name, number = switch_name(state.switch), max(number, state.switch.number)
                self._known[name] = max(self._known.get(name, state), state, key=_rank)
            if any(_claimed_number(line) > number for line in _lines(stored)):
                foreign.add(field)
        if new := len(foreign - self.foreign):
            log.error(
                "switches_not_followed switches=%d: not signed with a key of this process", new
            )
        self.foreign = foreign
        self.version, self._found = version, found
        now = self._denying()
        self.on = {}
        for switch in now.values():
            self.on.setdefault(switch.tool, []).append(switch)
        return [self._known[name].switch for name in before.keys() ^ now.keys()]

    def _readable(self, stored: bytes) -> Iterator[_State]:
        for line in _lines(stored):
            try:
                switch = self._envelope.decode(Switch, line)
                signed = self._envelope.signed_with_each(Switch, line)
            except MessageRejected:
                continue
            if switch.prefix == self._prefix:
                yield _State(switch, tuple(signed))

    def _denying(self) -> dict[str, Switch]:
        return {name: state.switch for name, state in self._known.items() if state.switch.on}

    def _lost(self) -> Iterator[SwitchChange]:
        """The states that the server lacks or has changed, although no holder of a key did so."""
        for name, (_, signed) in self._known.items():
            signed, found = signed[:_LINES_AT_MOST], self._found.get(name, b"")
            lines = _lines(found)
            if not set(signed) <= set(lines) or len(lines) > _LINES_AT_MOST:
                own = {_key_id(line) for line in signed}
                others = [line for line in lines if _key_id(line) not in own]
                after = b"\n".join([*signed, *others][:_LINES_AT_MOST])
                yield SwitchChange(name, found, after)

    def change(self, switch: Switch) -> SwitchChange:
        """The step from the last read state to this one, with the next number.

        The number is at least the current time, so that it also exceeds the number of a state that
        the server has lost.
        """
        name = switch_name(switch)
        known = self._known.get(name)
        number = max(known.switch.number + 1 if known is not None else 1, int(switch.set_at * 1000))
        numbered = msgspec.structs.replace(switch, prefix=self._prefix, number=number)
        signed = self._envelope.signed_with_each(Switch, self._envelope.encode(numbered))
        return SwitchChange(name, self._found.get(name, b""), b"\n".join(signed))

    def denying(self) -> list[Switch]:
        """The switches that deny calls, by tool and age."""
        return sorted(self._denying().values(), key=lambda switch: (switch.tool, switch.set_at))

    def denial(
        self,
        tool: str,
        arguments: dict[str, Any] | None,
        tenant: str,
        canonical: Canonical = lambda _, sent: sent,
    ) -> str | None:
        """Why a call is denied; None if it is not. Values are compared in `canonical` form."""
        found = [each for each in self.on.get(tool, ()) if each.tenant in (None, tenant)]
        for switch in found:
            if switch.argument is None:
                return switch.reason
        if not found:
            return None
        judged = canonical(tool, arguments or {})
        compared = [switch for switch in found if switch.argument in judged]
        if compared and len(compared) * len(encoding.encode(judged)) > _COMPARED_AT_MOST:
            return _TOO_LARGE
        for switch in compared:
            name = str(switch.argument)
            denied = canonical(tool, {name: switch.value}).get(name)
            if any(values_match(each, judged[name]) for each in (switch.value, denied)):
                return switch.reason
        return None

    def on_arguments(self, tool: str, tenant: str) -> tuple[Switch, ...]:
        """The switches on arguments of a tool that apply to a tenant."""
        found = (switch for switch in self.on.get(tool, ()) if switch.argument is not None)
        return tuple(switch for switch in found if switch.tenant in (None, tenant))


def switch_name(switch: Switch) -> str:
    """The hash field of a switch; all states of a switch share it."""
    words = [switch.tool, switch.argument, switch.value]
    return encoding.digest(words if switch.tenant is None else [*words, switch.tenant])


def values_match(denied: Any, value: Any) -> bool:
    """Whether a switch on the value `denied` applies to `value`; both are JSON, or both typed.

    True is not 1, and 1 is 1.0. A number may be written as text, and a value, or a list of several,
    may stand alone or in a list. A typed path may begin with two slashes.
    """
    if isinstance(value, LISTS) and not isinstance(denied, LISTS):
        return any(values_match(denied, each) for each in value)
    if isinstance(denied, LISTS) and not isinstance(value, LISTS):
        return len(denied) == 1 and values_match(next(iter(denied)), value)
    if isinstance(denied, LISTS) and isinstance(value, LISTS):
        is_same = len(denied) == len(value) and all(map(values_match, denied, value))
        is_same = is_same or (isinstance(denied, (set, frozenset)) and denied == value)
        return is_same or any(isinstance(v, LISTS) and values_match(denied, v) for v in value)
    if isinstance(denied, dict) and isinstance(value, dict):
        return denied.keys() == value.keys() and all(
            values_match(denied[key], value[key]) for key in denied
        )
    if isinstance(denied, PurePosixPath) and isinstance(value, PurePosixPath):
        denied, value = (spelling("path", str(each)) for each in (denied, value))
    if isinstance(denied, str) != isinstance(value, str):
        denied, value = _read(denied), _read(value)
    if isinstance(denied, bool) != isinstance(value, bool):
        return False
    return bool(denied == value)


def _read(value: Any) -> Any:
    """The number or boolean that a value may stand for."""
    if value in ("true", "false"):
        return value == "true"
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            number = Decimal(value if isinstance(value, int) else str(value))
        except InvalidOperation:
            return value
        return number if number.is_finite() else value
    return value


def why_never_matched(
    spec: ToolSpec, validator: SchemaValidator | None, argument: str | None, value: Any
) -> str | None:
    """Why no valid call of a tool has this value for an argument, and what to do instead."""
    schema = spec.input_schema
    if validator is None or schema is None or argument is None:
        return None
    named, _ = fields_of(schema)
    if argument not in named and all(schema.get(key, False) is False for key in _OPEN):
        return f"{spec.name} has no argument {argument!r} ({', '.join(sorted(named))})"
    # a value also denies lists that contain it
    if not any(_is_valid(validator, argument, each) for each in (value, [value])):
        return (
            f"no valid call of {spec.name} has this value for {argument!r}: write it as the tool's "
            "schema shows it, or deny the whole tool"
        )
    return None


def _is_valid(validator: SchemaValidator, argument: str, value: Any) -> bool:
    try:
        sent = validator.canonical({argument: value})
    except ValueError:
        sent = {argument: value}
    return not any(problem.path[:1] == (argument,) for problem in validator.problems(sent))


def _lines(stored: bytes) -> list[bytes]:
    """The signed states stored for one switch; JSON has no line breaks."""
    return stored.split(b"\n", _LINES_AT_MOST)[: _LINES_AT_MOST + 1] if stored else []


def _claimed_number(line: bytes) -> int:
    """The number of a state whose signature is not verified; 0 if the line cannot be read."""
    try:
        return msgspec.json.decode(line.split(b".", 2)[2], type=Switch).number
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return 0


def _key_id(line: bytes) -> bytes:
    return line.partition(b".")[0]


def _rank(state: _State) -> tuple[int, bool, bytes]:
    """Orders states by number.

    Of two with the same number, set at once, the one that denies holds.
    """
    body = state.signed[0].split(b".", 2)[2]
    return state.switch.number, state.switch.on, body
