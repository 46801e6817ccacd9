"""Every provider: its responses are read whole, its answers satisfy its own SDK (R3, R4, R40)."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sdk_types import hold
from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.formats import FORMATS, Response, response_reader
from toolpool.dispatcher.turn_result import TurnResult

PNG = base64.b64encode(b"\x89PNG not really").decode()
PROVIDERS = ["anthropic", "openai_chat", "openai_responses", "gemini", "bedrock", "mcp"]


def read(response: Any, **options: Any) -> Response:
    return response_reader.read(response, max_bytes=2**20, **options)


def functions_in(format: str, response: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the recording says, read independently of the code under test: name and arguments."""
    if format == "anthropic":
        blocks = [b for b in response["content"] if b["type"] == "tool_use"]
        yield from ((b["name"], b["input"]) for b in blocks)
    elif format == "openai_chat":
        for block in response["choices"][0]["message"].get("tool_calls") or []:
            arguments = block["function"]["arguments"]
            yield block["function"]["name"], json.loads(arguments) if arguments else {}
    elif format == "openai_responses":
        for item in response["output"]:
            if item["type"] == "function_call":
                named = item.get("namespace") in (None, item["name"])
                name = item["name"] if named else f"{item['namespace']}.{item['name']}"
                yield name, json.loads(item["arguments"])
    elif format == "gemini":
        for part in response["candidates"][0]["content"]["parts"]:
            if "functionCall" in part:
                yield part["functionCall"]["name"], part["functionCall"]["args"]
    else:
        for block in response["output"]["message"]["content"]:
            use = block.get("toolUse")
            if use is not None and use.get("type") != "server_tool_use":
                yield use["name"], use["input"]


def test_every_recorded_response_is_read_and_answered(shared_data: Path) -> None:
    """R13, R40: every function call with its arguments, nothing else taken for one."""
    lines = (shared_data / "provider_responses.jsonl").read_text().splitlines()
    count = 0
    for line in lines:
        row = json.loads(line)
        found = read(row["response"])
        assert found.format == row["format"]
        expected = list(functions_in(row["format"], row["response"]))
        if found.stop is not None:  # its calls are not run, and not read either
            expected = [(name, None) for name, _ in expected]
        assert [(call.name, call.arguments) for call in found.calls] == expected
        assert len({call.id for call in found.calls}) == len(found.calls)
        results = [success(call, {"done": call.index}) for call in found.calls]
        messages = TurnResult(results, format=found.format).messages()
        for message in messages:
            hold(found.format, message)
        assert sum(len(answers(found.format, message)) for message in messages) == len(expected)
        count += 1
    assert count == 294


def answers(format: str, message: dict[str, Any]) -> list[Any]:
    """The single answers in one message."""
    if format in ("anthropic", "bedrock"):
        return list(message["content"])
    return list(message["parts"]) if format == "gemini" else [message]


def success(call: ToolCall, data: Any, note: str | None = None) -> ToolResult:
    return ToolResult(
        call_id=call.id, name=call.name, ok=True, data=data, note=note, id_given=call.id_given
    )


def a_result(data: Any = None, **fields: Any) -> ToolResult:
    return ToolResult(call_id="call_1", name="look", ok=True, data=data, **fields)


FAILED = ToolResult(
    call_id="call_1",
    name="look",
    ok=False,
    error="Tool 'look' not found.",
    code=Code.UNKNOWN_TOOL,
    retryable=False,
    executed=Executed.NO,
    recommendations=("Look closer.",),
    note="An id was made up.",
)
PAYLOAD = {
    "ok": False,
    "error": "Tool 'look' not found.",
    "errorType": "validation",
    "code": "validation.unknown_tool",
    "retryable": False,
    "executed": "no",
    "note": "An id was made up.",
    "recommendations": ["Look closer."],
}
PAYLOAD_TEXT = encoding.encode(PAYLOAD).decode()


