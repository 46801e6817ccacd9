"""Which name or text was probably meant: by the words it is made of, and by near spellings.

A likeness is certain or it is none, because the model does what it is told. So two names are alike
where they have the same words in any order, where one word of them is misspelt, or where one is
the other with words left out and nothing else can be meant.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

_LONGEST = 64
_COMPARED_AT_MOST = 2_000
"""Pairs of names; each costs a microsecond or so."""
_LOOKED_CLOSER_AT = 50
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

_LONG_NAME = 8
_NO_LETTER = re.compile(r"[\W_]+")

Words = tuple[str, ...]


class _Name:
    """A name, taken apart."""

    __slots__ = ("fixed", "folded", "sorted", "words")

    def __init__(self, name: str) -> None:
        self.words = words_of(name)
        self.sorted = sorted(self.words)
        self.fixed = [word for word in self.sorted if _is_fixed(word)]
        self.folded = _NO_LETTER.sub("", name[:_LONGEST]).casefold()


def pairs(
    unknown: Sequence[str], missing: Sequence[str], needed: Collection[str] = ()
) -> dict[str, str]:
    """The missing name that each unknown one stands for, no name twice.

    The same words come first, then near spellings, then a part of the words, of those names that
    are `needed`: `customer` for `customer_id`. Where two would do, neither is certain.
    """
    found: dict[str, str] = {}
    if not unknown or not missing:
        return found
    theirs = {name: _Name(name) for name in unknown[:_COMPARED_AT_MOST]}
    each = max(1, _COMPARED_AT_MOST // len(theirs))
    ours = {name: _Name(name) for name in missing[:each]}
    for alike in (_are_the_same, _are_near, _is_part):
        if alike is _is_part:
            ours = {name: our for name, our in ours.items() if name in needed}
        candidates = {
            name: [other for other in ours if alike(their, ours[other])]
            for name, their in theirs.items()
            if their.words
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
    return word[:-1] if len(word) > 2 and word.endswith("s") and word[-2] not in "siu" else word


def _are_the_same(one: _Name, other: _Name) -> bool:
    return one.sorted == other.sorted or one.folded == other.folded


def _are_near(one: _Name, other: _Name) -> bool:
    """Whether they differ by the spelling of one word.

    Numbers and single letters are never misspelt: `x` and `y` are two things, as are `1` and `2`.
    """
    if one.fixed != other.fixed:
        return False
    if len(one.words) == len(other.words):
        differing = [(a, b) for a, b in zip(one.words, other.words, strict=True) if a != b]
        if len(differing) == 1 and _is_misspelt(*differing[0]):
            return True
    shorter, longer = sorted((len(one.folded), len(other.folded)))
    if longer < _LONG_NAME or longer - shorter > 1 or _distance(one.folded, other.folded) > 1:
        return False
    return shorter < longer or sorted(one.folded) == sorted(other.folded)


def _is_part(one: _Name, other: _Name) -> bool:
    """Whether one is the other with words left out, and not only with a syllable left."""
    words = set(one.words)
    return words < set(other.words) and any(len(word) > 3 for word in words)


def _is_fixed(word: str) -> bool:
    return len(word) == 1 or word.isdecimal()


def _is_misspelt(one: str, other: str) -> bool:
    """Whether a letter is missing, too many or changed places; in longer words, is another one."""
    shorter, longer = sorted((len(one), len(other)))
    if longer < 4 or longer - shorter > 2:
        return False
    distance = _distance(one, other)
    if shorter == longer < 6 and sorted(one) != sorted(other):
        return False
    return distance <= (2 if shorter >= 8 else 1)


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
