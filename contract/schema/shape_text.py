"""Names, values, patterns and limits as they are written in a shape."""

import json
import re
from typing import Any

from toolpool.contract.schema.json_values import escaped, literal

_BARE_NAME = re.compile(r"[^\W\d][\w$.@-]*")
_SLASH = re.compile(r"((?:^|[^\\])(?:\\\\)*)/")


def value_text(value: Any) -> str:
    """A literal value as a shape."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name_of(k)}: {value_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        inner = ", ".join(map(value_text, value)) or "any"
        return f"[{inner}]" if len(value) > 1 else f"[{inner}] {len(value)}..{len(value)}"
    return literal(value)


def name_of(name: str) -> str:
    """A field's name, quoted if necessary."""
    return name if _BARE_NAME.fullmatch(name) else escaped(json.dumps(name, ensure_ascii=False))


def pattern(expression: str) -> str:
    """A regular expression between slashes."""
    return "/" + escaped(_SLASH.sub(r"\1\\/", _SLASH.sub(r"\1\\/", expression))) + "/"


def between(low: Any, high: Any) -> str:
    """A count such as ` 1..20`, open-ended without a limit; empty without limits."""
    low = None if low == 0 else low
    if low is None and high is None:
        return ""
    return f" {'' if low is None else literal(low)}..{'' if high is None else literal(high)}"


def limits(node: dict[str, Any]) -> str:
    """The limits after `integer` or `number`."""
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if isinstance(above, bool):  # draft 4
        low, above = (None, low) if above else (low, None)
    if isinstance(below, bool):
        high, below = (None, high) if below else (high, None)
    text = ""
    if low is not None or high is not None:
        text = f" {'' if low is None else literal(low)}..{'' if high is None else literal(high)}"
    text += "" if above is None else f" >{literal(above)}"
    text += "" if below is None else f" <{literal(below)}"
    step = node.get("multipleOf")
    return text + ("" if step is None else f" multiple of {literal(step)}")
