"""Checks typed arguments against what a policy judged, and against kill switches on values.

It compares the typed values, not the output of the author's serializers.
"""

import base64
import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import PurePath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import AliasChoices, BaseModel, RootModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from toolpool.contract import encoding
from toolpool.contract.envelope import PolicyVerdict
from toolpool.contract.kill_switches import LISTS, values_match
from toolpool.contract.outcome import ARGUMENTS_DIFFER, NOT_COMPARABLE
from toolpool.contract.schema.problem import Problem

Path = tuple[str | int, ...]
Steps = tuple[str | int | None, ...]

_BY_IDENTITY: Any = object.__eq__
_SCALARS = frozenset({str, int, float, bool, type(None)})
_READS = frozenset({"__getitem__", "__iter__", "__missing__", "get", "items", "keys", "values"})
"""The methods that read the content of a dict, list or set."""
_ENCODED = re.compile(rb'"content(?:Encoding|MediaType)":|"format":"(?:base64|base64url|binary)"')


def argument_differences(
    judged: dict[str, Any], values: BaseModel, verdict: PolicyVerdict
) -> tuple[Problem, ...]:
    """Return the differences between the typed `values` and the judged arguments.

    A value that a rule compares must equal the judged value, also after the types have filled in
    their own defaults and decoded `Base64Str` or `Json`. If a hook or a person judged the call, all
    other sent values must be equal too. The types must not drop a field: it may be another name of
    a field whose default was judged. Problems of the kind `NOT_COMPARABLE` expect the class of the
    value.
    """
    found: list[Problem] = []
    if verdict.paths:
        differences = _differences(judged, values, (), None)
        found = [each for each, gone in differences if gone or is_judged(each.path, verdict)]
    if verdict.is_whole:
        found += [each for each, _ in _differences(judged, values, (), _encoded(type(values)))]
    return tuple(dict.fromkeys(found))


def is_judged(path: Path, verdict: PolicyVerdict) -> bool:
    """Whether a rule compares the value at `path`, a container of it, or a part of it."""
    return any(_meet(steps, path) for steps in verdict.paths)


def _meet(steps: Steps, path: Path) -> bool:
    """Whether one path is a prefix of the other; a list may stand for a single value."""
    if not steps or not path:
        return True
    step, own = steps[0], path[0]
    if isinstance(step, str):
        is_element = isinstance(own, int)
        return (is_element or step == own) and _meet(steps[not is_element :], path[1:])
    return (not step and _meet(steps[1:], path)) or (
        (step is None or step == own) and _meet(steps[1:], path[1:])
    )


def with_argument(values: BaseModel, field: str, value: Any) -> BaseModel:
    """The typed arguments with another value for one argument, which is typed too.

    Raises what validators raise.
    """
    changed = values.model_copy()
    changed.__pydantic_validator__.validate_assignment(changed, field, value)
    return changed


def is_switched_off(values: BaseModel, field: str, denied: Any) -> bool:
    """Whether a kill switch on the value `denied` applies to typed arguments.

    It is compared as JSON, and typed in the same way as the argument: a default of the function may
    have another type than the value that a model sends for it.
    """
    if field not in type(values).model_fields:
        return False  # no type: the sent value was compared
    with contextlib.suppress(Exception):
        if values_match(denied, _as_json(getattr(values, field))):
            return True
    for given in (denied, [denied]):  # it may be one value of a list
        with contextlib.suppress(Exception):  # validators are user code
            others = [with_argument(values, field, given) for _ in range(2)]
            is_element = given is not denied
            break
    else:
        return False  # no call can have this value

    try:
        denied, again, value = (getattr(each, field) for each in (*others, values))
        if _is_by_identity(value) or not values_match(denied, again):
            if isinstance(value, Iterator):
                return True  # it can be read only once, by the tool
            python, as_json = (
                [each.model_dump(mode=mode, include={field})[field] for each in (*others, values)]
                for mode in ("python", "json")
            )
            denied, again, value = map(_comparable, python, as_json)
            if not values_match(denied, again):
                return True  # typed differently each time, for example with a random id
        return values_match(next(iter(denied)) if is_element else denied, value)
    except Exception:  # noqa: BLE001 - it has no serializer, is left out, or cannot be compared
        return True


