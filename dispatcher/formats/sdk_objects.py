"""SDK objects as plain data, for reading and for sending back."""

import dataclasses
from datetime import datetime
from typing import Any

from toolpool.contract import encoding

_HOLDERS = ("content", "output", "choices", "message", "tool_calls", "parts", "candidates", "steps")
"""Fields in which hosts put an SDK's objects into their own dicts."""
_DEEP = ("choices", "candidates")
"""The fields whose items contain such fields themselves."""
_DEFAULTS = ("type", "method", "role", "object")
"""Fields that some SDKs leave out of a dump, because the class implies them."""
_GIVEN = frozenset({"input", "args", "arguments", "data", "response", "content"})
"""Fields with data of the model or the tool, in which a null is intended."""
_MADE_BY_SDKS = frozenset({"parsed", "parsed_arguments"})


def plain_data(value: Any) -> Any:
    """An SDK's object, alone or inside plain data, as plain data for reading."""
    if isinstance(value, dict):
        return plain_dict(value)
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if _is_message(value):
        return _of_message(value)
    # Not in JSON mode: it turns an infinite number into null, and raises for non-Unicode text.
    return _dumped(value, exclude_unset=True)


def plain_dict(value: dict[str, Any]) -> dict[str, Any]:
    """A dict as `plain_data`, fast if it contains no SDK object, as usual."""
    changed: dict[str, Any] | None = None
    for key in _HOLDERS:
        inner = value.get(key)
        if inner is None or inner.__class__ is str:
            continue
        if inner.__class__ is list and key not in _DEEP:
            for item in inner:
                if item.__class__ is not dict:
                    break
            else:
                continue
        changed = changed or dict(value)
        changed[key] = plain_data(inner)
    return changed or value


def _dumped(value: Any, **options: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if not callable(dump):
        return value
    data = dump(**options, warnings=False)
    if isinstance(data, dict):
        for key in _DEFAULTS:
            own = getattr(value, key, None)
            if key not in data and isinstance(own, str):
                data[key] = own
    return data


def _is_message(value: Any) -> bool:
    """Whether it is a message of Pydantic AI, which is a dataclass."""
    is_one = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_one and getattr(value, "kind", None) in ("request", "response")


def _of_message(value: Any) -> Any:
    """A message and all that it holds as plain data."""
    if isinstance(value, dict):
        return {key: _of_message(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_of_message(inner) for inner in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    return {
        each.name: _of_message(getattr(value, each.name, None))
        for each in dataclasses.fields(value)
    }


def sendable(response: Any) -> Any:
    """The data to send back. The API refuses nulls and field names that only the SDK knows."""
    if isinstance(response, (str, bytes)):
        try:
            return sendable(encoding.decode(response))
        except (ValueError, RecursionError):
            return None
    return _without_nulls(_to_json(response))


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if _is_message(value):
        return _to_json(_of_message(value))
    return _dumped(value, mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


def _without_nulls(value: Any) -> Any:
    """The value without nulls, except in the model's own data."""
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key.rstrip("_") if key == "async_" else key: inner
        if key in _GIVEN and not isinstance(inner, list)
        else _without_nulls(inner)
        for key, inner in value.items()
        if key not in _MADE_BY_SDKS and (inner is not None or key == "content")
    }
