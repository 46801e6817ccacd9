"""Declares a function around another framework's tool."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pydantic

from toolpool.contract.errors import ToolDeclarationInvalid, ToolError
from toolpool.workers.tool import Tool, tool

Validate = Callable[[dict[str, Any]], object]


def declared(
    run: Callable[..., Any],
    *,
    function: object,
    name: str,
    description: str,
    schema: dict[str, Any],
    validate: Validate | None,
    options: dict[str, Any],
) -> Tool[..., Any]:
    """A tool that `run` executes with a dict of arguments. `options` are those of `@tool`.

    `function` is the framework's function, for its module. `validate` raises
    pydantic.ValidationError for arguments that the framework's types do not take; such a call is
    rejected before it runs. Raises `ToolDeclarationInvalid`.
    """
    run.__module__ = str(getattr(function, "__module__", run.__module__))
    own: dict[str, Any] = {"name": name, "description": description, "input_schema": schema}
    if validate is not None:
        added = options.pop("check", ())
        own["check"] = [_check(validate), *((added,) if callable(added) else added)]
    return tool(**(own | options))(run)


@contextmanager
def reported(*errors: type[Exception]) -> Iterator[None]:
    """Make `ToolError`s of a framework's exceptions whose text is meant for the model."""
    try:
        yield
    except errors as error:
        raise ToolError(str(error)) from error


def refuse(name: str, why: str) -> ToolDeclarationInvalid:
    """The error for a tool that only its own framework can run."""
    return ToolDeclarationInvalid(f"tool {name!r} {why}")


def _check(validate: Validate) -> Callable[..., str | None]:
    def check(arguments: dict[str, Any]) -> str | None:
        try:
            validate(arguments)
        except pydantic.ValidationError as error:
            return "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}"
                for each in error.errors(include_url=False, include_input=False)
            )
        return None

    return check
