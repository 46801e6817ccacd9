"""Suggests the name or text that was probably meant, by its words and by similar spellings.

Models follow suggestions, so only certain ones are made: two names match if they have the same
words in any order, or if one word is misspelt.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence

_LONGEST = 64
COMPARED_AT_MOST = 2_000
"""Pairs of names; each costs a microsecond or so."""
_LOOKED_CLOSER_AT = 50
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

_LONG_NAME = 8
_SHORTEST_WORD = 4
_NEAR_OTHERS = frozenset(
    re.findall(
        r"\w+",
        """board broad canon cannon casual causal contact contract country county dairy diary desert
        dessert diver driver file filed filled form from later latter moth month place palace
        planed planned present preset quiet quite sacred scared sigh sign signed singed stared
        starred start stat state through thorough trail trial united untied""",
    )
)
"""Real words that differ by one letter."""
_NO_LETTER = re.compile(r"[\W_]+")

Words = tuple[str, ...]


class _Name:
    """A name split into words."""

    __slots__ = ("fixed", "folded", "sorted", "words")

    def __init__(self, name: str) -> None:
        self.words = words_of(name)
        self.sorted = sorted(self.words)
        self.fixed = [word for word in self.sorted if _is_fixed(word)]
        self.folded = _NO_LETTER.sub("", name[:_LONGEST]).casefold()


@functools.lru_cache(maxsize=8_192)
def _known(name: str) -> _Name:
    """A schema's name, cached."""
    return _Name(name)


def pairs(unknown: Sequence[str], missing: Sequence[str]) -> dict[str, str]:
    """The missing name that each unknown one stands for; each name is used once.

    Equal words come first, then similar spellings. Ambiguous matches are dropped.
    """
    found: dict[str, str] = {}
    if not unknown or not missing:
        return found
    theirs = {name: _Name(name) for name in unknown[:COMPARED_AT_MOST]}
    each = max(1, COMPARED_AT_MOST // len(theirs))
    ours = {name: _known(name) for name in missing[:each]}
    for alike in (_are_the_same, _are_near):
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
    """The candidate that was certainly meant; None if no or several candidates are close."""
    return pairs([name], candidates).get(name)


def by_fit(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates by similarity to the name, the others alphabetically."""
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
    """Whether the names differ by the spelling of one word.

    Numbers and single letters are never misspelt: `x` and `y` are different, as are `1` and `2`.
    """
    if one.fixed != other.fixed:
        return False
    differing = [(one.folded, other.folded)]
    if len(one.words) == len(other.words):
        differing += [(a, b) for a, b in zip(one.words, other.words, strict=True) if a != b]
    if len(differing) == 2 and _NEAR_OTHERS.issuperset(differing[1]):
        return False
    is_long = len(one.folded) >= _LONG_NAME or len(other.folded) >= _LONG_NAME
    if is_long and _is_misspelt(*differing[0]):
        return True
    return len(differing) == 2 and _is_misspelt(*differing[1])


def _is_fixed(word: str) -> bool:
    return len(word) == 1 or word.isdecimal()


def _is_misspelt(one: str, other: str) -> bool:
    """Whether a letter is missing or extra, or two neighbours are swapped.

    A different letter makes another word (`receiver`, `received`), and so does a different
    beginning (`assigned`, `unassigned`).
    """
    shorter, longer = sorted((one, other), key=len)
    if len(longer) < _SHORTEST_WORD or len(longer) - len(shorter) > 1:
        return False
    at = next((n for n, letter in enumerate(shorter) if letter != longer[n]), len(shorter))
    if at == 0:
        return False
    if len(shorter) < len(longer):
        return shorter[at:] == longer[at + 1 :]
    return shorter[:at] + shorter[at : at + 2][::-1] + shorter[at + 2 :] == longer
