"""Pydantic AI's function tools: https://ai.pydantic.dev/tools."""

import asyncio
from importlib import import_module
from typing import Any

from toolpool.adapters.declaration import declared, refuse, reported
from toolpool.adapters.offered import Offered
from toolpool.dispatcher.formats.result_text import as_text
from toolpool.pool import Dispatcher
from toolpool.workers.tool import Tool


def pydantic_ai_tool(theirs: Any, **options: Any) -> Tool[..., Any]:
    """A Pydantic AI `Tool`, or a function that would be one, as a tool of the pool.

    It runs in a worker: a coroutine on its event loop, any other as a plain function does.
    `ModelRetry` is a failure that the model reads, as `ToolError` is. A tool that requires approval
    requires it here. `options` are those of `@tool`, such as `effects="read"`. Raises
    `ToolDeclarationInvalid` for a tool that takes a `RunContext`, which only an agent run has.
    """
    pydantic_ai: Any = import_module("pydantic_ai")
    if not isinstance(theirs, pydantic_ai.Tool):
        theirs = pydantic_ai.Tool(theirs)
    if theirs.takes_ctx:
        raise refuse(
            theirs.name,
            "takes a RunContext, which only an agent run has: take what it needs from "
            "toolpool's ToolContext in a function of your own",
        )
    if named := [each for each in ("args_validator", "prepare") if getattr(theirs, each, None)]:
        raise refuse(theirs.name, f"has {named[0]}=, which takes a RunContext: use check=")
    if getattr(theirs, "timeout", None) is not None:
        options.setdefault("timeout", theirs.timeout)
    schema = theirs.function_schema

    async def call(arguments: dict[str, Any]) -> Any:
        with reported(pydantic_ai.ModelRetry):
            return await schema.call(schema.validator.validate_python(arguments), None)

    def call_blocking(arguments: dict[str, Any]) -> Any:
        return asyncio.run(call(arguments))

    if theirs.requires_approval:
        options.setdefault("approval", True)
    return declared(
        call if schema.is_async else call_blocking,
        function=theirs.function,
        name=theirs.name,
        description=theirs.description or "",
        schema=dict(schema.json_schema),
        validate=schema.validator.validate_python,
        options=options,
    )


def pydantic_ai_toolset(dispatcher: Dispatcher, **options: Any) -> Any:
    """The pool's tools as a toolset, for `Agent(toolsets=[...])`.

    Every answer, rejections too, is a text that the model reads, and uses up none of the agent's
    retries, except for arguments that are no JSON, which Pydantic AI itself refuses. What is
    offered is read before each step. `options` are `session`, `only`, `context`, `timeout` and
    `wait` of `dispatch`. Raises TypeError for another option.
    """
    core: Any = import_module("pydantic_core")
    tools: Any = import_module("pydantic_ai.tools")
    toolsets: Any = import_module("pydantic_ai.toolsets.abstract")
    offered = Offered(dispatcher, **options)
    any_arguments = core.SchemaValidator(core.core_schema.any_schema())

    class PoolToolset(toolsets.AbstractToolset):  # type: ignore[misc]
        @property
        def id(self) -> str:
            return "toolpool"

        async def get_tools(self, ctx: Any) -> dict[str, Any]:
            return {
                declaration["name"]: toolsets.ToolsetTool(
                    toolset=self,
                    tool_def=tools.ToolDefinition(
                        name=declaration["name"],
                        description=declaration.get("description", ""),
                        parameters_json_schema=declaration["input_schema"],
                    ),
                    max_retries=1,
                    args_validator=any_arguments,
                )
                for declaration in offered.tools()
            }

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            turn = f"{ctx.run_id}.{ctx.run_step}" if ctx.run_id else None
            return as_text(await offered.call(name, tool_args, ctx.tool_call_id, turn=turn))

    return PoolToolset()
