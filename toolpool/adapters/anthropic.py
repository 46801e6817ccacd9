"""The Anthropic SDK's tool runner: https://github.com/anthropics/anthropic-sdk-python."""

from importlib import import_module
from typing import Any

from toolpool.adapters.offered import Offered, message
from toolpool.pool import Dispatcher


def anthropic_tools(dispatcher: Dispatcher, **options: Any) -> list[Any]:
    """The pool's tools for `client.beta.messages.tool_runner(tools=...)` of an `AsyncAnthropic`.

    Each call of the runner is dispatched; a failure is a result with `is_error`. The runner names
    no ids, so each is a new call. `options` are `session`, `only`, `context`, `timeout` and `wait`
    of `dispatch`. What is offered is read once. Raises TypeError for another option.
    """
    sdk: Any = import_module("anthropic.lib.tools")
    offered = Offered(dispatcher, **options)

    class PoolTool(sdk.BetaAsyncBuiltinFunctionTool):  # type: ignore[misc]
        def __init__(self, declaration: dict[str, Any]) -> None:
            self._declaration = declaration

        def to_dict(self) -> dict[str, Any]:
            return self._declaration

        async def call(self, input: object) -> Any:
            name = self._declaration["name"]
            turn = await offered.dispatch(message(name, input, None), "anthropic")
            block = turn.messages()[0]["content"][0]
            if block.get("is_error"):
                raise sdk.ToolError(block["content"])
            return block["content"]

    return [PoolTool(declaration) for declaration in offered.tools()]
