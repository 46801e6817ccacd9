"""Which name or text was probably meant: by the words it is made of, and by near spellings.

A likeness is certain or it is none, because the model does what it is told. So two names are alike
where they have the same words in any order, or where one word of them is misspelt.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

_LONGEST = 64
_COMPARED_AT_MOST = 2_000
"""Pairs of names; each costs a microsecond or so."""
_LOOKED_CLOSER_AT = 50
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_DIGITS = re.compile(r"\d+")

Words = tuple[str, ...]


def pairs(unknown: Sequence[str], missing: Sequence[str]) -> dict[str, str]:
    """The missing name that each unknown one stands for, no name twice.

    The same words come first, then near spellings; where two would do, neither is certain.
    """
    found: dict[str, str] = {}
    if not unknown or not missing:
        return found
    theirs = {name: words_of(name) for name in unknown[:_COMPARED_AT_MOST]}
    each = max(1, _COMPARED_AT_MOST // len(theirs))
    ours = {name: words_of(name) for name in missing[:each]}
    for alike in (_are_the_same, _are_near):
        candidates = {
            name: [other for other in ours if alike(words, ours[other])]
            for name, words in theirs.items()
            if words
        }
        wanted = [other for others in candidates.values() for other in others]
        for name, others in candidates.items():
            if len(others) == 1 and wanted.count(others[0]) == 1:
                found[name] = others[0]
                del theirs[name], ours[others[0]]
    return found


def closest(name: str, candidates: Sequence[str]) -> str | None:
    """The one candidate that was certainly meant; None where none or several may be."""
    return pairs([name], candidates).get(name)


def by_fit(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates, those that resemble the name most first, the others by alphabet."""
    wanted = set(words_of(name))
    ranked = sorted(candidates, key=lambda other: (-len(wanted & set(words_of(other))), other))
    first = ranked[:_LOOKED_CLOSER_AT]
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(name[:_LONGEST].casefold())
    scores = {}
    for other in first:
        matcher.set_seq1(other[:_LONGEST].casefold())
        shared = len(wanted & set(words_of(other)))
        scores[other] = shared + matcher.ratio()
    first.sort(key=lambda other: (-round(scores[other], 3), other))
    return first + ranked[_LOOKED_CLOSER_AT:]


def words_of(name: str) -> Words:
    """The words of a name, however they are joined, folded and without their plural.

    >>> words_of("xAxisTitles"), words_of("x-axis_title")
    (('x', 'axis', 'title'), ('x', 'axis', 'title'))
    """
    if len(name) > _LONGEST:
        return ()
    return tuple(_singular(word.casefold()) for word in _WORD.findall(name))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "siu" else word


def _are_the_same(one: Words, other: Words) -> bool:
    return sorted(one) == sorted(other) or "".join(one) == "".join(other)


def _are_near(one: Words, other: Words) -> bool:
    """Whether they differ by the spelling of one word; numbers are never misspelt."""
    if len(one) == len(other):
        differing = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
        if len(differing) == 1 and _is_misspelt(*differing[0]):
            return True
    joined, their = "".join(one), "".join(other)
    return len(one) != len(other) and _is_misspelt(joined, their)


def _is_misspelt(one: str, other: str) -> bool:
    """Whether one letter is wrong, missing, too many or changed places; two in long words."""
    shorter = min(len(one), len(other))
    if shorter < 4 or abs(len(one) - len(other)) > 2:
        return False
    if _DIGITS.findall(one) != _DIGITS.findall(other):
        return False
    return _distance(one, other) <= (2 if shorter >= 8 else 1)


def _distance(one: str, other: str) -> int:
    """Letters to change; 3 where they are more. Neighbours that changed places are one change."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    a, b = one[start : len(one) - end], other[start : len(other) - end]
    if not a or not b:
        return len(a) + len(b)
    if len(a) > 6 or len(b) > 6:
        return 3
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        earlier, before, row = before, row, [i]
        for j, their in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != their))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == their:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]
