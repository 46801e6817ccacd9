"""Tools with free-text input, which some providers call custom tools."""

from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid

_SYNTAXES = ("lark", "regex")


def text_options(input: Any, grammar: Any, schema: dict[str, Any], where: str) -> dict[str, Any]:
    """The spec's fields for a tool with text input; empty for any other.

    `schema` is the tool's input schema, whose one property takes the text. Raises
    `ToolDeclarationInvalid`.
    """
    if input not in (None, "text"):
        raise ToolDeclarationInvalid(f"{where}: input is 'text' or left out, not {input!r}")
    if input is None:
        if grammar is not None:
            raise ToolDeclarationInvalid(f"{where}: grammar needs input='text'")
        return {}
    options: dict[str, Any] = {"text_parameter": _parameter(schema, where)}
    if grammar is not None:
        options["text_format"] = _format(grammar, where)
    return options


def _parameter(schema: dict[str, Any], where: str) -> str:
    properties = schema.get("properties")
    named = list(properties.items()) if isinstance(properties, dict) else []
    if len(named) == 1:
        name, inner = named[0]
        is_text = isinstance(inner, dict) and inner.get("type") == "string"
        if is_text and schema.get("required") == [name]:
            return str(name)
    raise ToolDeclarationInvalid(
        f"{where}: input='text' needs one parameter of type str without a default, beside a "
        "ToolContext"
    )


def _format(grammar: Any, where: str) -> dict[str, Any]:
    is_pair = isinstance(grammar, (tuple, list)) and len(grammar) == 2
    syntax, definition = grammar if is_pair else (None, None)
    if syntax not in _SYNTAXES or not isinstance(definition, str) or not definition.strip():
        raise ToolDeclarationInvalid(
            f"{where}: grammar is a pair of 'lark' or 'regex' and the definition"
        )
    return {"type": "grammar", "syntax": syntax, "definition": definition}
