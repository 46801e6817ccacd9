"""Parses arguments that a model sent into one JSON object, or the flaw."""

import json
import math
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.call import Flaw
from toolpool.contract.encoding import printable
from toolpool.contract.outcome import Code

DEEPEST = 64
_AROUND_CHARACTERS = 12
_BREAKS = (
    ("Extra data", "extra"),
    ("Unterminated string", "unclosed"),
    ("Expecting ',' delimiter", "comma"),
    ("Expecting ':' delimiter", "colon"),
    ("Expecting property name", "key"),
    ("Illegal trailing comma", "trailing_comma"),
    ("Expecting value", "value"),
    ("Invalid control character", "control"),
    ("Invalid \\", "escape"),
)
"""The beginnings of the parser's messages, and toolpool's names for them."""


class Unacceptable(ValueError):
    """Raised inside the parser for well-formed JSON that has the flaw `flaw`."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.reason)
        self.flaw = flaw


def parse(raw: Any, max_bytes: int) -> dict[str, Any] | Flaw:
    """The arguments object in `raw` (text, bytes or an object); absent arguments are `{}`."""
    if raw is None:
        return {}
    if isinstance(raw, (str, bytes)):
        return _parse_text(raw, max_bytes)
    if not isinstance(raw, dict):
        return _not_an_object(raw)
    return accept(raw, max_bytes)


def _parse_text(raw: str | bytes, max_bytes: int) -> dict[str, Any] | Flaw:
    if len(raw) > max_bytes:
        return _too_large(len(raw), max_bytes)
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
        if not text.strip() or text.strip() == "null":
            return {}
        value = loads(text)
    except json.JSONDecodeError as error:
        return _broken(error)
    except Unacceptable as error:
        return error.flaw
    except RecursionError:
        return _too_deep()
    except UnicodeDecodeError:
        return Flaw(Code.UNPARSEABLE, "not_utf8")
    except ValueError:  # more digits than Python converts
        return Flaw(Code.UNPARSEABLE, "digits")
    if not isinstance(value, dict):
        return _not_an_object(value)
    return accept(value, max_bytes)


def loads(text: str, *, control_characters: bool = False) -> Any:
    """Parse JSON text with unique keys and finite numbers.

    `control_characters` may stand inside strings. Raises `Unacceptable`, JSONDecodeError or another
    ValueError, and RecursionError.
    """
    return json.loads(
        text,
        strict=not control_characters,
        object_pairs_hook=_unique,
        parse_constant=_no_constant,
    )


def accept(arguments: dict[str, Any], max_bytes: int) -> dict[str, Any] | Flaw:
    """The arguments, or the flaw that makes them unusable for any tool."""
    try:
        encoded = encoding.encode(arguments)
    except UnicodeEncodeError:
        return Flaw(Code.UNPARSEABLE, "surrogate")
    except RecursionError:
        return _too_deep()
    except (TypeError, ValueError):
        return Flaw(Code.UNPARSEABLE, "no_json_value")
    if len(encoded) > max_bytes:
        return _too_large(len(encoded), max_bytes)
    if len(encoded) > DEEPEST and encoding.nests_deeper_than(DEEPEST, encoded):
        return _too_deep()
    if b"null" in encoded and _has_odd_number(arguments):
        return Flaw(Code.UNPARSEABLE, "odd_numbers")
    return arguments


class DoubledKey(dict[str, Any]):
    """An object in which `key` occurs twice; JSON parsers silently keep the last."""

    key: str


def load(text: str | bytes) -> tuple[Any, bool]:
    """Parse JSON text; also whether any object has a duplicate key. Raises as json.loads does."""
    found: list[DoubledKey] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        names = [name for name, _ in pairs]
        double = DoubledKey(plain)
        double.key = next(name for name in names if names.count(name) > 1)
        found.append(double)
        return double

    return json.loads(text, object_pairs_hook=note), bool(found)


def doubled_key(value: Any) -> str | None:
    """The first duplicate key anywhere in a value from `load`."""
    level = [value]
    for item in level:
        if isinstance(item, DoubledKey):
            return item.key
        if isinstance(item, dict):
            level.extend(item.values())
        elif isinstance(item, list):
            level.extend(item)
    return None


def doubled(key: str) -> Flaw:
    """The flaw of arguments that have `key` twice in one object."""
    return Flaw(Code.UNPARSEABLE, "doubled_key", {"key": printable(key[:64])})


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise Unacceptable(doubled(next(name for name in names if names.count(name) > 1)))
    return found


def _no_constant(name: str) -> float:
    raise Unacceptable(Flaw(Code.UNPARSEABLE, "odd_number", {"name": name}))


def _broken(error: json.JSONDecodeError) -> Flaw:
    """The flaw of invalid JSON: what is wrong, where, and the characters around that position."""
    start = max(0, error.pos - _AROUND_CHARACTERS)
    around = error.doc[start : error.pos + _AROUND_CHARACTERS]
    before = "…" if start else ""
    after = "…" if error.pos + _AROUND_CHARACTERS < len(error.doc) else ""
    why = next((why for said, why in _BREAKS if error.msg.startswith(said)), "other")
    if why != "extra" and not error.doc[error.pos :].strip():
        why = "early"
    near = printable(f"{before}{around}{after}")
    blanks: dict[str, str | int] = {"at": error.pos, "of": len(error.doc), "near": near}
    return Flaw(Code.UNPARSEABLE, f"not_json.{why}", blanks)


def _not_an_object(value: Any) -> Flaw:
    kind = "array" if isinstance(value, (list, tuple)) else type(value).__name__
    names = {"str": "string", "int": "number", "float": "number", "bool": "boolean"}
    return Flaw(Code.UNPARSEABLE, "not_an_object", {"kind": names.get(kind, kind)})


def _too_large(size: int, cap: int) -> Flaw:
    return Flaw(Code.TOO_LARGE, "too_large", {"size": f"{size:,}", "cap": f"{cap:,}"})


def _too_deep() -> Flaw:
    return Flaw(Code.UNPARSEABLE, "too_deep", {"levels": DEEPEST})


def _has_odd_number(value: Any) -> bool:
    found = [value]
    for item in found:
        if isinstance(item, dict):
            found.extend(item.values())
        elif isinstance(item, (list, tuple)):
            found.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return True
    return False
