"""LangChain's tools: https://docs.langchain.com/oss/python/langchain/tools."""

from importlib import import_module
from typing import Any

from toolpool.adapters.declaration import declared, refuse, reported
from toolpool.workers.tool import Tool


def langchain_tool(theirs: Any, **options: Any) -> Tool[..., Any]:
    """A LangChain tool (`BaseTool`, `@langchain_core.tools.tool`) as a tool of the pool.

    It runs in a worker: on its event loop if it has an asynchronous form, else as a plain function
    does. A `ToolException` is a failure that the model reads, as `ToolError` is. `options` are
    those of `@tool`, such as `effects="read"`. Raises `ToolDeclarationInvalid` for a tool with
    injected arguments, which only LangChain's agents provide.
    """
    langchain: Any = import_module("langchain_core.tools")
    if not isinstance(theirs, langchain.BaseTool):
        raise refuse(repr(theirs)[:80], "is no LangChain tool")
    shown, whole = theirs.tool_call_schema, theirs.args_schema
    is_model = isinstance(shown, type)
    schema = shown.model_json_schema() if is_model else dict(shown)
    fields = getattr(whole, "model_fields", {})
    if is_model and (injected := fields.keys() - shown.model_fields.keys()):
        names = ", ".join(sorted(injected))
        raise refuse(theirs.name, f"has arguments that LangChain's agents inject: {names}")

    # It would make a success of a failure.
    theirs = theirs.model_copy(
        update={"handle_tool_error": False, "handle_validation_error": False}
    )

    async def call(arguments: dict[str, Any]) -> Any:
        with reported(langchain.ToolException):
            return await theirs.ainvoke(arguments)

    def call_blocking(arguments: dict[str, Any]) -> Any:
        with reported(langchain.ToolException):
            return theirs.invoke(arguments)

    if hasattr(theirs, "coroutine"):  # made of functions
        is_async, function = theirs.coroutine is not None, theirs.coroutine or theirs.func
    else:
        is_async, function = type(theirs)._arun is not langchain.BaseTool._arun, theirs
    return declared(
        call if is_async else call_blocking,
        function=function,
        name=theirs.name,
        description=theirs.description,
        schema=schema,
        validate=shown.model_validate if is_model else None,
        options=options,
    )
