"""Matches the answers in a history to their calls.

An answer names a call by its id, which some providers repeat in every response, or by the name of
its tool alone. It belongs to the newest response before it that has such a call without an answer;
equal calls of one response are answered in order.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from toolpool.contract.call import ToolCall
from toolpool.dispatcher.formats.call_ids import is_unique
from toolpool.dispatcher.formats.history import HistoryAnswer, PastResponse, PlacedAnswer
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

Responses = Sequence[tuple[PastResponse, Sequence[ToolCall]]]
_Place = tuple[int, int]
"""A call: the number of its response, and its own number in it."""


def matched(
    responses: Responses, answers: Sequence[PlacedAnswer], *, has_ids: bool
) -> list[list[PlacedAnswer | None]]:
    """For each call of each response, its answer, at any position; None if it has none.

    `has_ids`: for a call with an id, the provider accepts no answer without one.
    """
    found: list[list[PlacedAnswer | None]] = [[None] * len(calls) for _, calls in responses]
    open_calls: dict[str, list[_Place]] = defaultdict(list)
    early: list[PlacedAnswer] = []
    number = 0
    for placed in answers:
        while number < len(responses) and responses[number][0].at[-1] < placed.at:
            for index, call in enumerate(responses[number][1]):
                for key in _keys_of(call, has_ids=has_ids):
                    open_calls[key].append((number, index))
            number += 1
        place = _newest(open_calls, found, placed.answer)
        if place is None:
            early.append(placed)
        else:
            found[place[0]][place[1]] = placed
    _match_early(responses, found, early)
    return found


def _match_early(
    responses: Responses, found: list[list[PlacedAnswer | None]], early: Iterable[PlacedAnswer]
) -> None:
    """Match answers that precede their calls; a repeated id belongs to an older call."""
    left = {placed.answer.id: placed for placed in early if isinstance(placed.answer.id, str)}
    for (_, calls), placed in zip(responses, found, strict=True):
        for index, call in enumerate(calls if left else ()):
            if placed[index] is None and call.id_given and is_unique(call.provider_id):
                placed[index] = left.pop(call.provider_id, None)


def _newest(
    open_calls: dict[str, list[_Place]],
    found: list[list[PlacedAnswer | None]],
    answer: HistoryAnswer,
) -> _Place | None:
    """The first open call of the newest response to which the answer may belong."""
    places = open_calls.get(_key_of(answer))
    while places and found[places[-1][0]][places[-1][1]] is not None:
        places.pop()  # answered under another of its names
    if not places:
        return None
    newest = places[-1][0]
    at = len(places) - 1
    while at and places[at - 1][0] == newest:
        at -= 1
    while found[places[at][0]][places[at][1]] is not None:
        at += 1
    return places[at]


def _key_of(answer: HistoryAnswer) -> str:
    if answer.id:
        return f"id {answer.id}"
    return "any" if answer.name is None else f"name {answer.name}"


def _keys_of(call: ToolCall, *, has_ids: bool) -> set[str]:
    """The names that an answer may use for a call."""
    if call.doubled_id is not None:
        return {f"id {call.id}", f"id {call.doubled_id}"}
    keys = {f"id {call.provider_id}"} if call.id_given else set()
    if not (has_ids and call.id_given):
        keys |= {"any", f"name {call.name}", f"name {alias(call.name, PLAIN)}"}
    return keys
