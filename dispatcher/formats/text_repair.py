"""Repairs arguments that are not strict JSON but certainly mean one object.

The rule: text is repaired only if its own grammar leaves one reading, and every character of it is
accounted for. That grammar is JSON with common additions of other notations: a Markdown fence
around the one object, a comma before a closing bracket, comments, strings in single quotes, plain
words as keys, `True`, `False` and `None`, line breaks and tabs inside a string, `\\'`, an object
that was encoded twice. Nothing is ever closed, quoted or cut: a missing quote, bracket or comma, a
second value, a bare word as a value, an unknown escape or number form is refused, because its
meaning would be a guess.
"""

import json
import re
from typing import Any

from toolpool.dispatcher.formats.arguments import Unacceptable, loads

_LONGEST = 256 * 1024
"""Longer texts are only repaired as far as the C parser accepts them."""

_BACKTICKS = re.compile(r"`{3,}")
_LANGUAGE = re.compile(r"\Ajson[5c]?\b\s*", re.IGNORECASE)
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<double>"(?:[^"\\]|\\.)*")
    |(?P<single>'(?:[^'\\]|\\.)*')
    |(?P<comment>/\*.*?\*/|//[^\n]*(?=\n))
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[A-Za-z_$][\w$]*)
    |(?P<mark>[{}\[\]:,])
    """,
    re.DOTALL | re.VERBOSE,
)
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_RAW = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def repaired(text: str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """The one object that `text` certainly means, and the repairs; None if it is uncertain.

    The repairs are keys of a locale's `text_repairs`.
    """
    done: dict[str, None] = {}
    inner = _unfenced(text.removeprefix("\ufeff").strip(), done)
    if inner is None:
        return None
    try:
        value = _read(inner, done)
        if isinstance(value, str) and value.lstrip()[:1] == "{":
            done["twice"] = None
            value = loads(value)
    except (ValueError, RecursionError, Unacceptable):
        return None
    return (value, tuple(done) or ("space",)) if isinstance(value, dict) else None


def _unfenced(text: str, done: dict[str, None]) -> str | None:
    """The text between the outermost fences; None if anything but prose is around them."""
    runs = list(_BACKTICKS.finditer(text))
    if not runs or (text[:1] in ("{", '"') and not text.endswith("```")):
        return text
    first, last = runs[0], runs[-1]
    if text.startswith("{") and last.end() == len(text):
        done["fence"] = None
        return text[: last.start()].rstrip()
    around = text[: first.start()] + text[last.end() :]
    if re.search(r"[{}\[\]]", around):
        return None
    done["around" if around.strip() else "fence"] = None
    return _LANGUAGE.sub("", text[first.end() : last.start()].strip(), count=1)


def _read(text: str, done: dict[str, None]) -> Any:
    try:
        return loads(text)
    except json.JSONDecodeError:
        pass
    try:
        value = loads(text, control_characters=True)
    except json.JSONDecodeError:
        pass
    else:
        _note_control(text, done)
        return value
    if text.startswith('{\\"'):
        unescaped = json.loads(f'"{text}"')
        done["escaped"] = None
        return loads(unescaped)
    if len(text) > _LONGEST:
        raise ValueError("too long to be repaired")
    return loads(_strict(text, done))


def _note_control(text: str, done: dict[str, None]) -> None:
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", text):
        raise ValueError("a control character")
    done["breaks"] = None


def _strict(text: str, done: dict[str, None]) -> str:
    """`text` as strict JSON, token by token. Raises ValueError for an unknown token."""
    made: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"no token at {at}")
        at = found.end()
        kind, token = found.lastgroup, found.group()
        if kind == "space":
            continue
        if kind == "comment":
            done["comments"] = None
            continue
        if kind == "mark" and token in ("}", "]") and made and made[-1] == ",":
            if len(made) < 2 or made[-2] in ("{", "[", ",", ":"):
                raise ValueError("a comma after nothing")
            made.pop()
            done["comma"] = None
        elif kind == "double":
            token = _string(token[1:-1], '"', done)
        elif kind == "single":
            done["single"] = None
            token = _string(token[1:-1], "'", done)
        elif kind == "word":
            token = _word(token, text, at, made, done)
        made.append(token)
    return " ".join(made)  # two numbers side by side must not become one


def _word(word: str, text: str, at: int, made: list[str], done: dict[str, None]) -> str:
    if made and made[-1] in ("{", ",") and re.match(r"\s*:", text[at : at + 16]):
        done["keys"] = None
        return f'"{word}"'
    plain = _WORDS.get(word.lower())
    if plain is None or word not in (word.lower(), word.title(), word.upper()):
        raise ValueError("a bare word")
    if word != plain:
        done["words"] = None
    return plain


def _string(body: str, quote: str, done: dict[str, None]) -> str:
    """The content of a string, in either kind of quotes, as a JSON string."""

    def escaped(found: re.Match[str]) -> str:
        if found[1] != "'":
            return found[0]  # an escape that JSON lacks is refused when the whole text is read
        done["apostrophe"] = None
        return "'"

    body = _ESCAPE.sub(escaped, body)
    if quote == "'":
        body = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', body)
    for raw, written in _RAW.items():
        if raw in body:
            done["breaks"] = None
            body = body.replace(raw, written)
    return f'"{body}"'
