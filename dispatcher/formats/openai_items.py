"""The items of an OpenAI response that wait for an answer, and how each kind is answered.

Functions and custom tools are the pool's own tools. The built-in kinds call the tool with their
name (`shell_call` the tool `shell`), with the item's data as arguments. Without such a tool they
are answered as not supported, since an open item makes the API refuse the next request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.content import IMAGE_TYPES, blocks_of, image_url_of, media_of, words_for
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.result_text import as_bare, as_text, note_of, text_of

_FUNCTION = "function_call"
_CUSTOM = "custom_tool_call"
_NO_PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA"
    "60e6kgAAAABJRU5ErkJggg=="
)
"""One pixel: a computer call can be answered by a picture only."""

Answers = list[dict[str, Any]]
_UNTIL_ANSWERED = (None, "completed", "in_progress")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of item: the tool it calls, its arguments, and the items that answer it."""

    tool: Callable[[dict[str, Any]], Any]
    arguments: Callable[[dict[str, Any]], Any]
    answer: Callable[[ToolResult, dict[str, Any]], Answers]
    id_field: str = "call_id"
    flaw: Callable[[dict[str, Any]], Flaw | None] = lambda item: None
    is_text: bool = False
    asks: bool = False
    """Whether the provider only asks for permission to run the tool."""
    whole: tuple[str | None, ...] = (None, "completed")
    """The states of a complete item: shell calls are `in_progress` until they are answered."""


def waits(item: dict[str, Any]) -> bool:
    """Whether an item waits for an answer from the host: the API itself answers hosted tools."""
    kind = item.get("type")
    if kind == "tool_search_call":
        return item.get("execution") == "client"
    if kind == "shell_call":
        environment = item.get("environment")
        return not isinstance(environment, dict) or environment.get("type") == "local"
    return isinstance(kind, str) and kind in _KINDS


def id_field(item: dict[str, Any]) -> str:
    """The field of an item that its answer must name."""
    return _KINDS[item["type"]].id_field


def call(index: int, item: dict[str, Any], reader: Reader, *, is_last: bool) -> ToolCall:
    """The call in an item that waits."""
    kind = _KINDS[item["type"]]
    return reader.call(
        index,
        id=item.get(kind.id_field),
        name=kind.tool(item),
        raw=kind.arguments(item),
        namespace=item.get("server_label" if kind.asks else "namespace"),
        is_text=kind.is_text,
        asks=kind.asks,
        is_last=is_last,
        is_partial=item.get("status") not in kind.whole,
        flaw=kind.flaw(item),
        origin=_origin(item),
    )


def calls_in(output: Any, reader: Reader) -> list[ToolCall]:
    """The calls of the items that wait; messages, reasoning and hosted tools are skipped.

    Raises `NotAResponse` unless it is a list.
    """
    if not isinstance(output, list):
        raise NotAResponse("no_output")
    calls: list[ToolCall] = []
    for position, item in enumerate(output):
        if isinstance(item, dict) and waits(item):
            calls.append(call(len(calls), item, reader, is_last=position == len(output) - 1))
    return calls


def answers(result: ToolResult) -> Answers:
    """The items that answer a call."""
    origin = result.origin or {}
    return _KINDS[origin.get("type", _FUNCTION)].answer(result, origin)


def is_program(origin: Mapping[str, Any]) -> bool:
    """Whether a program made the call, and not the model itself."""
    caller = origin.get("caller")
    return isinstance(caller, dict) and caller.get("type") == "program"


def _origin(item: dict[str, Any]) -> dict[str, Any] | None:
    """What its answer must repeat; nothing for a plain function call."""
    origin = {key: item[key] for key in ("caller", "namespace") if item.get(key) is not None}
    if item.get("async") or item.get("async_"):
        origin["async"] = True
    if item["type"] != _FUNCTION:
        origin["type"] = item["type"]
    if item["type"] not in (_FUNCTION, _CUSTOM):
        origin["built_in"] = item["type"]
    action = item.get("action")
    if isinstance(action, dict) and action.get("max_output_length") is not None:
        origin["max_output_length"] = action["max_output_length"]
    return origin or None


def _carried(origin: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: origin[key] for key in keys if key in origin}


def _function_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    answer = {"type": "function_call_output", "call_id": result.call_id}
    output = as_bare(result) if is_program(origin) else _output(result)
    return [
        {**answer, "output": output, **_state(result), **_carried(origin, "caller", "namespace")}
    ]


def _state(result: ToolResult) -> dict[str, str]:
    """The status of a call that the model does not wait for.

    The call may be answered again later.
    """
    if not (result.origin or {}).get("async"):
        return {}
    return {"status": "in_progress" if result.is_running else "completed"}


def _custom_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    answer = {"type": "custom_tool_call_output", "call_id": result.call_id}
    output = as_bare(result) if is_program(origin) else _output(result)
    return [{**answer, "output": output, **_carried(origin, "caller")}]


