"""Reads the calls from any response that a caller passes."""

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.call import ToolCall
from toolpool.contract.encoding import printable
from toolpool.contract.errors import InvalidResponse, ToolpoolError
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import (
    FORMATS,
    NotAResponse,
    Response,
    arguments,
    named,
    response_wrappers,
)
from toolpool.dispatcher.formats.bare_calls import NAME as BARE
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.call_ids import is_usable, substitute
from toolpool.dispatcher.formats.other_provider import form_of_other_provider
from toolpool.dispatcher.formats.sdk_objects import plain_data, plain_dict
from toolpool.dispatcher.formats.stop_reasons import WHOLE, Ending, Handling, ending
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import PLAIN, Wording

log = logs.logger("formats")

_LONGEST_TYPE = 60
_KNOWN_TYPES = (
    "",
    "message",
    "ai",
    "AIMessageChunk",
    "response",
    "response.done",
    "tool_call",
    "function",
)
"""The values of `type` of a response; events may have others."""
_EVENTS = ("anthropic_agents", "openai_agents")
_ANY_SIZE = 2**62


class UnreadableResponse(ToolpoolError):
    """Raised when a response holds no calls that could be answered one by one.

    Its text asks the model for a valid response. `format` is the provider whose form the answer
    should have.
    """

    def __init__(self, text: str, format: str = BARE) -> None:
        super().__init__(text)
        self.format = format


def read(
    response: Any,
    *,
    turn: str | None = None,
    format: str | None = None,
    stop: str | None = None,
    max_bytes: int,
    wording: Wording = PLAIN,
) -> Response:
    """The calls in `response`: JSON text, plain data, or an SDK's response object.

    `stop` replaces the response's stop reason; empty text means none. `wording` has the language of
    the notes. Raises `UnreadableResponse`, `InvalidResponse` for a value that no model can have
    sent, and ValueError for an unknown `format`.
    """
    given = None if format in (None, "auto") else named(str(format))
    try:
        plain, doubled_keys = _plain(response)
        plain = response_wrappers.opened(plain)
        name = given or detect(plain)
        if name is None:
            raise _unknown(plain)
    except response_wrappers.NoResponse as error:
        return Response(format=given or BARE, calls=(), stop=error.why)
    except NotAResponse as error:
        raise _unreadable(error, given or BARE, wording) from None
    module, response_id, model, end = FORMATS[name], None, None, WHOLE
    calls: list[ToolCall] = []
    not_a_response: NotAResponse | None = None
    if not isinstance(plain, (dict, list) if module.TAKES_LISTS else dict):
        not_a_response = NotAResponse("unknown_form")
    else:
        response_id, model = module.identity(plain)
        if turn is None and isinstance(response_id, str) and response_id:
            turn = response_id if is_usable(response_id) else substitute(response_id)
        end = ending(name, *module.stopped(plain)) if stop is None else ending(name, stop)
        reader = Reader(turn or _stable_name(plain), max_bytes, doubled_keys, wording, end)
        try:
            calls = module.parse(plain, reader) if end.verdict is not Handling.LEAVE else []
            if not calls and end.verdict is Handling.MALFORMED:
                raise NotAResponse("malformed_call", why=end.why)
        except NotAResponse as error:
            not_a_response = error
    is_foreign = given is not None and not (module.recognises(plain) or _is_chat_message(plain))
    is_sound = bool(calls) and calls[0].flaw is None  # the usual case, and cheaper to check
    other = None
    if is_foreign or not (is_sound or any(map(_is_read, calls))):
        other = _form_of_calls(plain, name, end, calls)
    if other is not None or (other := form_of_other_provider(plain, name)) is not None:
        log.error("wrong_format read_as=%s response=%s: its calls are not run", name, other)
        wrong = NotAResponse("wrong_format", format=name, other=other)
        raise _unreadable(wrong, other, wording)
    if not_a_response is not None:
        raise _unreadable(not_a_response, name, wording)
    if len(calls) > 1 and module.HISTORY is not None and module.HISTORY.has_ids:
        calls = _with_distinct_ids(calls)
    return Response(
        format=name,
        calls=tuple(calls),
        id=turn,
        model=model if model is not None and is_usable(model) else None,
        stop=None if end.verdict is Handling.RUN else end.stop,
    )


