"""SDKs' objects as plain data: a response as it is read, and as it goes back."""

from typing import Any

from toolpool.contract import encoding

_HOLDERS = ("content", "output", "choices", "message", "tool_calls", "parts", "candidates", "steps")
"""Where hosts put an SDK's objects into dicts of their own."""
_DEEP = ("choices", "candidates")
"""Those whose items hold such themselves."""
_DEFAULTS = ("type", "method", "role", "object")
"""What some SDKs leave out of a dump, since it is the class's own."""
_GIVEN = frozenset({"input", "args", "arguments", "data", "response", "content"})
"""What is the model's or the tool's own: a null in it is one."""
_MADE_BY_SDKS = frozenset({"parsed", "parsed_arguments"})


def plain_data(value: Any) -> Any:
    """As it is read: an SDK's object, or one inside of plain data, as data."""
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    # Not in JSON mode: that makes null of an infinite number, and raises for what is no text.
    return _dumped(value, exclude_unset=True)


def _plain_dict(value: dict[str, Any]) -> dict[str, Any]:
    """The same where nothing in it is an SDK's, as mostly."""
    changed: dict[str, Any] | None = None
    for key in _HOLDERS:
        inner = value.get(key)
        if inner is None or inner.__class__ is str or _are_plain(key, inner):
            continue
        changed = changed or dict(value)
        changed[key] = plain_data(inner)
    return changed or value


def _are_plain(key: str, inner: Any) -> bool:
    if inner.__class__ is not list or key in _DEEP:
        return False
    for item in inner:  # noqa: SIM110 - every response goes this way, and a loop is faster
        if item.__class__ is not dict:
            return False
    return True


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


def sendable(response: Any) -> Any:
    """As it goes back to the API, which refuses nulls and names that only an SDK knows."""
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
    return _dumped(value, mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


def _without_nulls(value: Any) -> Any:
    """Without what is null, but in what the model gave."""
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
