"""Matches the responses of a history to noted turns; an ambiguous match is None.

A unique call identifies its turn. If a provider counts its ids from 0 in every response, or sends
none, equal calls of a session look the same, and a history may have lost its beginning or a message
that was taken back. Such a call is matched only if no host has received its turn's answers (that
host could have gone on to the next equal call), if every turn dispatched after it also follows it
in the history, and if no note of the session was dropped. If none of the equal calls was run, the
match does not matter: the call is not run either.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from toolpool.dispatcher.transports.base import TurnNote


class ResponseName(NamedTuple):
    """A response in a history: the name of its calls, and whether that name is unique."""

    name: str
    is_distinct: bool
    is_open: bool


class _Noted(NamedTuple):
    note: TurnNote
    order: int


class Notes:
    """The notes of one session."""

    def __init__(self, notes: Sequence[TurnNote]) -> None:
        self._has_hole = any(not note.turn for note in notes)
        noted: dict[str, _Noted] = {}
        answered: set[str] = set()
        for order, note in enumerate(notes):
            if note.is_answered:
                answered.add(note.turn)
            elif note.turn:
                answered.discard(note.turn)  # the turn was dispatched again
                noted[note.turn] = _Noted(note, order)
        self._answered = answered
        self._in_order = sorted(noted.values(), key=lambda each: each.order)
        self._by_name: dict[str, list[_Noted]] = {}
        for each in self._in_order:
            self._by_name.setdefault(each.note.name, []).append(each)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def stop_of_equals(self, named: ResponseName, history: Sequence[ResponseName]) -> str | None:
        """The stop reason of responses whose calls were not all run, if equal responses share one.

        None if all calls of one were run, or if the history has an equal response without a note.
        """
        noted = self._by_name.get(named.name, [])
        stops = {each.note.stop for each in noted}
        if len(stops) != 1 or "" in stops or self._has_hole:
            return None
        is_noted = sum(each.name == named.name for each in history) <= len(noted)
        return stops.pop() if is_noted else None

    def of(self, history: Sequence[ResponseName]) -> list[TurnNote | None]:
        """The turn of each response; None if ambiguous."""
        often = Counter(named.name for named in history)
        often_open = Counter(named.name for named in history if named.is_open)
        seen, seen_open = Counter[str](), Counter[str]()
        found: list[TurnNote | None] = []
        for at, named in enumerate(history):
            noted = self._by_name.get(named.name, [])
            if named.is_distinct:
                place, count = seen[named.name], often[named.name]
                fits = place < len(noted) <= count
            else:
                noted = [each for each in noted if each.note.turn not in self._answered]
                place, count = seen_open[named.name], often_open[named.name]
                fits = named.is_open and len(noted) == count and not self._has_hole
                fits = fits and self._is_newest(noted[place], history[at + 1 :])
            found.append(noted[place].note if fits else None)
            seen[named.name] += 1
            seen_open[named.name] += named.is_open
        return found

    def _is_newest(self, noted: _Noted, later: Sequence[ResponseName]) -> bool:
        """Whether every turn dispatched after this one also follows it in the history."""
        names = {named.name for named in later}
        after = (each.note.name for each in self._in_order if each.order > noted.order)
        return all(name in names for name in after)