def detect(response: Any) -> str | None:
    """The name of the format that `response` is in; None if unknown."""
    kind = name = None
    if isinstance(response, dict):  # the two most common shapes first
        kind = response.get("type")
        if kind == "message":
            return "anthropic"
        name = "openai_chat" if "choices" in response else None
    if name is None:
        name = next((n for n, module in FORMATS.items() if module.recognises(response)), None)
    is_known = kind is None or kind in _KNOWN_TYPES or name in _EVENTS
    return name if is_known else None


def _is_read(call: ToolCall) -> bool:
    """Whether a call was found where its form has calls, with a name and arguments."""
    return call.flaw is None or call.flaw.code is not Code.UNPARSEABLE


def _is_chat_message(plain: Any) -> bool:
    """Whether it is only the message, which has the same form at several providers."""
    return isinstance(plain, dict) and isinstance(plain.get("tool_calls"), list)


def _form_of_calls(plain: Any, name: str, end: Ending, calls: Sequence[ToolCall]) -> str | None:
    """The form of a response's calls that were not read; None if all were read."""
    is_own = FORMATS[name].recognises(plain)
    if is_own and end.verdict is not Handling.RUN:
        return None  # the stop reason says why no call is run
    for other, module in FORMATS.items():
        if other == name or not module.recognises(plain):
            continue
        if not isinstance(plain, (dict, list) if module.TAKES_LISTS else dict):
            continue
        try:
            found = module.parse(plain, Reader("turn", _ANY_SIZE))
        except NotAResponse:
            continue
        if any(map(_is_read, found)) or (found and not calls and other != BARE):
            return other
    return None


def _with_distinct_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """Give each call its own id, if a model gave one id to several calls of a response.

    Calls of another choice are in another conversation.
    """
    ids = [(call.provider_id, (call.origin or {}).get("choice")) for call in calls]
    taken = set(ids)
    if len(taken) == len(calls):
        return calls
    seen: set[tuple[str, Any]] = set()
    for at, ((id, choice), call) in enumerate(zip(ids, calls, strict=True)):
        if (id, choice) in seen:
            names = (f"{call.id}-{number}" for number in itertools.count(2))
            own = next(name for name in names if (name, choice) not in taken)
            taken.add((own, choice))
            calls[at] = msgspec.structs.replace(
                call, id=own, id_given=False, long_id=None, doubled_id=id
            )
        seen.add((id, choice))
    return calls


def _unknown(plain: Any) -> NotAResponse:
    """The error for an unknown form; an object that names its type is refused by that name."""
    kind = plain.get("type") if isinstance(plain, dict) else None
    if isinstance(kind, str) and kind:
        return NotAResponse("unknown_type", type=printable(kind)[:_LONGEST_TYPE])
    return NotAResponse("unknown_form")


def _unreadable(error: NotAResponse, format: str, wording: Wording) -> UnreadableResponse:
    return UnreadableResponse(texts.no_response(error.reason, error.blanks, wording), format)


def _plain(response: Any) -> tuple[Any, bool]:
    """Plain data, and whether an object in it had a duplicate key.

    Raises `InvalidResponse` for a value that no model can have sent.
    """
    if isinstance(response, (str, bytes)):
        try:
            return arguments.load(response)
        except (ValueError, RecursionError):
            raise NotAResponse("not_json") from None
    try:
        plain = plain_dict(response) if isinstance(response, dict) else plain_data(response)
    except RecursionError:
        raise NotAResponse("unknown_form") from None
    if not isinstance(plain, (dict, list)):
        raise InvalidResponse(_what_was_passed(response))
    return plain, False


def _what_was_passed(response: Any) -> str:
    kind = type(response).__name__
    if inspect.iscoroutine(response) or inspect.isawaitable(response):
        return f"a {kind} was passed instead of a model's response: await it first"
    if response is None:
        kind = "None"
    elif inspect.isasyncgen(response) or inspect.isgenerator(response):
        kind += " (collect a stream's events into a list first)"
    return (
        f"{kind} was passed instead of a model's response: pass an SDK's response object, its "
        "data as a dict or a list, or its JSON as text"
    )


def _stable_name(plain: Any) -> str:
    """A name for a response without an id; the same response always gets the same name."""
    try:
        return f"turn-{encoding.digest(plain)[:12]}"
    except (TypeError, ValueError, RecursionError):
        return "turn-unnamed"