def one(format: str, result: ToolResult) -> Any:
    """The one answer that `result` is rendered to, held to the SDK's type."""
    [message] = FORMATS[format].render([result])
    hold(format, message)
    [answer] = answers(format, message)
    return answer


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (
            "anthropic",
            {
                "type": "tool_result",
                "tool_use_id": "call_1",
                "content": '{"a":1}\n\n[note] n',
                "is_error": False,
            },
        ),
        (
            "openai_chat",
            {"role": "tool", "tool_call_id": "call_1", "content": '{"a":1}\n\n[note] n'},
        ),
        (
            "openai_responses",
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": '{"a":1}\n\n[note] n',
            },
        ),
        (
            "gemini",
            {
                "functionResponse": {
                    "id": "call_1",
                    "name": "look",
                    "response": {"output": {"a": 1}, "note": "n"},
                }
            },
        ),
        (
            "bedrock",
            {
                "toolResult": {
                    "toolUseId": "call_1",
                    "content": [{"json": {"a": 1}}, {"text": "[note] n"}],
                    "status": "success",
                }
            },
        ),
        (
            "mcp",
            {
                "content": [
                    {"type": "text", "text": '{"a":1}'},
                    {"type": "text", "text": "[note] n"},
                ],
                "isError": False,
                "structuredContent": {"a": 1},
            },
        ),
    ],
)
def test_success_in_every_form(format: str, expected: Any) -> None:
    """R3, R4: exact, with a note."""
    assert one(format, a_result({"a": 1}, note="n")) == expected


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (
            "anthropic",
            {
                "type": "tool_result",
                "tool_use_id": "call_1",
                "content": PAYLOAD_TEXT,
                "is_error": True,
            },
        ),
        ("openai_chat", {"role": "tool", "tool_call_id": "call_1", "content": PAYLOAD_TEXT}),
        (
            "openai_responses",
            {"type": "function_call_output", "call_id": "call_1", "output": PAYLOAD_TEXT},
        ),
        (
            "gemini",
            {
                "functionResponse": {
                    "id": "call_1",
                    "name": "look",
                    "response": {"error": PAYLOAD, "note": "An id was made up."},
                }
            },
        ),
        (
            "bedrock",
            {
                "toolResult": {
                    "toolUseId": "call_1",
                    "content": [{"json": PAYLOAD}],
                    "status": "error",
                }
            },
        ),
        ("mcp", {"content": [{"type": "text", "text": PAYLOAD_TEXT}], "isError": True}),
    ],
)
def test_failure_in_every_form(format: str, expected: Any) -> None:
    assert one(format, FAILED) == expected


@pytest.mark.parametrize("format", PROVIDERS)
@pytest.mark.parametrize("data", [None, "text", "", 3, 1.5, True, [1, "a"], [], {}, {"a": None}])
def test_whatever_a_tool_returns_is_taken_by_the_sdk(format: str, data: Any) -> None:
    one(format, a_result(data))


@pytest.mark.parametrize("format", PROVIDERS)
def test_the_refusal_of_a_response_has_its_provider_s_form(format: str) -> None:
    """R14."""
    [message] = FORMATS[format].render_refusal("Please try again with valid format.")
    if format in ("anthropic", "gemini", "bedrock", "mcp"):
        if format == "anthropic":
            assert message["content"][0]["text"].startswith("Please")
        else:
            hold(format, message)
    else:
        assert message == {"role": "user", "content": "Please try again with valid format."}


BLOCKS = [
    {"type": "text", "text": "Two pictures."},
    {"type": "image", "data": PNG, "mimeType": "image/png"},
    {"type": "audio", "data": PNG, "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "the text of a"}},
    {
        "type": "resource",
        "resource": {"uri": "file:///b.pdf", "mimeType": "application/pdf", "blob": PNG},
    },
    {"type": "resource_link", "uri": "file:///c", "name": "c", "description": "the third"},
]
SOUND = "[audio, audio/wav, 15 bytes: not shown here]"


@pytest.mark.parametrize("data", [BLOCKS, {"content": BLOCKS, "structuredContent": {"n": 2}}])
@pytest.mark.parametrize("format", PROVIDERS)
def test_content_blocks_are_carried_where_the_provider_takes_them(format: str, data: Any) -> None:
    """R3: what cannot be shown is named, with its type and size."""
    answer = one(format, a_result(data, note="n"))
    text = json.dumps(answer, default=lambda raw: base64.b64encode(raw).decode())
    for said in ("Two pictures.", "the text of a", "file:///c: the third"):
        assert said in text or format == "mcp"
    assert (PNG in text) is (format != "openai_chat")
    assert "] n" in text or format == "gemini"
    if format != "mcp" and format != "gemini":
        assert SOUND in text
    if format == "mcp":
        assert answer["content"][: len(BLOCKS)] == BLOCKS
        assert answer.get("structuredContent") == (None if data is BLOCKS else {"n": 2})


def test_a_picture_in_each_provider_s_own_form() -> None:
    picture = a_result([BLOCKS[1]])
    assert one("anthropic", picture)["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    ]
    assert one("openai_responses", picture)["output"] == [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    ]
    assert one("gemini", picture)["functionResponse"]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG}}
    ]
    assert one("bedrock", picture)["toolResult"]["content"] == [
        {"image": {"format": "png", "source": {"bytes": b"\x89PNG not really"}}}
    ]
    assert one("openai_chat", picture)["content"] == "[image, image/png, 15 bytes: not shown here]"


