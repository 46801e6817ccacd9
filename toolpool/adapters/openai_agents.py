"""Function tools of the OpenAI Agents SDK: https://openai.github.io/openai-agents-python/tools."""

import copy
import inspect
import json
from importlib import import_module
from typing import Any

from toolpool.adapters.declaration import declared, refuse, reported
from toolpool.adapters.offered import Offered
from toolpool.dispatcher.formats.result_text import as_text
from toolpool.pool import Dispatcher
from toolpool.workers.tool import Tool


def openai_agents_tool(theirs: Any, **options: Any) -> Tool[..., Any]:
    """A `FunctionTool` of the OpenAI Agents SDK (`@function_tool`) as a tool of the pool.

    It runs in a worker, on its event loop; the SDK runs a plain function in a thread of its own, so
    declare `run_in="process"` for one that has to end at its timeout. An exception is classified
    as that of any tool: the SDK's `failure_error_function`, which makes a result of it, is not
    used. A tool that needs approval needs it here. `options` are those of `@tool`, such as
    `effects="read"`. Raises `ToolDeclarationInvalid` for another kind of tool, and for one with
    guardrails, with a condition (`is_enabled`), or with the context of a run.
    """
    agents: Any = import_module("agents")
    contexts: Any = import_module("agents.tool_context")
    if not isinstance(theirs, agents.FunctionTool):
        raise refuse(repr(theirs)[:80], "is no FunctionTool of the OpenAI Agents SDK")
    guards = ("tool_input_guardrails", "tool_output_guardrails")
    if named := [each for each in guards if getattr(theirs, each, None)]:
        raise refuse(theirs.name, f"has {named[0]}, which only the SDK applies: use a policy")
    if theirs.is_enabled is not True:
        raise refuse(theirs.name, "is enabled by the SDK: offer it with `only=`")
    if _takes_context(theirs):
        raise refuse(
            theirs.name, "takes the context of a run: take what it needs from a ToolContext"
        )
    if getattr(theirs, "timeout_seconds", None) is not None:
        options.setdefault("timeout", theirs.timeout_seconds)
    own = copy.copy(theirs)
    own._failure_error_function, own._use_default_failure_error_function = None, False

    async def call(arguments: dict[str, Any]) -> Any:
        given = json.dumps(arguments)
        context = contexts.ToolContext(
            context=None, tool_name=own.name, tool_call_id="toolpool", tool_arguments=given
        )
        with reported(agents.ModelBehaviorError):  # its types refuse the arguments
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


def _takes_context(theirs: Any) -> bool:
    """Whether the function behind a tool takes the context of a run, as far as the SDK shows it."""
    get = getattr(theirs.on_invoke_tool, "_get_wrapped_callable", None)
    function = get() if get is not None else None
    if not inspect.isroutine(function):
        return False
    schemas: Any = import_module("agents.function_schema")
    return bool(schemas.function_schema(function).takes_context)


def openai_agents_tools(dispatcher: Dispatcher, **options: Any) -> list[Any]:
    """The pool's tools as `FunctionTool`s, for `Agent(tools=...)`.

    The arguments are passed on as the model wrote them, and every answer, rejections too, is the
    text of its payload. `options` are `session`, `only`, `context`, `timeout` and `wait` of
    `dispatch`. What is offered is read once. Raises TypeError for another option.
    """
    agents: Any = import_module("agents")
    offered = Offered(dispatcher, **options)

    def tool_of(declaration: dict[str, Any]) -> Any:
        name = declaration["name"]

        async def invoke(context: Any, arguments: str) -> str:
            return as_text(await offered.call(name, arguments or "{}", context.tool_call_id))

        return agents.FunctionTool(
            name=name,
            description=declaration.get("description", ""),
            params_json_schema=declaration["input_schema"],
            on_invoke_tool=invoke,
            strict_json_schema=False,
        )

    return [tool_of(declaration) for declaration in offered.tools()]