def _as_json(typed: Any) -> Any:
    """A typed value of lists, objects and standard types. Raises for other types."""
    typed = _unwrapped(typed)
    if isinstance(typed, LISTS):
        return [_as_json(each) for each in typed]
    if (fields := _fields(typed, {}, is_whole=False)) is not None:
        return {name: _as_json(value) for name, value in fields.items()}
    return _plain(typed)


def _is_by_identity(value: Any) -> bool:
    """Whether a class in the value compares by identity, so that equality means nothing."""
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, LISTS):
        parts = value
    elif isinstance(value, BaseModel):
        parts = vars(value).values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name, None) for field in dataclasses.fields(value))
    is_unique = value is None or isinstance(value, Enum)
    is_by_identity = type(value).__eq__ is _BY_IDENTITY and not is_unique
    return is_by_identity or any(_is_by_identity(part) for part in parts)


def _comparable(typed: Any, as_json: Any) -> Any:
    """A dumped value, in which only what compares by identity is JSON.

    So a Decimal beside it is still compared as a number.
    """
    if isinstance(typed, dict) and isinstance(as_json, dict) and len(typed) == len(as_json):
        pairs = zip(typed.values(), as_json.items(), strict=True)
        return {name: _comparable(value, plain) for value, (name, plain) in pairs}
    if isinstance(typed, (list, tuple)) and isinstance(as_json, list):
        return list(map(_comparable, typed, as_json))
    return as_json if _is_by_identity(typed) else typed


@functools.cache
def _encoded(model: type[BaseModel]) -> frozenset[str]:
    """The arguments that, by their schemas, may contain text that the types decode."""
    return frozenset(
        _shown(name, field)
        for name, field in model.model_fields.items()
        if _ENCODED.search(encoding.encode(TypeAdapter(field.rebuild_annotation()).json_schema()))
    )


def _differences(
    judged: Any, typed: Any, path: Path, encoded: frozenset[str] | None
) -> Iterator[tuple[Problem, bool]]:
    """Where typed values differ from judged ones, and whether the judged value is missing there.

    If all arguments were judged, `encoded` names arguments that may have been decoded, and values
    that were not sent are not compared.
    """
    typed = _unwrapped(typed)
    try:
        parts = _parts(judged, typed, is_whole=encoded is not None)
        is_same = parts is not None or _is_same(judged, typed)
        if not is_same and not (encoded and path[0] in encoded and _is_decoded(judged, typed)):
            yield Problem(path, ARGUMENTS_DIFFER), False
    except PydanticSerializationError:
        yield Problem(path, NOT_COMPARABLE, expected=type(typed).__name__), False
        return
    ours, theirs = parts or ({}, {})
    for step in {**ours, **theirs}:
        if step not in ours or step not in theirs:
            yield Problem((*path, step), ARGUMENTS_DIFFER), step in ours
            continue
        one, other = ours[step], theirs[step]
        kind = type(other)
        if kind not in _SCALARS or kind is not type(one) or one != other:  # fast path
            yield from _differences(one, other, (*path, step), encoded)


def _unwrapped(typed: Any) -> Any:
    """The value inside a root model, an enum member or a secret."""
    if isinstance(typed, RootModel):
        return _unwrapped(typed.root)
    if isinstance(typed, Enum):
        return _unwrapped(typed.value)
    return (
        _unwrapped(typed.get_secret_value())
        if isinstance(typed, (Secret, SecretStr, SecretBytes))
        else typed
    )


def _parts(
    judged: Any, typed: Any, *, is_whole: bool
) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """The fields or elements of both, by name or index; None if either has none."""
    if isinstance(typed, (dict, *LISTS)) and _reads_by_itself(type(typed)):
        raise PydanticSerializationError("its class may give the tool something else")
    if isinstance(judged, dict):
        fields = _fields(typed, judged, is_whole=is_whole)
        return None if fields is None else (judged, fields)
    if not isinstance(judged, list) or not isinstance(typed, LISTS) or len(judged) != len(typed):
        return None
    if isinstance(typed, (set, frozenset)):
        judged, typed = sorted(judged, key=_order), sorted(typed, key=_order)
    return dict(enumerate(judged)), dict(enumerate(typed))


