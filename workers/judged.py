"""Whether a tool reads its arguments as a policy judged them."""

import dataclasses
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from pydantic import AliasChoices, BaseModel, RootModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from toolpool.contract import encoding
from toolpool.contract.envelope import PolicyVerdict

Path = tuple[str | int, ...]
Steps = tuple[str | int | None, ...]

_PLAIN = frozenset({str, int, float, bool, list, dict})
"""What a tool gets as it is; of any other type JSON has only what it is dumped as."""


def read_otherwise(
    arguments: dict[str, Any], values: BaseModel, verdict: PolicyVerdict
) -> tuple[Path, ...]:
    """Where `values`, typed from the arguments, are not what was judged; empty if nowhere.

    What a rule compares must be the same with the defaults that only the types know, and decoded
    where the type is `Base64Str` or `Json`. Of the rest, if a hook or a person judged it, what was
    sent must be the same. In neither may the types leave out a field: it may be another name of one
    whose default was judged.
    """
    found: list[Path] = []
    try:
        if verdict.paths:
            dumped = _dumped(values)
            differences = _differences(arguments, dumped, values, (), is_decoded=True)
            found = [path for path, gone in differences if gone or is_judged(path, verdict)]
        if verdict.is_whole:
            dumped = _dumped(values, exclude_unset=True)
            if encoding.canonical(dumped) != encoding.canonical(arguments):
                found += [path for path, _ in _differences(arguments, dumped, values, ())]
    except PydanticSerializationError:
        return ((),)
    return tuple(dict.fromkeys(found))


def _dumped(values: BaseModel, *, exclude_unset: bool = False) -> dict[str, Any]:
    return values.model_dump(
        mode="json", by_alias=True, round_trip=True, warnings=False, exclude_unset=exclude_unset
    )


def is_judged(path: Path, verdict: PolicyVerdict) -> bool:
    """Whether a rule looks at the value at `path`, at what it is in, or at what is in it."""
    return any(_meet(steps, path) for steps in verdict.paths)


def _meet(steps: Steps, path: Path) -> bool:
    """Whether one leads to, or through, where the other does; a list may stand for one value."""
    if not steps or not path:
        return True
    step, own = steps[0], path[0]
    if isinstance(step, str):
        is_element = isinstance(own, int)
        return (is_element or step == own) and _meet(steps[not is_element :], path[1:])
    return (not step and _meet(steps[1:], path)) or (
        (step is None or step == own) and _meet(steps[1:], path[1:])
    )


def _differences(
    judged: Any, dumped: Any, typed: Any, path: Path, *, is_decoded: bool = False
) -> Iterator[tuple[Path, bool]]:
    """Where `dumped`, the JSON of `typed`, is not what was judged, and whether it is gone there.

    `is_decoded`: what the tool gets is compared, which may be dumped as the code it came in.
    """
    if isinstance(typed, RootModel):
        typed = typed.root
    if isinstance(typed, (SecretStr, SecretBytes)):
        secret = typed.get_secret_value()
        dumped = secret.decode(errors="replace") if isinstance(secret, bytes) else secret
    if isinstance(judged, dict) and isinstance(dumped, dict):
        members = {name: (inner, part) for name, inner, part in _members(dumped, typed)}
        for name in {**judged, **members}:
            if name in judged and name in members:
                inner, part = members[name]
                below = (*path, name)
                yield from _differences(judged[name], inner, part, below, is_decoded=is_decoded)
            else:
                yield (*path, name), name in judged
    elif isinstance(judged, list) and isinstance(dumped, list) and len(judged) == len(dumped):
        is_list = isinstance(typed, (list, tuple, set, frozenset)) and len(typed) == len(dumped)
        parts = list(zip(dumped, typed if is_list else [None] * len(dumped), strict=True))
        if isinstance(typed, (set, frozenset)):
            judged = sorted(judged, key=encoding.canonical)
            parts.sort(key=lambda pair: encoding.canonical(pair[0]))
        for number, (one, (other, part)) in enumerate(zip(judged, parts, strict=True)):
            yield from _differences(one, other, part, (*path, number), is_decoded=is_decoded)
    else:
        if is_decoded and type(typed) in _PLAIN:
            dumped = typed
        elif is_decoded and isinstance(typed, bytes):
            dumped = typed.decode(errors="replace")
        if not _is_same(judged, dumped):
            yield path, False


def _is_same(judged: Any, dumped: Any) -> bool:
    """As JSON has it: true is not 1, and 1 is 1.0. A Decimal is dumped as its text."""
    if isinstance(judged, bool) or isinstance(dumped, bool):
        return judged is dumped
    if isinstance(judged, (int, float)) and isinstance(dumped, str):
        try:
            return Decimal(dumped) == Decimal(str(judged))
        except InvalidOperation:
            return False
    return bool(judged == dumped)


def _members(dumped: dict[str, Any], typed: Any) -> Iterator[tuple[str, Any, Any]]:
    """The fields of a dumped object: the name that the schema has for each, its JSON, its value."""
    if not isinstance(typed, BaseModel):
        if dataclasses.is_dataclass(typed) and not isinstance(typed, type):
            typed = {field.name: getattr(typed, field.name) for field in dataclasses.fields(typed)}
        parts = typed.values() if isinstance(typed, dict) and len(typed) == len(dumped) else None
        for (name, inner), part in zip(dumped.items(), parts or [None] * len(dumped), strict=True):
            yield name, inner, part
        return
    left, more = dict(dumped), typed.__pydantic_extra__ or {}
    for name, field in type(typed).model_fields.items():
        key = field.serialization_alias or name
        if key in left:
            yield _shown(name, field), left.pop(key), getattr(typed, name)
    for name, inner in left.items():  # fields that the type does not name
        yield name, inner, more.get(name)


def _shown(name: str, field: FieldInfo) -> str:
    """The name of a field in the schema."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias if isinstance(alias, str) else name