NATIVE: list[dict[str, Any]] = [
    {"type": "tool_reference", "tool_name": "look"},
    {"type": "search_result", "source": "https://a.b/c", "title": "C",
     "content": [{"type": "text", "text": "found"}]},
    {"type": "document", "title": "D", "source": {
        "type": "text", "media_type": "text/plain", "data": "words"}},
    {"type": "document", "source": {
        "type": "base64", "media_type": "application/pdf", "data": PNG}},
    {"type": "document", "source": {"type": "url", "url": "https://a.b/d.pdf"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    {"type": "image", "source": {"type": "url", "url": "https://a.b/i.png"}},
    {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
]  # fmt: skip


@pytest.mark.parametrize("block", NATIVE)
@pytest.mark.parametrize("format", PROVIDERS)
def test_anthropic_s_own_blocks_are_blocks_there_and_words_or_pictures_elsewhere(
    format: str, block: dict[str, Any]
) -> None:
    """Never base64 as text."""
    [message] = TurnResult([a_result([block])], format=format).messages()
    hold(format, message)
    if format == "anthropic":
        assert message["content"][0]["content"] == [block]
    shown = json.dumps(message, default=str)
    is_shown_as_data = any(key in shown for key in ('"data"', "data:", "bytes"))
    assert PNG not in shown or is_shown_as_data
    if format == "openai_chat":
        assert PNG not in shown
        assert message["content"].startswith("[")


def test_mcp_s_results_fit_the_version_that_the_request_says() -> None:
    """Before 2026-07-28 only an object is structured content."""
    request = {"method": "tools/call", "id": 1, "params": {"name": "a"}}
    told = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    newer = {**request, "params": {**request["params"], "_meta": told}}  # type: ignore[dict-item]
    blocks = {"content": BLOCKS[:1], "structuredContent": 3, "_meta": {"trace": "t"}}
    for data in ({"a": 1}, [1, 2], 3, "text", None, blocks):
        for given, is_newer in ((request, False), (newer, True)):
            [call] = read(given).calls
            result = msgspec.structs.replace(success(call, data), origin=call.origin)
            [message] = TurnResult([result], format="mcp").messages()
            hold("mcp", message)
            assert message.get("resultType") == ("complete" if is_newer else None)
            structured = 3 if data is blocks else data
            expected = structured if is_newer or isinstance(structured, dict) else "absent"
            assert message.get("structuredContent", "absent") == expected
            assert message.get("_meta") == ({"trace": "t"} if data is blocks else None)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"content": "text"},
        {"content": [], "more": 1},
        {"content": [{"type": "text"}]},
        [{"type": "text", "text": 1}],
        [{"type": "image", "data": PNG}],
        [{"type": "order", "text": "x"}],
        [{"type": ["text"], "text": "x"}],
        [{"type": "resource", "resource": {"uri": "u"}}],
        [{"type": "text", "text": "x"}, 1],
    ],
)
def test_ordinary_data_is_not_taken_for_content_blocks(data: Any) -> None:
    answer = one("anthropic", a_result(data))
    assert json.loads(answer["content"]) == data


def test_base64_that_is_broken_is_told_in_words() -> None:
    broken = {"type": "image", "data": "***", "mimeType": "image/png"}
    [block] = one("bedrock", a_result([broken]))["toolResult"]["content"]
    assert block == {"text": "[image, image/png, 2 bytes: not shown here]"}


# What a provider's response may look like beside the recordings.


def names(response: Any, **options: Any) -> list[str]:
    return [call.name for call in read(response, **options).calls]


def test_ids_that_gemini_leaves_out_are_left_out_of_the_answer() -> None:
    """R15: the call still has a stable id of its own; the model is not told of a matter of form."""
    parts = [
        {"functionCall": {"name": "a", "args": {}}},
        {"functionCall": {"name": "a", "args": {"x": 1}, "id": "f-1"}},
    ]
    found = read({"candidates": [{"content": {"parts": parts}}], "responseId": "r1"})
    assert [(call.id, call.note) for call in found.calls] == [("r1-0", None), ("f-1", None)]
    results = [success(call, {"n": call.index}) for call in found.calls]
    [message] = FORMATS["gemini"].render(results)
    hold("gemini", message)
    assert message["parts"] == [
        {"functionResponse": {"name": "a", "response": {"output": {"n": 0}}}},
        {"functionResponse": {"id": "f-1", "name": "a", "response": {"output": {"n": 1}}}},
    ]


