"""The pool's tools for the agents of other frameworks."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.turn_result import TurnResult
from toolpool.pool import Dispatcher


class Offered(NamedTuple):
    """The tools of a dispatcher that one agent has, and how its calls are dispatched."""

    dispatcher: Dispatcher
    session: str | None = None
    only: Collection[str] | None = None
    context: Mapping[str, Any] | None = None
    timeout: float | None = None
    wait: float | None = None

    def tools(self) -> list[dict[str, Any]]:
        """Name, description and `input_schema` of each tool that is offered now."""
        return self.dispatcher.tools(only=self.only)

    async def dispatch(self, response: Any, format: str, session: str | None = None) -> TurnResult:
        """Dispatch the calls of a response."""
        return await self.dispatcher.dispatch(
            response,
            format=format,
            session=session or self.session,
            only=self.only,
            context=self.context,
            timeout=self.timeout,
            wait=self.wait,
        )

    async def call(
        self, name: str, arguments: Any, id: str | None, *, turn: str | None = None
    ) -> ToolResult:
        """Dispatch one call of a model. `arguments` are an object, or JSON as the model sent it."""
        [result] = await self.dispatch(message(name, arguments, id, turn=turn), "anthropic")
        return result


def message(
    name: str, arguments: Any, id: str | None, *, turn: str | None = None
) -> dict[str, Any]:
    """A model's response with one call. Without an id, the call is a new one.

    `turn` names the response, for a provider whose ids are not unique in a session.
    """
    id = id or f"toolu_{new_nonce()}"
    block = {"type": "tool_use", "id": id, "name": name, "input": arguments}
    return {"type": "message", "id": turn or id, "content": [block]}
