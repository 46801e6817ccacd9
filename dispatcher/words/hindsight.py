"""Rejections read back: the fields that a text names, and what was wrong with each (R43).

A session record keeps what the model read, not what the validator said. The texts are made of the
words in the locales, so they are taken apart by them.
"""

import re
from collections.abc import Iterator
from functools import cache

from toolpool.dispatcher.words import locales
from toolpool.dispatcher.words.locales import Locale

_LONGEST_PATH = 120
_BETWEEN_LINES = re.compile(r"; |\n")
_BULLET = re.compile(r"(?:\d{1,3}\. |- )")
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


def fields_named(error: str) -> list[tuple[str, str]]:
    """Paths, with `*` for list indexes, and kinds; `named` where a text does not say which."""
    for name in locales.names():
        words = locales.locale(name)
        for style in sorted(words.head, key=lambda style: -len(words.head[style])):
            if error.startswith(words.head[style]):
                body = error.removeprefix(words.head[style]).removesuffix(words.tail[style])
                return list(_fields(body, words, style))
    return []


def _fields(body: str, words: Locale, style: str) -> Iterator[tuple[str, str]]:
    line = _template(words.line[style])
    for text in _BETWEEN_LINES.split(body):
        found = line.fullmatch(_BULLET.sub("", text, count=1))
        if found is not None and len(found["path"]) <= _LONGEST_PATH:
            path = found["path"].lstrip("/").replace("/", ".")
            yield _INDEX.sub("*", path), _kind(found["message"], words, style)


def _kind(message: str, words: Locale, style: str) -> str:
    if message.startswith(words.required[style]):
        return "required"
    if message.startswith(words.unknown_field[style]):
        return "additionalProperties"
    if _template(words.did_you_mean).match(message) or _before(words.one_of) in message:
        return "enum"
    came = _before(words.got[style])
    return "type" if came and came in message else "named"


def _before(template: str) -> str:
    """What a template begins with."""
    return template.partition("{")[0]


@cache
def _template(template: str) -> re.Pattern[str]:
    """What fits a template: its words, and in the place of each blank something on one line."""
    parts = re.split(r"\{(\w+)\}", template)
    made = [
        re.escape(part) if position % 2 == 0 else f"(?P<{part}>\\S.*?)"
        for position, part in enumerate(parts)
    ]
    return re.compile("".join(made))
