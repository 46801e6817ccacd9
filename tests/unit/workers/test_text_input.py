"""Tools of free text are tools here: declared, offered and called (R47)."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletionCustomToolParam
from openai.types.responses import CustomToolParam
from pydantic import TypeAdapter

from tests.sdk_types import hold, hold_item, taken_by
from toolpool import Dispatcher, ToolContext, tool
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.outcome import Code

GRAMMAR = ("lark", 'start: "select" WORD')


@tool(input="text", grammar=GRAMMAR)
async def sql(query: str, ctx: ToolContext) -> str:
    """Run a query."""
    return f"{ctx.call_id}: {query}"


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def custom_item(text: Any, name: str = "sql") -> dict[str, Any]:
    item = {"type": "custom_tool_call", "call_id": "c", "name": name, "input": text}
    return {"object": "response", "id": "r", "status": "completed", "output": [item]}


def custom_call(text: Any, name: str = "sql") -> dict[str, Any]:
    call = {"id": "c", "type": "custom", "custom": {"name": name, "input": text}}
    return {"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": [call]}}]}


async def test_free_text_reaches_the_one_parameter_as_it_is() -> None:
    text = 'select "a"\n -- {not json}'
    async with Dispatcher.in_memory([sql]) as dispatcher:
        for response in (custom_item(text), custom_call(text)):
            turn = await dispatcher.dispatch(response)
            assert turn[0].data == f"c: {text}"
            [message] = turn.messages()
            if turn.format == "openai_responses":
                assert message["type"] == "custom_tool_call_output"
                hold_item(message)
            else:
                assert message["role"] == "tool"
                hold("openai_chat", message)


async def test_a_model_may_call_it_with_json_arguments_as_well() -> None:
    async with Dispatcher.in_memory([sql]) as dispatcher:
        turn = await dispatcher.dispatch([{"id": "c", "name": "sql", "input": {"query": "x"}}])
    assert turn[0].data == "c: x"


async def test_text_for_a_tool_of_json_arguments_is_refused() -> None:
    async with Dispatcher.in_memory([add]) as dispatcher:
        turn = await dispatcher.dispatch(custom_item("1 + 1", "add"))
    assert turn[0].code is Code.UNPARSEABLE
    assert "takes JSON arguments, not free text" in (turn[0].error or "")


@pytest.mark.parametrize("text", [None, 3, {"query": "x"}, "half \ud800", "x" * 2**21])
async def test_what_is_no_text_is_refused(text: Any) -> None:
    async with Dispatcher.in_memory([sql]) as dispatcher:
        turn = await dispatcher.dispatch(custom_item(text))
    assert turn[0].code in (Code.UNPARSEABLE, Code.TOO_LARGE)


async def test_text_at_the_token_limit_is_cut_off() -> None:
    """R17: free text cannot show that it is whole."""
    response = custom_item("select")
    response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    async with Dispatcher.in_memory([sql]) as dispatcher:
        turn = await dispatcher.dispatch(response)
    assert turn[0].code is Code.TRUNCATED


async def test_it_is_offered_as_a_custom_tool_where_there_are_such() -> None:
    async with Dispatcher.in_memory([sql]) as dispatcher:
        [chat] = dispatcher.tools("openai_chat", only=["sql"])
        taken_by(TypeAdapter(ChatCompletionCustomToolParam), chat)
        assert chat["custom"]["format"]["grammar"]["definition"] == GRAMMAR[1]
        [responses] = dispatcher.tools("openai_responses", only=["sql"])
        taken_by(TypeAdapter(CustomToolParam), responses)
        assert responses["format"]["syntax"] == "lark"
        for format in ("anthropic", "ollama", "cohere", "langchain"):
            [other] = dispatcher.tools(format, only=["sql"])
            schema = other.get("input_schema") or other["function"]["parameters"]
            assert list(schema["properties"]) == ["query"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"input": "json"}, "input is 'text' or left out"),
        ({"grammar": GRAMMAR}, "grammar needs input='text'"),
        ({"input": "text", "grammar": "lark"}, "grammar is a pair"),
        ({"input": "text", "grammar": ("bnf", "x")}, "grammar is a pair"),
        ({"input": "text", "grammar": ("lark", " ")}, "grammar is a pair"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    async def one(text: str) -> str:
        return text

    with pytest.raises(ToolDeclarationInvalid, match=reason):
        tool(**options)(one)


def test_it_needs_one_text() -> None:
    async def none() -> str:
        return ""

    async def two(a: str, b: str) -> str:
        return a + b

    async def number(a: int) -> int:
        return a

    async def optional(a: str = "") -> str:
        return a

    for function in (none, two, number, optional):
        with pytest.raises(ToolDeclarationInvalid, match="one parameter of type str"):
            tool(input="text")(function)


async def test_different_texts_are_different_calls_to_the_loop_guard() -> None:
    @tool(input="text")
    async def fails(query: str) -> str:
        """Fail."""
        raise ValueError(query)

    async with Dispatcher.in_memory([fails]) as dispatcher:
        for n in range(6):
            response = {**custom_item(f"select {n}", "fails"), "id": f"r{n}"}
            turn = await dispatcher.dispatch(response, session="s")
            assert turn[0].code is Code.RAISED
