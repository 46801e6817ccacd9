"""What a declaration says beside its schema, offered to the providers that take it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp
import mcp_types.methods
import pytest
from mcp.server.lowlevel import Server
from msgspec.structs import replace

from tests.sdk_types import hold
from toolpool import AskApproval, Dispatcher, Hooks, tool
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import FORMATS

SAID = ToolSpec(
    name="find",
    title="Find orders",
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "limit": {"type": ["integer", "null"]},
        },
        "required": ["query"],
    },
    output_schema={"type": "object", "properties": {"total": {"type": "integer"}}},
    strict=True,
    defer_loading=True,
    allowed_callers=("direct", "programmatic", "code_execution_20260120"),
    input_examples=({"query": "shoes"},),
)  # fmt: skip
HANDLE = {
    "type": "object",
    "properties": {"handle": {"type": "string"}, "state": {"type": "string"}},
    "required": ["handle", "state"],
}
UNSAID = ToolSpec(name="plain", input_schema=SAID.input_schema)
OPTIONS = {
    "title", "strict", "defer_loading", "allowed_callers", "input_examples", "output_schema",
    "outputSchema", "annotations",
}  # fmt: skip


def offered(format: str, spec: ToolSpec) -> dict[str, Any]:
    [made] = FORMATS[format].offer([spec])
    held: dict[str, Any] = made.get("functionDeclarations", [made])[0]
    if format not in ("bare", "pydantic_ai"):
        hold(f"{format} tool", held)
    return held.get("function") or held.get("toolSpec") or held


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("anthropic", {
            "strict": True, "defer_loading": True, "input_examples": [{"query": "shoes"}],
            "allowed_callers": ["direct", "code_execution_20260120"],
        }),
        ("openai_chat", {"strict": True}),
        ("openai_responses", {
            "strict": True, "defer_loading": True, "allowed_callers": ["direct", "programmatic"],
            "output_schema": SAID.output_schema,
        }),
        ("bedrock", {"strict": True}),
        ("mcp", {
            "title": "Find orders", "annotations": {"title": "Find orders"},
            "outputSchema": {"type": "object", "anyOf": [SAID.output_schema, HANDLE]},
        }),
        ("gemini", {}),
        ("bare", {}),
    ],
)  # fmt: skip
def test_each_provider_is_told_what_it_takes(format: str, said: dict[str, Any]) -> None:
    """As the SDKs' own types have it."""
    made = offered(format, SAID)
    assert {key: value for key, value in made.items() if key in OPTIONS} == said


@pytest.mark.parametrize("format", FORMATS)
def test_a_tool_that_says_nothing_is_offered_as_ever(format: str) -> None:
    told = {key: value for key, value in offered(format, UNSAID).items() if key in OPTIONS}
    assert told == ({"strict": False} if format == "openai_responses" else {})


@pytest.mark.parametrize(
    ("format", "required"),
    [("openai_chat", ["query", "limit"]), ("openai_responses", ["query", "limit"]),
     ("anthropic", ["query"]), ("bedrock", ["query"])],
)  # fmt: skip
def test_a_strict_tool_is_offered_with_the_schema_that_strict_asks_for(
    format: str, required: list[str]
) -> None:
    made = offered(format, SAID)
    schema = made.get("parameters") or made.get("input_schema") or made["inputSchema"]["json"]
    assert (schema["required"], schema["additionalProperties"]) == (required, False)
    assert schema["properties"]["query"]["description"] == "(minLength: 1)"


@pytest.mark.parametrize("format", ["openai_chat", "openai_responses", "anthropic", "bedrock"])
def test_one_that_cannot_be_strict_is_offered_all_the_same(format: str) -> None:
    """Another version of toolpool may have declared it."""
    made = offered(format, replace(SAID, input_schema={"type": "object", "properties": {"a": {}}}))
    assert not made.get("strict")
    schema = made.get("parameters") or made.get("input_schema") or made["inputSchema"]["json"]
    assert schema["properties"] == {"a": {}}


def test_callers_of_other_providers_are_not_named() -> None:
    spec = replace(SAID, allowed_callers=("code_execution_20260120",))
    made = offered("openai_responses", spec)
    assert not {"allowed_callers", "output_schema"} & set(made)