@functools.cache
def _reads_by_itself(container: type) -> bool:
    """Whether a class overrides how its content is read."""
    own = (base for base in container.__mro__ if base.__module__ not in ("builtins", "collections"))
    return any(_READS & vars(base).keys() for base in own)


def _fields(typed: Any, judged: dict[str, Any], *, is_whole: bool) -> dict[str, Any] | None:
    """The fields of an object by their names in the schema; None if it has no fields."""
    if isinstance(typed, dict):
        made = {_name(key): value for key, value in typed.items()}
        return made if len(made) == len(typed) else None
    if isinstance(typed, BaseModel):
        fields: dict[str, Any] = dict(type(typed).model_fields)
        added = fields.keys() - typed.model_fields_set
        more = typed.__pydantic_extra__ or {}
        if more.keys() & fields.keys():
            raise PydanticSerializationError("a field and an extra one have the same name")
    elif dataclasses.is_dataclass(typed) and not isinstance(typed, type):
        described, held = getattr(typed, "__pydantic_fields__", {}), getattr(typed, "__dict__", {})
        own = dataclasses.fields(typed)
        fields = {field.name: described.get(field.name) for field in own if field.init}
        added = set()
        more = {name: held[name] for name in judged.keys() & held.keys() - fields.keys()}
    else:
        return None
    named = {_shown(name, field): name for name, field in fields.items() if hasattr(typed, name)}
    return more | {
        shown: getattr(typed, name)
        for shown, name in named.items()
        if not is_whole or shown in judged or name not in added
    }


def _shown(name: str, field: FieldInfo | None) -> str:
    """The name of a field in the schema."""
    alias = field.validation_alias if field is not None else None
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias if isinstance(alias, str) else name


def _name(key: Any) -> str:
    plain = _plain(_unwrapped(key))
    return plain if isinstance(plain, str) else encoding.encode(plain).decode()


def _order(element: Any) -> tuple[bytes, bytes]:
    """A sort key for set elements by their JSON, independent of the order of nested sets."""
    plain = to_jsonable_python(_unwrapped(element), serialize_unknown=True)
    return encoding.canonical(_sorted(plain)), encoding.canonical(plain)


def _sorted(plain: Any) -> Any:
    """The value with each of its lists sorted."""
    if isinstance(plain, dict):
        return {name: _sorted(value) for name, value in plain.items()}
    if isinstance(plain, list):
        return sorted(map(_sorted, plain), key=encoding.canonical)
    return plain


def _is_same(judged: Any, typed: Any) -> bool:
    """JSON equality: true is not 1, and 1 is 1.0. A Decimal is compared as a number."""
    if isinstance(typed, Decimal) and not isinstance(judged, bool):
        try:
            return Decimal(str(judged)) == typed
        except InvalidOperation:
            return False
    plain = _plain(typed)
    if isinstance(judged, bool) or isinstance(plain, bool):
        return judged is plain
    return bool(judged == plain)


def _plain(typed: Any) -> Any:
    """A value of a standard type as JSON. Raises `PydanticSerializationError` for any other."""
    kind = type(typed)
    if kind in _SCALARS:
        return typed
    if isinstance(typed, bytes):
        return typed.decode(errors="replace")
    if isinstance(typed, PureWindowsPath):
        raise PydanticSerializationError("a path that Windows reads has many spellings")
    if isinstance(typed, PurePath) or kind is ZoneInfo or kind.__module__ == "pydantic.networks":
        return str(typed)
    if isinstance(typed, (dict, BaseModel, *LISTS)) or dataclasses.is_dataclass(typed):
        return ...  # equal to nothing
    if isinstance(typed, Iterator) or hasattr(kind, "__pydantic_serializer__"):
        raise PydanticSerializationError("it has its own serializer, or can be read only once")
    return to_jsonable_python(typed)


def _is_decoded(judged: Any, typed: Any) -> bool:
    """Whether a value is the decoded form of a text (`Json` and `Base64Str`)."""
    if not isinstance(judged, str):
        return False
    content = typed.encode() if isinstance(typed, str) else typed
    with contextlib.suppress(ValueError):
        if isinstance(content, bytes) and base64.urlsafe_b64decode(judged) == content:
            return True
    with contextlib.suppress(ValueError):
        return not any(_differences(from_json(judged), typed, ("",), frozenset({""})))
    return False
