"""OpenAI Chat Completions: `tool_calls` in, one `tool` message per call out."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.encoding import word_of
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import OPENAI
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader, another_choice
from toolpool.dispatcher.formats.declared_options import strict_of, text_format_of
from toolpool.dispatcher.formats.history import HistoryAnswer, Messages
from toolpool.dispatcher.formats.result_text import as_text, schema_of
from toolpool.dispatcher.formats.stop_reasons import Handling
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "openai_chat"
ALIASES = ("openai",)
TOOL_NAMES = PLAIN
TAKES_LISTS = False

_SENT_BACK = (
    "content",
    "refusal",
    "tool_calls",
    "function_call",
    "reasoning_content",  # for servers that want their model's thoughts back
    "reasoning_details",
)


def recognises(response: Any) -> bool:
    """Whether it is a completion with choices, or a bare assistant message with tool calls."""
    return isinstance(response, dict) and (
        "choices" in response
        or response.get("object") == "chat.completion"
        or isinstance(response.get("tool_calls"), list)
        or (response.get("role") == "assistant" and _is_said(response))
    )


def _is_said(message: dict[str, Any]) -> bool:
    """Whether a bare message has this form: its content is text, or it has a legacy call."""
    return "function_call" in message or isinstance(message.get("content"), str)


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The completion's id and the model's name."""
    return response.get("id"), response.get("model")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """The first choice's finish reason; a bare message has none."""
    first = next(iter(_in_order(response.get("choices"))), None)
    return (first.get("finish_reason") if isinstance(first, dict) else None), None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The calls of functions and custom tools, and the legacy `function_call`.

    Only those of the first choice are run: other choices are alternatives.
    """
    choices = response.get("choices")
    if choices is None and "object" not in response:
        choices = [{"message": response}]
    choices = _in_order(choices)
    if not choices or not isinstance(choices[0], dict):
        raise NotAResponse("no_choices")
    calls: list[ToolCall] = []
    for number, choice in enumerate(choices):
        message = choice.get("message") if isinstance(choice, dict) else None
        if number and not _is_sound(message):
            continue
        if isinstance(message, dict):
            calls += calls_of(message, reader, len(calls), number)
        elif reader.ending.verdict is not Handling.REFUSE:
            raise NotAResponse("no_message")
    return calls


def _in_order(choices: Any) -> list[Any]:
    """The choices by their index, if each has one."""
    if not isinstance(choices, list):
        return []
    if all(isinstance(each, dict) and isinstance(each.get("index"), int) for each in choices):
        return sorted(choices, key=lambda choice: choice["index"])
    return choices


def _is_sound(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("tool_calls") or [], list)


def calls_of(
    message: dict[str, Any],
    reader: Reader,
    first: int,
    number: int,
    *,
    id_is_optional: bool = False,
) -> list[ToolCall]:
    """The calls of one choice's message, counted from `first`."""
    flaw, origin = another_choice(number) if number else (None, None)
    blocks = message.get("tool_calls") or []
    if not isinstance(blocks, list):
        raise NotAResponse("no_tool_calls")
    calls = [
        _call(
            first + position,
            block,
            reader,
            flaw=flaw,
            origin=origin,
            is_last=position == len(blocks) - 1,
            id_is_optional=id_is_optional,
        )
        for position, block in enumerate(blocks)
    ]
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and not blocks:
        calls.append(
            reader.call(
                first,
                id=None,
                name=legacy.get("name"),
                raw=legacy.get("arguments"),
                is_last=True,
                id_is_optional=True,
                flaw=flaw,
                origin={**(origin or {}), "function": legacy.get("name")},
            )
        )
    return calls


def _call(
    index: int,
    block: Any,
    reader: Reader,
    **options: Any,
) -> ToolCall:
    if not isinstance(block, dict):
        return reader.unreadable(index)
    kind = block.get("type")
    if kind not in (None, "", "function", "custom"):
        flaw = Flaw(Code.UNPARSEABLE, "unknown_type", {"type": word_of(kind)})
        return reader.call(index, id=block.get("id"), name="", raw=None, flaw=flaw)
    custom, function = block.get("custom"), block.get("function")
    is_text = isinstance(custom, dict) and not isinstance(function, dict)
    called = custom if is_text else function
    if not isinstance(called, dict):
        return reader.unreadable(index, id=block.get("id"))
    return reader.call(
        index,
        id=block.get("id"),
        name=called.get("name"),
        raw=called.get("input" if is_text else "arguments"),
        is_text=is_text,
        **options,
    )


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The first choice's message, with the ids of calls that came without one."""
    choices = _in_order(response.get("choices") or [{"message": response}])
    first = choices[0] if choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict):
        return []
    kept = {key: message[key] for key in _SENT_BACK if key in message}
    if not kept.get("tool_calls", True):
        del kept["tool_calls"]  # the API refuses an empty list
    if isinstance(message.get("audio"), dict):
        kept["audio"] = {"id": message["audio"].get("id")}
    return [{"role": "assistant", **with_ids(kept, ids)}]


def with_ids(message: dict[str, Any], ids: Mapping[int, str]) -> dict[str, Any]:
    """A message with the ids that its calls were given here, by index."""
    blocks = message.get("tool_calls")
    if not ids or not isinstance(blocks, list):
        return message
    named = [
        {**block, "id": ids[index]} if index in ids and isinstance(block, dict) else block
        for index, block in enumerate(blocks)
    ]
    return {**message, "tool_calls": named}


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One message per result."""
    return [
        {"role": "function", "name": result.origin["function"], "content": as_text(result)}
        if result.origin and "function" in result.origin
        else {"role": "tool", "tool_call_id": result.call_id, "content": as_text(result)}
        for result in results
    ]


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "content": text}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter of the Chat Completions API."""
    return [
        {"type": "function", "function": _function(spec)}
        if spec.text_input is None
        else {"type": "custom", "custom": _custom(spec)}
        for spec in specs
    ]


def offer_functions(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter for servers that support only functions."""
    return [{"type": "function", "function": _function(spec)} for spec in specs]


def _custom(spec: ToolSpec) -> dict[str, Any]:
    """A free-text tool. In Chat Completions, the grammar is one level deeper than in Responses."""
    custom = {"name": alias(spec.name, TOOL_NAMES), "description": spec.description}
    form = text_format_of(spec)
    if form is None:
        return {**custom, "format": {"type": "text"}}
    grammar = {key: form[key] for key in ("syntax", "definition")}
    return {**custom, "format": {"type": "grammar", "grammar": grammar}}


def _function(spec: ToolSpec) -> dict[str, Any]:
    strict = strict_of(spec, OPENAI)
    function = {
        "name": alias(spec.name, TOOL_NAMES),
        "description": spec.description,
        "parameters": strict or schema_of(spec.input_schema),
    }
    return function if strict is None else {**function, "strict": True}


def calling(message: dict[str, Any]) -> dict[str, Any] | None:
    """A model's message that has calls."""
    return message if message.get("tool_calls") or message.get("function_call") else None


def answer_in(message: dict[str, Any]) -> HistoryAnswer | None:
    """The call that an answer message names."""
    if message.get("role") == "function":
        return HistoryAnswer(None, message.get("name"))
    return HistoryAnswer(message.get("tool_call_id")) if message.get("role") == "tool" else None


HISTORY = Messages(to_response=calling, answer=answer_in)