def test_the_sdk_s_own_objects_are_read() -> None:
    from anthropic.types import Message
    from google.genai.types import GenerateContentResponse
    from mcp.types import CallToolRequest
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response as OpenAIResponse

    call = {"name": "look", "args": {"a": 1}}
    gemini = GenerateContentResponse.model_validate(
        {"candidates": [{"content": {"parts": [{"functionCall": call}]}}], "responseId": "r"}
    )
    anthropic = Message.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )
    function = {"name": "look", "arguments": '{"a": 1}'}
    chat = ChatCompletion.model_validate(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "t", "type": "function", "function": function}],
                    },
                }
            ],
        }
    )
    responses = OpenAIResponse.model_construct(
        id="r",
        object="response",
        output=[{"type": "function_call", "call_id": "t", **function}],
    )
    mcp = CallToolRequest.model_validate(
        {"method": "tools/call", "params": {"name": "look", "arguments": {"a": 1}}}
    )
    for response, format in (
        (gemini, "gemini"),
        (anthropic, "anthropic"),
        (chat, "openai_chat"),
        (responses, "openai_responses"),
        (mcp, "mcp"),
    ):
        found = read(response)
        assert found.format == format
        assert [(call.name, call.arguments) for call in found.calls] == [("look", {"a": 1})]


@pytest.mark.parametrize(
    ("format", "cut"),
    [
        (
            "anthropic",
            {
                "type": "message",
                "stop_reason": "max_tokens",
                "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}],
            },
        ),
        (
            "openai_chat",
            {
                "choices": [
                    {
                        "finish_reason": "length",
                        "message": {
                            "tool_calls": [
                                {"id": "t", "function": {"name": "a", "arguments": '{"x": "```'}}
                            ]
                        },
                    }
                ]
            },
        ),
        (
            "openai_responses",
            {
                "object": "response",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [
                    {"type": "function_call", "call_id": "t", "name": "a", "arguments": '{"x":'}
                ],
            },
        ),
        (
            "openai_responses",
            {
                "object": "response",
                "output": [
                    {
                        "type": "function_call",
                        "call_id": "t",
                        "name": "a",
                        "arguments": '{"x":',
                        "status": "incomplete",
                    },
                    {"type": "message", "content": []},
                ],
            },
        ),
        (
            "gemini",
            {
                "candidates": [
                    {
                        "finishReason": "MAX_TOKENS",
                        "content": {"parts": [{"functionCall": {"name": "a", "args": {}}}]},
                    }
                ]
            },
        ),
        (
            "bedrock",
            {
                "stopReason": "max_tokens",
                "output": {
                    "message": {
                        "content": [{"toolUse": {"toolUseId": "t", "name": "a", "input": {}}}]
                    }
                },
            },
        ),
    ],
)
def test_a_call_cut_off_by_the_token_limit_is_truncated(format: str, cut: Any) -> None:
    """R17."""
    found = read(cut)
    assert found.format == format
    [call] = found.calls
    assert call.flaw is not None
    assert call.flaw.code is Code.TRUNCATED
    assert call.arguments is None


@pytest.mark.parametrize(
    ("response", "format"),
    [
        ({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}, "gemini"),
        ({"candidates": []}, "gemini"),
        ({"candidates": [{"content": {"parts": 3}}]}, "gemini"),
        ({"object": "response"}, "openai_responses"),
        ({"object": "response", "output": {}}, "bedrock"),
        ({"output": {"message": {}}}, "bedrock"),
        ({"type": "message"}, "anthropic"),
        ({"choices": []}, "openai_chat"),
        ({"choices": [{"message": None}]}, "openai_chat"),
        ({"choices": [{"message": {"tool_calls": {"a": 1}}}]}, "openai_chat"),
    ],
)
def test_a_response_without_a_content_list_is_one_error(response: Any, format: str) -> None:
    """R14: answered in its provider's form."""
    with pytest.raises(response_reader.UnreadableResponse) as caught:
        read(response)
    assert caught.value.format == format


def test_an_empty_gemini_answer_has_no_calls() -> None:
    assert names({"candidates": [{"finishReason": "STOP", "content": {"role": "model"}}]}) == []


