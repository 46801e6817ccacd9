"""Messages held to the official SDKs' own types, strictly: every level, no unknown key."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam
from anthropic.types.beta import BetaManagedAgentsCustomToolParams
from botocore.validate import ParamValidator
from google.genai._gaos.types.interactions.function import Function
from google.genai._gaos.types.interactions.functionresultstep import FunctionResultStep
from google.genai.types import Content, FunctionDeclaration
from mcp.types import CallToolResult, Tool as McpTool
from openai.types.beta.agent_tool_param import AgentToolConfigParamFunction
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionFunctionMessageParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionToolMessageParam,
)
from openai.types.realtime import RealtimeFunctionToolParam
from openai.types.responses import (
    EasyInputMessageParam,
    FunctionToolParam,
    ResponseCustomToolCallOutputParam,
    ResponseToolSearchOutputItemParamParam,
)
from openai.types.responses.response_input_item_param import (
    ApplyPatchCallOutput,
    ComputerCallOutput,
    FunctionCallOutput,
    LocalShellCallOutput,
    McpApprovalResponse,
    ShellCallOutput,
)
from pydantic import BaseModel, TypeAdapter

_TYPED_DICTS: dict[str, TypeAdapter[Any]] = {
    "anthropic": TypeAdapter(MessageParam),
    "anthropic assistant": TypeAdapter(MessageParam),
    "anthropic block": TypeAdapter(ToolResultBlockParam),
    "anthropic tool": TypeAdapter(ToolParam),
    "openai_chat": TypeAdapter(ChatCompletionToolMessageParam),
    "openai_chat tool": TypeAdapter(ChatCompletionFunctionToolParam),
    "openai_responses": TypeAdapter(FunctionCallOutput),
    "openai_responses tool": TypeAdapter(FunctionToolParam),
    "openai_realtime tool": TypeAdapter(RealtimeFunctionToolParam),
    "openai_agents tool": TypeAdapter(AgentToolConfigParamFunction),
    "anthropic_agents tool": TypeAdapter(BetaManagedAgentsCustomToolParams),
    "openai_chat assistant": TypeAdapter(ChatCompletionAssistantMessageParam),
    "openai_chat function": TypeAdapter(ChatCompletionFunctionMessageParam),
}
_ITEMS: dict[str | None, TypeAdapter[Any]] = {
    "function_call_output": TypeAdapter(FunctionCallOutput),
    "custom_tool_call_output": TypeAdapter(ResponseCustomToolCallOutputParam),
    "shell_call_output": TypeAdapter(ShellCallOutput),
    "local_shell_call_output": TypeAdapter(LocalShellCallOutput),
    "apply_patch_call_output": TypeAdapter(ApplyPatchCallOutput),
    "computer_call_output": TypeAdapter(ComputerCallOutput),
    "tool_search_output": TypeAdapter(ResponseToolSearchOutputItemParamParam),
    "mcp_approval_response": TypeAdapter(McpApprovalResponse),
    None: TypeAdapter(EasyInputMessageParam),
}
"""Of OpenAI's Responses, by type; a message has none."""
_MODELS: dict[str, TypeAdapter[Any]] = {
    "gemini": TypeAdapter(Content),
    "gemini tool": TypeAdapter(FunctionDeclaration),
    "gemini_live tool": TypeAdapter(FunctionDeclaration),
    "gemini_interactions tool": TypeAdapter(Function),
    "mcp": TypeAdapter(CallToolResult),
    "mcp tool": TypeAdapter(McpTool),
}


def hold(kind: str, message: dict[str, Any]) -> None:
    """Raises where the SDK's type does not take `message`, or would drop a part of it."""
    if kind in ("langchain tool", "ollama tool", "cohere tool"):
        kind = "openai_chat tool"  # the form of all three
    if kind.startswith("bedrock"):
        _hold_bedrock(kind, message)
    elif kind in _TYPED_DICTS:
        taken = _forced(_TYPED_DICTS[kind].validate_python(message, strict=True))
        assert taken == message, f"the SDK's type drops a part: {taken} of {message}"
        if kind == "anthropic":  # its content is a union: hold each block to the one type it has
            for block in message["content"]:
                hold("anthropic block", block)
    else:
        model = _MODELS[kind].validate_python(message)
        taken = model.model_dump(by_alias=True, exclude_unset=True, mode="json")
        assert taken == message, f"the SDK's type drops a part: {taken} of {message}"


def hold_item(item: dict[str, Any]) -> None:
    """Raises where no input item of OpenAI's Responses takes `item`, or would drop a part of it."""
    taken = _forced(_ITEMS[item.get("type")].validate_python(item, strict=True))
    assert taken == item, f"the SDK's type drops a part: {taken} of {item}"


def taken_by(kind: str | TypeAdapter[Any], message: dict[str, Any]) -> None:
    """Raises where a type does not take `message`, or would drop a part of it."""
    adapter = _INTERACTION if isinstance(kind, str) else kind
    taken = adapter.validate_python(message)
    if isinstance(taken, BaseModel):
        taken = taken.model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert _forced(taken) == message, f"the SDK's type drops a part: {taken} of {message}"


_INTERACTION: TypeAdapter[Any] = TypeAdapter(FunctionResultStep)


def _forced(value: Any) -> Any:
    """TypedDicts say `Iterable[...]`, which pydantic checks only when it is read."""
    if isinstance(value, dict):
        return {key: _forced(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, Iterator)) or type(value).__name__ == "ValidatorIterator":
        return [_forced(inner) for inner in value]
    return value


@cache
def _converse() -> Any:
    session = botocore.session.Session()
    model = session.get_service_model("bedrock-runtime")
    return model.operation_model("Converse").input_shape


def _hold_bedrock(kind: str, message: dict[str, Any]) -> None:
    request: dict[str, Any] = {"modelId": "m"}
    if kind == "bedrock tool":
        request["toolConfig"] = {"tools": [message]}
    else:
        request["messages"] = [message]
    report = ParamValidator().validate(request, _converse())
    assert not report.has_errors(), report.generate_report()