def _shell_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    """A tool's `stdout`, `stderr` and `exit_code`, or its text as `stdout`."""
    data = result.data if isinstance(result.data, dict) else {}
    is_told = result.ok and ("stdout" in data or "stderr" in data)
    code = data.get("exit_code")
    is_timeout = result.code is Code.TIMEOUT
    chunk = {
        "stdout": _text(data.get("stdout")) if is_told else as_text(result) if result.ok else "",
        "stderr": _text(data.get("stderr")) if is_told else "" if result.ok else as_text(result),
        "outcome": {"type": "timeout"}
        if is_timeout
        else {"type": "exit", "exit_code": code if isinstance(code, int) else int(not result.ok)},
    }
    answer = {"type": "shell_call_output", "call_id": result.call_id, "output": [chunk]}
    return [{**answer, **_carried(origin, "caller", "max_output_length")}]


def _local_shell_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    answer = {"type": "local_shell_call_output", "id": result.call_id, "output": as_text(result)}
    return [{**answer, "status": "completed" if result.ok else "incomplete"}]


def _patch_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    answer = {"type": "apply_patch_call_output", "call_id": result.call_id}
    status = "completed" if result.ok else "failed"
    return [{**answer, "status": status, "output": as_text(result), **_carried(origin, "caller")}]


def _computer_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    """The picture that a tool returns; without one, an empty picture and a message as text."""
    blocks = (blocks_of(result.data) if result.ok else None) or []
    shown = [media for block in blocks if (media := media_of(block)) is not None]
    urls = [f"data:{mime};base64,{data}" for mime, data in shown if mime in IMAGE_TYPES]
    picture = {"type": "computer_screenshot", "image_url": urls[-1] if urls else _NO_PICTURE}
    answer = {"type": "computer_call_output", "call_id": result.call_id, "output": picture}
    return [answer] if urls else [answer, {"role": "user", "content": as_text(result)}]


def _search_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    """The list of tools that a tool returns; empty if the search failed."""
    is_list = result.ok and isinstance(result.data, list)
    return [
        {
            "type": "tool_search_output",
            "call_id": result.call_id,
            "execution": "client",
            "status": "completed",
            "tools": result.data if is_list else [],
        }
    ]


def _approval_answer(result: ToolResult, origin: dict[str, Any]) -> Answers:
    answer = {"type": "mcp_approval_response", "approval_request_id": result.call_id}
    if result.ok:
        return [{**answer, "approve": True}]
    return [{**answer, "approve": False, "reason": result.error or ""}]


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    """A string, or parts if there is a picture."""
    blocks = blocks_of(result.data) if result.ok else None
    if blocks is None or not any(media_of(block) or image_url_of(block) for block in blocks):
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
    at = image_url_of(block)
    if at is not None:
        return {"type": "input_image", "image_url": at, "detail": "auto"}
    return {"type": "input_text", "text": words_for(block)}


def _text(value: Any) -> str:
    return "" if value is None else text_of(value)


def _no_text(item: dict[str, Any]) -> Flaw | None:
    """The flaw of arguments that are an object: this provider sends text."""
    arguments = item.get("arguments")
    if arguments is None or isinstance(arguments, (str, dict)):
        return None
    return Flaw(Code.UNPARSEABLE, "no_text")


def _unchecked(item: dict[str, Any]) -> Flaw | None:
    """The flaw of an action that the API wants a person to check first."""
    return Flaw(Code.DENIED, "safety_checks") if item.get("pending_safety_checks") else None


def _of_action(item: dict[str, Any]) -> Any:
    action = item.get("action")
    if not isinstance(action, dict):
        return action
    return {key: value for key, value in action.items() if key != "type" and value is not None}


def _of_computer(item: dict[str, Any]) -> Any:
    actions = item.get("actions")
    return {"actions": actions if actions is not None else [item.get("action")]}


_KINDS: Mapping[str, _Kind] = {
    _FUNCTION: _Kind(
        tool=lambda item: item.get("name"),
        arguments=lambda item: item.get("arguments"),
        answer=_function_answer,
        flaw=_no_text,
    ),
    _CUSTOM: _Kind(
        tool=lambda item: item.get("name"),
        arguments=lambda item: item.get("input"),
        answer=_custom_answer,
        is_text=True,
    ),
    "shell_call": _Kind(
        tool=lambda item: "shell",
        arguments=_of_action,
        answer=_shell_answer,
        whole=_UNTIL_ANSWERED,
    ),
    "local_shell_call": _Kind(
        tool=lambda item: "local_shell",
        arguments=_of_action,
        answer=_local_shell_answer,
        whole=_UNTIL_ANSWERED,
    ),
    "apply_patch_call": _Kind(
        tool=lambda item: "apply_patch",
        arguments=lambda item: item.get("operation"),
        answer=_patch_answer,
        whole=_UNTIL_ANSWERED,
    ),
    "computer_call": _Kind(
        tool=lambda item: "computer",
        arguments=_of_computer,
        answer=_computer_answer,
        flaw=_unchecked,
    ),
    "tool_search_call": _Kind(
        tool=lambda item: "tool_search",
        arguments=lambda item: item.get("arguments"),
        answer=_search_answer,
    ),
    "mcp_approval_request": _Kind(
        tool=lambda item: item.get("name"),
        arguments=lambda item: item.get("arguments"),
        answer=_approval_answer,
        id_field="id",
        asks=True,
    ),
}

KINDS = frozenset(_KINDS)
"""The types of items that may wait for an answer."""