@pytest.mark.parametrize(
    ("format", "response"),
    [
        ("gemini", {"candidates": [{"content": {"parts": [{"functionCall": 1}, 2, {"text": "t"},
         {"functionCall": {"name": "b", "args": {}}}]}}]}),
        ("bedrock", {"output": {"message": {"content": [{"toolUse": 1}, 2, {"text": "t"},
         {"toolUse": {"toolUseId": "t", "name": "b", "input": {}}}]}}}),
        ("openai_responses", {"output": [{"type": "function_call", "arguments": 1}, 2,
         {"type": "function_call", "call_id": "t", "name": "b", "arguments": "{}"}]}),
        ("openai_chat", {"choices": [{"message": {"tool_calls": [1,
         {"id": "t", "function": {"name": "b", "arguments": "{}"}}]}}]}),
        ("anthropic", {"type": "message", "content": [{"type": "tool_use"}, 2,
         {"type": "tool_use", "id": "t", "name": "b", "input": {}}]}),
        ("mcp", [{"method": "tools/call", "params": 3},
         {"method": "tools/call", "id": 2, "params": {"name": "b"}}]),
    ],
)  # fmt: skip
def test_one_bad_block_never_costs_its_siblings(format: str, response: Any) -> None:
    """R14."""
    found = read(response)
    assert found.format == format
    bad, good = found.calls
    assert bad.flaw is not None
    assert bad.flaw.code is Code.UNPARSEABLE
    assert (good.name, good.flaw) == ("b", None)


def test_a_format_can_be_named_where_the_shape_says_nothing() -> None:
    message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "a"}}]}
    assert response_reader.detect(message) == "bedrock"
    assert response_reader.detect({"role": "assistant", "content": []}) == "anthropic"
    assert names({"content": []}, format="bedrock") == []
    assert response_reader.detect({"method": "tools/list"}) is None


def test_a_format_has_one_name_and_its_alias_everywhere() -> None:
    turn = TurnResult([a_result("x")], format="bare")
    assert turn.messages("openai") == turn.messages("openai_chat")
    response = {"choices": [{"message": {"role": "assistant", "content": "hello"}}]}
    assert read(response, format="openai").format == "openai_chat"
    known = ", ".join([*FORMATS, "openai"])
    with pytest.raises(ValueError, match=f"unknown format 'gpt': use one of {known}"):
        turn.messages("gpt")


def test_an_mcp_request_s_number_is_its_id() -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a"}}
    [call] = read(request).calls
    assert (call.id, call.name, call.arguments, call.note) == ("7", "a", {}, None)


def test_the_response_s_id_names_the_turn() -> None:
    """R18: where the provider gives one."""
    assert read({"candidates": [{"content": {}}], "responseId": "r"}).id == "r"
    assert read({"candidates": [{"content": {}}], "modelVersion": "g"}).model == "g"
    bedrock = {"output": {"message": {"content": []}}, "ResponseMetadata": {"RequestId": "q"}}
    assert read(bedrock).id == "q"
    assert read({"object": "response", "id": "resp", "output": [], "model": "m"}).id == "resp"
    assert read({"id": "call", "name": "a", "input": {}}).id is None


SPEC = ToolSpec(
    name="mcp.files/read",
    description="Read it.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
    effects=Effects.READ,
    idempotent=True,
)
BARE_SPEC = ToolSpec(name="plain")


WITHOUT_TYPES = ("bare", "pydantic_ai")
"""Forms of no SDK, or of one that tests/clients has."""


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in WITHOUT_TYPES])
def test_tools_are_offered_in_the_provider_s_form(format: str) -> None:
    offered = FORMATS[format].offer([SPEC, BARE_SPEC])
    if format in ("gemini", "gemini_live"):
        [tool] = offered
        offered = tool["functionDeclarations"]
    for tool in offered:
        hold(f"{format} tool", tool)
    assert len(offered) == 2
    assert "read" in json.dumps(offered[0])
    assert FORMATS[format].offer([]) == []


def test_gemini_s_capital_types_are_offered_as_json_schema() -> None:
    """R20: one declaration serves every provider."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "city": {"type": "STRING", "nullable": True, "enum": ["a"]},
            "STRING": {"type": "ARRAY", "items": {"type": "NUMBER"}},
        },
    }
    [offered] = FORMATS["anthropic"].offer([ToolSpec(name="a", input_schema=schema)])
    assert offered["input_schema"] == {
        "type": "object",
        "properties": {
            "city": {"type": ["string", "null"], "enum": ["a", None]},
            "STRING": {"type": "array", "items": {"type": "number"}},
        },
    }