NODE = {
    "$defs": {
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
    },
    "$ref": "#/$defs/Node",
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "root"),
    [
        ({"type": "object"}, {"type": "object", "anyOf": [{"type": "object"}, HANDLE]}),
        ({"type": "OBJECT"}, {"type": "object", "anyOf": [{"type": "object"}, HANDLE]}),
        (
            NODE,
            {
                "$defs": NODE["$defs"],
                "type": "object",
                "anyOf": [NODE["$defs"]["Node"], HANDLE],  # type: ignore[index]
            },
        ),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, None),
        ({"type": "array"}, None),
        ({"type": ["object", "null"]}, None),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, None),
    ],
    ids=json.dumps,
)
def test_mcp_is_offered_the_output_schemas_of_objects(
    schema: dict[str, Any], root: dict[str, Any] | None
) -> None:
    """One of anything else costs a client of 2025 the whole list. Any call may have a handle."""
    made = offered("mcp", replace(UNSAID, output_schema=schema))
    assert made.get("outputSchema") == root
    in_background = replace(SAID, output_schema=schema, background=True)
    assert "outputSchema" not in offered("mcp", in_background)
    listed = mcp.types.ListToolsResult.model_validate({"tools": [made]})
    plain = listed.model_dump(by_alias=True, mode="json", exclude_none=True)
    for version in ("2025-06-18", "2025-11-25", "2026-07-28"):
        sent: Any = mcp_types.methods.serialize_server_result("tools/list", version, plain)
        [seen] = sent["tools"]
        assert seen.get("outputSchema") == root


@tool(run_in="thread")
def total(of: list[int]) -> Mapping[str, int]:
    """Add them up."""
    return {"total": sum(of)} if of else {"total": "none"}  # type: ignore[dict-item]


@tool(run_in="thread")
def names() -> list[str]:
    """List the names."""
    return ["a"]


@tool(run_in="thread", max_output=1_000)
def counts(many: int) -> dict[str, int]:
    """Count."""
    return {str(number): number for number in range(many)}


@tool
async def waits() -> dict[str, int]:
    """Take longer than anybody waits."""
    await asyncio.sleep(60)
    return {}


@tool(effects="write", approval=True)
async def refund(of: int) -> dict[str, int]:
    """Pay back."""
    return {"total": of}


@asynccontextmanager
async def client_of(dispatcher: Dispatcher, mode: Any, **options: Any) -> AsyncIterator[mcp.Client]:
    """The SDK's own client of a server that a dispatcher answers for."""

    async def on_list_tools(_: Any, params: Any) -> mcp.types.ListToolsResult:
        return mcp.types.ListToolsResult.model_validate({"tools": dispatcher.tools("mcp")})

    async def on_call_tool(_: Any, params: Any) -> mcp.types.CallToolResult:
        plain = params.model_dump(include={"name", "arguments"})
        [answer] = (
            await dispatcher.dispatch({"method": "tools/call", "params": plain}, **options)
        ).messages()
        return mcp.types.CallToolResult.model_validate(answer)

    server = Server("s", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with mcp.Client(server, mode=mode) as client:
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdk_s_own_client_takes_what_is_offered_and_answered(mode: Any) -> None:
    """It holds every success to the schema that it was offered, in the old protocol and the new."""
    async with Dispatcher.in_memory([total, names]) as dispatcher:
        async with client_of(dispatcher, mode) as client:
            offered = {each.name: each for each in (await client.list_tools()).tools}
            assert offered["total"].output_schema is not None
            assert offered["names"].output_schema is None
            added = await client.call_tool("total", {"of": [1, 2]})
            assert (added.is_error, added.structured_content) == (False, {"total": 3})
            broken = await client.call_tool("total", {"of": []})
            assert (broken.is_error, broken.structured_content) == (True, None)
            assert not (await client.call_tool("names", {})).is_error


async def asks_a_person(call: Any) -> Any:
    return AskApproval() if call.tool == "total" else None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("name", "arguments", "hooks"),
    [
        ("waits", {}, None),
        ("total", {"of": [1]}, Hooks(before_call=asks_a_person)),
        ("refund", {"of": 1}, None),
        ("counts", {"many": 1_000}, None),
    ],
    ids=["handed over", "asked about", "to be approved", "cut"],
)
async def test_the_sdk_s_own_client_takes_a_handle(
    name: str, arguments: dict[str, Any], hooks: Any, mode: Any
) -> None:
    """Of a tool with an output schema, which the client holds every success to."""
    wait = {} if name == "counts" else {"wait": 0.0}
    async with Dispatcher.in_memory([total, waits, refund, counts], hooks=hooks) as dispatcher:
        async with client_of(dispatcher, mode, session="s", **wait) as client:
            offered = {each.name: each for each in (await client.list_tools()).tools}
            assert offered[name].output_schema is not None
            answer = await client.call_tool(name, arguments)
            assert not answer.is_error
            assert {"handle", "state"} <= set(answer.structured_content or {})
