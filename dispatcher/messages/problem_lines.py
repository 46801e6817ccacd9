"""One kind of problem in one line, within a given length."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from toolpool.contract.schema.explain import TOO_LONG
from toolpool.contract.schema.json_values import escaped
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import UNIONS
from toolpool.dispatcher.messages import argument_paths
from toolpool.dispatcher.messages.argument_paths import cut_at
from toolpool.dispatcher.messages.locales import Locale
from toolpool.dispatcher.messages.wording import Wording

_ALL = 1 << 30
_PATHS_AT_MOST = 200
_IN_A_SHAPE = ("required", "additionalProperties")
_LONGEST_LIST = 100
"""The longest list of paths in one line, if every name in it also occurs elsewhere."""


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of problem, in one or several places.

    If the wanted shape follows (`is_brief`), the line does not repeat it.
    """

    problems: tuple[Problem, ...]
    wording: Wording
    is_brief: bool = False

    @property
    def count(self) -> int:
        """The number of problems."""
        return len(self.problems) + sum(problem.also for problem in self.problems)

    @property
    def whole(self) -> str:
        """The complete line."""
        return self.within(_ALL)

    def within(self, characters: int) -> str:
        """The line, at most this long: path and received value first."""
        words, style = self.wording.words, self.wording.style
        template = words.line[style] if self.problems[0].path else words.root_line[style]
        may_cut = self.is_brief or self.problems[0].kind == "additionalProperties"
        where = self._where(min(_LONGEST_LIST if may_cut else _ALL, max(8, characters // 2)))
        room = characters - len(template.format(path=where, message=""))
        message = message_of(self.problems[0], words, style, room, is_brief=self.is_brief)
        return cut_at(template.format(path=where, message=message), characters)

    def _where(self, characters: int) -> str:
        """The paths that there is room for; for unknown fields also how many more there are."""
        pointer = self.wording.style == "pointer"
        shown = [problem.path for problem in self.problems[:_PATHS_AT_MOST]]
        groups = argument_paths.counted(shown, pointer=pointer)
        is_counted = self.problems[0].kind == "additionalProperties"
        ends = list(accumulate(len(text) + 2 for text, _ in groups))
        fitting = bisect_right(ends, characters + 2)
        for count in range(max(1, fitting), 0, -1):
            text = ", ".join(text for text, _ in groups[:count])
            left = self.count - sum(number for _, number in groups[:count])
            if left and is_counted:
                text += self.wording.words.names_more.format(count=left)
            elif left:
                text += ", …"
            if len(text) <= characters:
                return text
        return argument_paths.middle_out(text, characters)


def lines_of(
    problems: Sequence[Problem],
    wording: Wording,
    covered: Collection[int] = (),
    *,
    are_shared: bool = False,
    is_whole: bool = False,
) -> list[Line]:
    """A line for each kind of problem, in one or many places.

    `covered` are the positions of the problems whose shape follows; if it `is_whole`, it also says
    which fields are missing and unknown. Identical problems share a line if they are unknown fields
    or the lines `are_shared`; others only if one index differs.
    """
    words, style = wording.words, wording.style
    found: dict[tuple[Any, ...], list[Problem]] = {}
    messages: dict[tuple[Any, ...], str] = {}
    renamed = {(*p.path[:-1], p.closest) for p in problems if p.kind == "additionalProperties"}
    for number, problem in enumerate(problems):
        if problem.kind == "required" and problem.shape is None and problem.path in renamed:
            continue  # sent under the name that another line corrects
        is_brief = number in covered
        if is_whole and is_brief and problem.kind in _IN_A_SHAPE and problem.closest is None:
            continue
        if are_shared and problem.is_optional and problem.path:
            problem = Problem(problem.path, "null", is_optional=True)
        alike = _alike(problem, is_brief=is_brief)
        if alike not in messages:
            messages[alike] = message_of(problem, words, style, _ALL, is_brief=is_brief)
        message = messages[alike]
        shares = are_shared or problem.kind == "additionalProperties"
        where = bool(problem.path) if shares else argument_paths.without_index(problem.path)
        found.setdefault((message, is_brief, where), []).append(problem)
    return [Line(tuple(same), wording, is_brief) for (_, is_brief, _), same in found.items()]


def _alike(problem: Problem, *, is_brief: bool) -> tuple[Any, ...]:
    """A key that is equal for problems with the same text."""
    return (
        problem.kind, problem.expected, problem.received, id(problem.allowed), problem.closest,
        problem.shape, problem.more, problem.is_optional, problem.holds, problem.is_unsure,
        is_brief,
    )  # fmt: skip


def message_of(
    problem: Problem, words: Locale, style: str, room: int, *, is_brief: bool = False
) -> str:
    """The problem without its path."""
    kind = problem.kind
    if kind == "required":
        return _missing(problem, words, style, room, is_brief=is_brief)
    if kind == "additionalProperties":
        return _unknown_field(problem, words, style)
    if kind in ("enum", "const"):
        text = _enumerated(problem, words, style, room)
        below = _wanted(words.one_of_those_below, "", words, style)
        return below if is_brief and problem.closest is None and len(below) < len(text) else text
    if kind == "value":
        return problem.expected
    if kind in ("null", "tooDeep"):
        return words.too_deep if kind == "tooDeep" else words.no_null
    if kind in ("type", "anyOf", "oneOf"):
        if not problem.expected:
            return words.ambiguous
        return _mistyped(problem, words, style, room, is_brief=is_brief)
    limit = words.limits.get(kind, words.other_limit)
    return _fitted(
        lambda shown: _wanted(limit.format(expected=shown, kind=kind), "", words, style),
        escaped(problem.expected),
        room,
    )


def _missing(problem: Problem, words: Locale, style: str, room: int, *, is_brief: bool) -> str:
    text = words.required[style]
    if problem.closest is not None:
        sent = argument_paths.name(problem.closest)
        text = words.required_sent.format(required=text, sent=sent)
    if is_brief or problem.shape in (None, TOO_LONG):
        return text
    shape = _item_type(problem.shape) or problem.shape
    shaped = words.required_shape.format(required=text, shape=shape)
    return shaped if len(shaped) <= room else text


def _unknown_field(problem: Problem, words: Locale, style: str) -> str:
    unknown = words.unknown_field[style]
    if problem.closest:
        return words.unknown_field_meant.format(unknown=unknown, closest=problem.closest)
    if not problem.allowed and not problem.is_unsure:
        return words.unknown_field_leave_out.format(unknown=unknown)
    return unknown


def _wanted(what: str, received: str, words: Locale, style: str) -> str:
    got = words.got[style].format(received=received) if received else ""
    return words.wanted[style].format(what=what, got=got)


def _or_nothing(what: str, problem: Problem, words: Locale) -> str:
    return words.or_left_out.format(what=what) if problem.is_optional else what


def _mistyped(problem: Problem, words: Locale, style: str, room: int, *, is_brief: bool) -> str:
    """The wanted type, shape or alternatives, and the received type."""
    received = words.holding[problem.holds] if problem.holds else _another(problem, words)

    def said(what: str) -> str:
        text = _wanted(_or_nothing(what, problem, words), received, words, style)
        if problem.closest is None:
            return text
        return words.did_you_mean.format(closest=f'"{problem.closest}"', message=text)

    if is_brief and problem.closest is None and received != problem.received and not problem.holds:
        return _wanted(words.one_of_those_below, "", words, style)
    shape = None if is_brief or problem.shape == TOO_LONG else problem.shape
    options = problem.alternatives
    if shape is not None and shape.replace(" | ", "|") != problem.expected:
        text = said(_named(shape, problem, words))
        if len(text) <= room:
            return text
    for count in range(len(options), 0, -1):
        text = said(words.either.join([*options[:count], "…"][: len(options)]))
        if len(text) <= room:
            return text
    rest = f"{words.either}…" if len(options) > 1 else ""
    return _fitted(lambda shown: said(shown + rest), options[0], room)


def _named(shape: str, problem: Problem, words: Locale) -> str:
    """A shape after the name of its type, if it is the only one."""
    if len(problem.alternatives) > 1 or problem.kind in UNIONS:
        return shape
    simple = _item_type(shape)
    if simple is not None:
        return simple
    if shape.startswith("["):
        return f"array {shape}"
    return words.object_of.format(shape=shape) if shape.startswith("{") else shape


def _item_type(shape: str) -> str | None:
    """`array of string`, if that describes a list completely."""
    inner = shape[1:-1]
    return f"array of {inner}" if shape == f"[{inner}]" and inner.isalpha() else None


def _another(problem: Problem, words: Locale) -> str:
    wanted = problem.alternatives if problem.expected else []
    if problem.received in wanted or (problem.received == "integer" and "number" in wanted):
        return words.another.format(received=problem.received)
    return problem.received


def _enumerated(problem: Problem, words: Locale, style: str, room: int) -> str:
    """The enum members that there is room for, the likely one first, and the received value."""
    types = problem.alternatives if problem.expected else []
    received = _another(problem, words)
    same = received != problem.received

    def expected(listed: str) -> str:
        what = listed
        if len(problem.allowed) > 1:
            what = words.one_of.format(members=listed)
        if types and not same and types != list(problem.allowed):
            what = words.typed_one_of.format(types=words.either.join(types), members=listed)
        return _wanted(_or_nothing(what, problem, words), received, words, style)

    def meant(listed: str, closest: str) -> str:
        return words.did_you_mean.format(closest=f'"{closest}"', message=expected(listed))

    more = problem.more > 0
    closest = problem.closest
    if closest is None:
        return _listed(expected, problem.allowed, room, more=more)
    if len(meant("…", closest)) > room:
        return _fitted(lambda shown: meant("…", shown), closest, room)
    return _listed(lambda listed: meant(listed, closest), problem.allowed, room, more=more)


def _fitted(say: Callable[[str], str], what: str, room: int) -> str:
    """`say(what)`, with `what` cut to make the whole fit."""
    over = len(say(what)) - room
    return say(cut_at(what, max(1, len(what) - over)) if over > 0 else what)


def _listed(say: Callable[[str], str], members: Sequence[str], room: int, *, more: bool) -> str:
    """`say` as many members as there is room for, or else a part of the first."""
    texts = list(members)
    if more:
        texts.append("…")
    text = say(", ".join(texts))
    if len(text) <= room:
        return text
    left = room - len(say("")) - len(", …")
    count = 0
    for member in members:
        left -= len(member) + (2 if count else 0)
        if left < 0:
            break
        count += 1
    if count:
        return say(", ".join(members[:count]) + ", …")
    rest = ", …" if more or len(members) > 1 else ""
    return _fitted(lambda shown: say(shown + rest), members[0], room)
