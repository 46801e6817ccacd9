"""Validates tool options that only providers read, and converts them for the spec."""

import re
from collections.abc import Mapping
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.strict import OPENAI, NotStrict, strict_schema
from toolpool.contract.schema.validator import SchemaValidator

_CALLER = re.compile(r"direct|programmatic|code_execution_\d{8}")
_UNSAID: dict[str, Any] = {
    "title": None,
    "strict": False,
    "defer_loading": False,
    "allowed_callers": (),
    "input_examples": (),
}


def offered_options(
    options: Mapping[str, Any], schema: dict[str, Any] | None, where: str
) -> dict[str, Any]:
    """`options` with the provider options in the spec's form, without defaults.

    `schema` is the tool's input schema. Raises `ToolDeclarationInvalid` with the option's name.
    """
    told = {name: options.get(name, unsaid) for name, unsaid in _UNSAID.items()}
    for name in ("strict", "defer_loading"):
        if not isinstance(told[name], bool):
            raise ToolDeclarationInvalid(f"{where}: {name} is True or False, not {told[name]!r}")
    title = told["title"]
    if title is not None and not (isinstance(title, str) and title.strip()):
        raise ToolDeclarationInvalid(f"{where}: title is a text for people, not {title!r}")
    told["allowed_callers"] = _callers(told["allowed_callers"], where)
    told["input_examples"] = _examples(told["input_examples"], schema, where)
    if told["strict"]:
        _require_strict(schema, where)
    others = {name: value for name, value in options.items() if name not in _UNSAID}
    return others | {name: value for name, value in told.items() if value != _UNSAID[name]}


def _callers(given: Any, where: str) -> tuple[str, ...]:
    callers = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if isinstance(given, str) or not all(
        isinstance(caller, str) and _CALLER.fullmatch(caller) for caller in callers
    ):
        raise ToolDeclarationInvalid(
            f"{where}: allowed_callers is a list of 'direct', 'programmatic' (OpenAI) and "
            f"'code_execution_YYYYMMDD' (Anthropic), not {given!r}"
        )
    return tuple(dict.fromkeys(callers))


def _examples(given: Any, schema: dict[str, Any] | None, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(given, (list, tuple)) or not all(
        isinstance(example, dict) and encoding.is_json(example) for example in given
    ):
        raise ToolDeclarationInvalid(
            f"{where}: input_examples is a list of arguments, each a dict that JSON can hold"
        )
    if given and schema is not None:
        try:
            validator = SchemaValidator(schema)
        except ToolDeclarationInvalid as error:
            raise ToolDeclarationInvalid(f"{where}: {error}") from None
        for number, example in enumerate(given, 1):
            problems = validator.problems(example)
            if problems:
                at = ".".join(map(str, problems[0].path)) or "the example as a whole"
                raise ToolDeclarationInvalid(
                    f"{where}: example {number} of input_examples does not fit the tool's schema, "
                    f"first at {at} ({problems[0].kind})"
                )
    return tuple(given)


def _require_strict(schema: dict[str, Any] | None, where: str) -> None:
    if schema is None:
        raise ToolDeclarationInvalid(f"{where}: strict=True needs a schema, and validate is off")
    try:
        strict_schema(schema, OPENAI)
    except NotStrict as error:
        raise ToolDeclarationInvalid(
            f"{where}: strict=True is not possible: {error}; change it, or leave strict out"
        ) from None
