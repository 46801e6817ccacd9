"""Long output and MCP content on their way out of a worker (R3, R5, R37)."""

import base64
from typing import Any

import pytest
from mcp.types import CallToolResult, ImageContent, TextContent

from tests.sdk_types import hold
from toolpool import ToolContext, tool
from toolpool.contract import encoding
from toolpool.contract.content import blocks_of
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import FORMATS
from toolpool.workers.running.invoke import Invocation, invoke
from toolpool.workers.running.output import Completion, fitted, in_the_middle

CAP = 1_000
PNG = base64.b64encode(bytes(2_000)).decode()
TEXT = {"type": "text", "text": "x" * 400 + "secret middle" + "y" * 4_000}
SHORT = {"type": "text", "text": "A short word."}
PICTURE = {"type": "image", "data": PNG, "mimeType": "image/png"}
SMALL = {"type": "image", "data": PNG[:100], "mimeType": "image/png"}
FILE = {"type": "resource", "resource": {"uri": "file:///a", "text": "z" * 3_000}}
BINARY = {"type": "resource", "resource": {"uri": "file:///b", "blob": PNG}}
LINK = {"type": "resource_link", "uri": "file:///c", "name": "n" * 3_000}


def ending_of(value: Any) -> Completion:
    @tool(max_output=CAP)
    def give() -> Any:
        return value

    return invoke(Invocation(give, {}, ToolContext(call_id="c", tool="give"), 100_000))


def data(outcome: Outcome) -> Any:
    assert outcome.ok, outcome
    return encoding.decode(encoding.encode(outcome.data))


@pytest.mark.parametrize(
    "blocks",
    [
        [TEXT],
        [SHORT, TEXT],
        [PICTURE],
        [SHORT, PICTURE, SMALL],
        [TEXT, FILE, BINARY, LINK],
        [TEXT] * 5,
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_content_blocks_over_the_cap_stay_valid_blocks(blocks: Any, wrapped: bool) -> None:
    value = {"content": blocks, "structuredContent": {"n": 1}} if wrapped else blocks
    ending = ending_of(value)
    shown = data(ending.outcome)
    kept = blocks_of(shown)
    assert kept is not None
    assert len(kept) == len(blocks)
    assert len(encoding.encode(shown)) < CAP + 100 * len(blocks)
    for block, before in zip(kept, blocks, strict=True):
        if len(encoding.encode(before)) < CAP // len(blocks):
            assert block == before
    assert encoding.decode(str(ending.whole)) == value
    assert ending.outcome.output_bytes == len(str(ending.whole).encode())
    result = ToolResult(call_id="c", name="t", ok=True, data=shown, note="cut")
    for format in ("anthropic", "bedrock", "gemini", "mcp", "openai_chat", "openai_responses"):
        for message in FORMATS[format].render([result]):
            hold(format, message)


def test_a_picture_that_is_too_large_is_named_and_what_fits_is_kept() -> None:
    assert data(ending_of([SHORT, PICTURE, SMALL]).outcome) == [
        SHORT,
        {"type": "text", "text": "[image, image/png, 2,001 bytes: not shown here]"},
        SMALL,
    ]


def test_a_long_text_block_is_cut_in_its_middle() -> None:
    [block] = data(ending_of([TEXT]).outcome)
    assert "secret middle" in block["text"]
    assert "bytes left out …" in block["text"]
    assert block["text"].startswith("x" * 400)
    assert block["text"].endswith("y" * 300)


def test_very_many_blocks_are_cut_as_text() -> None:
    shown = data(ending_of([SHORT] * 100).outcome)
    assert isinstance(shown, str)
    assert "bytes left out" in shown


def test_a_text_that_only_json_makes_longer_is_not_cut() -> None:
    text = '"' * 900
    ending = fitted(encoding.encode(text), CAP)
    assert (data(ending.outcome), ending.whole, ending.outcome.output_bytes) == (text, None, 0)
    assert in_the_middle("é" * 500, CAP) == "é" * 500


def test_an_mcp_result_that_is_an_error_is_a_failure_with_its_text() -> None:
    """R5: whether the tool returns it plainly or as the SDK's object."""
    result = CallToolResult(
        content=[TextContent(type="text", text="No such file."), ImageContent(**PICTURE)],
        isError=True,
    )
    plain = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    for value in (result, plain, plain | {"structuredContent": {"code": 2}}):
        outcome = ending_of(value).outcome
        assert (outcome.ok, outcome.code, outcome.executed) == (
            False,
            Code.REPORTED,
            Executed.YES,
        )
        assert outcome.error == ("No such file.\n\n[image, image/png, 2,001 bytes: not shown here]")
    assert ending_of({"content": [], "isError": True}).outcome.error == "the tool reported an error"
    assert len(ending_of({"content": [TEXT], "isError": True}).outcome.error) == 2_000


def test_an_mcp_result_of_the_sdk_s_is_content_for_every_provider() -> None:
    result = CallToolResult(content=[TextContent(type="text", text="Fine.")], isError=False)
    shown = data(ending_of(result).outcome)
    assert [block["text"] for block in blocks_of(shown) or ()] == ["Fine."]
    for format in ("anthropic", "mcp"):
        [message] = FORMATS[format].render([ToolResult(call_id="c", name="t", ok=True, data=shown)])
        hold(format, message)


@pytest.mark.parametrize(
    "value",
    [
        {"isError": True},
        {"isError": True, "message": "x"},
        {"content": "text", "isError": True},
        {"content": [{"type": "order"}], "isError": True},
        {"content": [SHORT], "isError": True, "orders": []},
        {"content": [SHORT], "isError": False},
        {"content": [SHORT], "isError": 1},
    ],
)
def test_other_data_with_such_a_field_is_data(value: dict[str, Any]) -> None:
    assert data(ending_of(value).outcome) == value
