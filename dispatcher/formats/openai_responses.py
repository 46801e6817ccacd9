"""OpenAI Responses: `function_call` items in, one `function_call_output` item a call out."""

from typing import Any

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.content import IMAGE_TYPES, blocks_of, media_of, words_for
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import OPENAI
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.declared import callers_of, output_of, strict_of, told
from toolpool.dispatcher.formats.names import PLAIN, alias
from toolpool.dispatcher.formats.text import as_text, note_of, schema_of

NAME = "openai_responses"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False


def recognises(response: Any) -> bool:
    """A response with an output list, or one that says it is."""
    return isinstance(response, dict) and (
        response.get("object") == "response" or isinstance(response.get("output"), list)
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The response's id and the model's name."""
    return response.get("id"), response.get("model")


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The `function_call` items; messages, reasoning and hosted tools are passed over."""
    output = response.get("output")
    if not isinstance(output, list):
        raise NotAResponse("no_output")
    details = response.get("incomplete_details")
    cut_off = isinstance(details, dict) and details.get("reason") == "max_output_tokens"
    calls: list[ToolCall] = []
    for position, item in enumerate(output):
        if not isinstance(item, dict) or item.get("type") != "function_call":
            continue
        last = position == len(output) - 1
        calls.append(
            reader.call(
                len(calls),
                id=item.get("call_id"),
                name=item.get("name"),
                raw=item.get("arguments"),
                cut_off=(cut_off and last) or item.get("status") == "incomplete",
                flaw=_no_text(item.get("arguments")),
            )
        )
    return calls


def _no_text(arguments: Any) -> Flaw | None:
    """Arguments are text here: an object in their place is not of this provider's form."""
    if arguments is None or isinstance(arguments, (str, dict)):
        return None
    return Flaw(Code.UNPARSEABLE, "no_text")


def said(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The response's own items."""
    output = response.get("output")
    return list(output) if isinstance(output, list) else []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One item a result: a string, or parts where there is a picture to show."""
    return [
        {"type": "function_call_output", "call_id": result.call_id, "output": _output(result)}
        for result in results
    ]


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    blocks = blocks_of(result.data) if result.ok else None
    if blocks is None or not any(media_of(block) for block in blocks):
        return as_text(result)
    shown = [_shown(block, number) for number, block in enumerate(blocks, 1)]
    note = note_of(result)
    if note is not None:
        shown.append({"type": "input_text", "text": note})
    return shown


def _shown(block: dict[str, Any], number: int) -> dict[str, Any]:
    media = media_of(block)
    if media is not None:
        mime, data = media
        url = f"data:{mime};base64,{data}"
        if mime in IMAGE_TYPES:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        if mime == "application/pdf":
            return {"type": "input_file", "filename": f"result-{number}.pdf", "file_data": url}
    return {"type": "input_text", "text": words_for(block)}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "content": text}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter of the Responses API; `strict` refuses most schemas, so it is said."""
    return [_offered(spec) for spec in specs]


def _offered(spec: ToolSpec) -> dict[str, Any]:
    strict, callers = strict_of(spec, OPENAI), callers_of(spec, "direct", "programmatic")
    tool = {
        "type": "function",
        "name": alias(spec.name, TOOL_NAMES),
        "description": spec.description,
        "parameters": strict or schema_of(spec.input_schema),
        "strict": strict is not None,
        **told(spec, "defer_loading"),
        **callers,
    }
    output = output_of(spec) if "programmatic" in callers.get("allowed_callers", ()) else None
    return tool if output is None else {**tool, "output_schema": output}
