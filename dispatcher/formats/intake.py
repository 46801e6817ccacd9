"""From whatever a caller hands in to the calls in it."""

import itertools
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.encoding import printable
from toolpool.dispatcher.formats import (
    FORMATS,
    NotAResponse,
    Response,
    arguments,
    detect,
    envelopes,
    named,
)
from toolpool.dispatcher.formats.bare import NAME as BARE
from toolpool.dispatcher.formats.blocks import Reader, is_usable, stand_in
from toolpool.dispatcher.formats.sdk_objects import plain_data
from toolpool.dispatcher.formats.stops import Verdict, ending
from toolpool.dispatcher.words import feedback
from toolpool.dispatcher.words.wording import PLAIN, Wording

_LONGEST_TYPE = 60
_TYPES = (
    "",
    "message",
    "ai",
    "AIMessageChunk",
    "response",
    "response.done",
    "tool_call",
    "function",
)
_EVENTS = ("anthropic_agents", "openai_agents")


class Unreadable(Exception):
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

    `stop` replaces what the response says of its end; empty text is no word at all. `wording` has
    the language of what is told of them. Raises `Unreadable`, and ValueError for a `format` that
    does not exist.
    """
    try:
        plain, doubled_keys = _plain(response)
        plain = envelopes.opened(plain)
        name = detect(plain) if format in (None, "auto") else named(str(format))
        if name is None or (format in (None, "auto") and not _is_known(plain, name)):
            raise _unknown(plain)
    except envelopes.NoResponse as error:
        return Response(format=BARE, calls=(), stop=error.why)
    except NotAResponse as error:
        raise _unreadable(error, BARE, wording) from None
    module = FORMATS[name]
    if not isinstance(plain, dict if not module.TAKES_LISTS else (dict, list)):
        raise _unreadable(NotAResponse("unknown_form"), name, wording)
    response_id, model = module.identity(plain)
    turn = turn or _named(response_id)
    end = ending(name, *module.stopped(plain)) if stop is None else ending(name, stop)
    reader = Reader(turn or _stable_name(plain), max_bytes, doubled_keys, wording, end)
    try:
        calls = module.parse(plain, reader) if end.verdict is not Verdict.LEAVE else []
        if end.verdict is Verdict.MALFORMED and not calls:
            raise NotAResponse("malformed_call", why=end.why)
    except NotAResponse as error:
        raise _unreadable(error, name, wording) from None
    if len(calls) > 1 and module.HISTORY is not None and module.HISTORY.has_ids:
        calls = _told_apart(calls)
    return Response(
        format=name,
        calls=tuple(calls),
        id=turn,
        model=model if is_usable(model) else None,
        stop=None if end.verdict is Verdict.RUN else end.stop,
    )


def _told_apart(calls: list[ToolCall]) -> list[ToolCall]:
    """Each with an id of its own, where a model gave one to several calls of a response.

    Those of another choice are in another conversation.
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


def _named(id: Any) -> str | None:
    """A response's id as a turn's name: what is too long, or no Unicode, has one that is."""
    if not isinstance(id, str) or not id:
        return None
    return id if is_usable(id) else stand_in(id)


def _is_known(plain: Any, format: str) -> bool:
    """Whether an object is of a type that responses have, or an event."""
    kind = plain.get("type") if isinstance(plain, dict) else None
    return kind is None or kind in _TYPES or format in _EVENTS


def _unknown(plain: Any) -> NotAResponse:
    """Of what form it is not; what names its own type is refused by that name."""
    kind = plain.get("type") if isinstance(plain, dict) else None
    if isinstance(kind, str) and kind:
        return NotAResponse("unknown_type", type=printable(kind)[:_LONGEST_TYPE])
    return NotAResponse("unknown_form")


def _unreadable(error: NotAResponse, format: str, wording: Wording) -> Unreadable:
    return Unreadable(feedback.no_response(error.reason, error.blanks, wording), format)


def _plain(response: Any) -> tuple[Any, bool]:
    """Plain data, and whether an object in it had a key twice."""
    if isinstance(response, (str, bytes)):
        try:
            return arguments.load(response)
        except (ValueError, RecursionError):
            raise NotAResponse("not_json") from None
    return plain_data(response), False


def _stable_name(plain: Any) -> str:
    """A name for a response without one: the same response has the same."""
    try:
        return f"turn-{encoding.digest(plain)[:12]}"
    except (TypeError, ValueError, RecursionError):
        return "turn-unnamed"
