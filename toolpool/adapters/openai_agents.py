"""Function tools of the OpenAI Agents SDK: https://openai.github.io/openai-agents-python/tools."""

import copy
import json
from importlib import import_module
from typing import Any

from toolpool.adapters.declaration import declared, refuse
from toolpool.workers.tool import Tool


def openai_agents_tool(theirs: Any, **options: Any) -> Tool[..., Any]:
    """A `FunctionTool` of the OpenAI Agents SDK (`@function_tool`) as a tool of the pool.

    It runs in a worker, on its event loop; the SDK runs a plain function in a thread of its own, so
    declare `run_in="process"` for one that has to end at its timeout. An exception is classified
    as that of any tool: the SDK's `failure_error_function`, which makes a result of it, is not
    used. A tool that needs approval needs it here. `options` are those of `@tool`, such as
    `effects="read"`. Raises `ToolDeclarationInvalid` for another kind of tool.
    """
    agents: Any = import_module("agents")
    contexts: Any = import_module("agents.tool_context")
    if not isinstance(theirs, agents.FunctionTool):
        raise refuse(repr(theirs)[:80], "is no FunctionTool of the OpenAI Agents SDK")
    own = copy.copy(theirs)
    own._failure_error_function, own._use_default_failure_error_function = None, False

    async def call(arguments: dict[str, Any]) -> Any:
        given = json.dumps(arguments)
        context = contexts.ToolContext(
            context=None, tool_name=own.name, tool_call_id="toolpool", tool_arguments=given
        )
        return await own.on_invoke_tool(context, given)

    if own.needs_approval is not False:
        options.setdefault("approval", True)
    return declared(
        call,
        function=call,
        name=own.name,
        description=own.description,
        schema=dict(own.params_json_schema),
        validate=None,
        options=options,
    )
