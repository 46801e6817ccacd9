"""Masks the secrets that a call was given in its results, errors and logs.

Text is searched as it is and with its escapes decoded (JSON, URL and Python, up to four levels). A
value is also found in base64, even if that is broken into lines, and a multi-line value by each of
its long lines. This is best effort: a secret that a tool transforms in another way, such as a hash
or a half, is not found.
"""

import base64
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from toolpool.contract import encoding

LEAST_CHARACTERS = 6
"""Shorter values are not masked: they would match everywhere."""
_LEAST_LINE, _LINES_AT_MOST = 20, 200
_TIMES = 4
"""How many levels of escapes are decoded: three that a tool adds, and that of the result's JSON."""

_HEX = "[0-9A-Fa-f]"


def _bytes_after(mark: str) -> str:
    """A pattern for a character as one byte or in UTF-8, each byte in hexadecimal after a mark."""
    more = f"{mark}[89ABab]{_HEX}"
    return (
        f"{mark}[CDcd]{_HEX}{more}|{mark}[Ee]{_HEX}{more}{more}|{mark}[Ff][0-7]{more}{more}{more}|"
        f"{mark}{_HEX}{{2}}"
    )


_BACKSLASH = (
    rf"{_bytes_after(re.escape(chr(92)) + 'x')}|"
    rf"\\u[Dd][89ABab]{_HEX}{{2}}\\u[Dd][C-Fc-f]{_HEX}{{2}}|\\u{_HEX}{{4}}|\\U{_HEX}{{8}}|"
    r"\\[\\/\"'bfnrt]"
)
_LINE_END = r"(?<=[\w+/-])\r?\n(?=[\w+/-])"
_NOT_OF_URLS = f"{_BACKSLASH}|{_LINE_END}"
_ESCAPES = re.compile(f"{_bytes_after('%')}|{_NOT_OF_URLS}"), re.compile(_NOT_OF_URLS)
"""All escapes, and all but URLs', since in JSON a literal % may be followed by two digits.

A line's end inside base64 decodes to nothing.
"""
_LETTERS = {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", '"': '"', "'": "'"
}  # fmt: skip

_active: "list[Redaction]" = []
"""The redactions of the running calls, for the log.

They are changed in single steps without a lock, because a tool may fork while another thread holds
the lock.
"""


class Redaction:
    """Replaces values, given by name, with `[secret NAME]`.

    Within `with redaction:` it also applies to all logs of this process.
    """

    __slots__ = ("_marks", "_pattern", "_spellings")

    def __init__(self, values: Mapping[str, str]) -> None:
        self._marks: dict[str, str] = {}
        for name, value in values.items():
            for spelling in _spellings_of(value):
                if len(spelling) >= LEAST_CHARACTERS:
                    self._marks.setdefault(spelling.replace("+", " "), f"[secret {name}]")
        self._spellings = sorted(self._marks, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._spellings)))

    def text(self, text: str) -> str:
        """`text` without the values."""
        if not self._spellings or not self._is_in(text):
            return text
        pieces: list[str] = []
        end = 0
        for first, last, mark in sorted(self._find(text)):
            if first >= end:
                pieces += (text[end:first], mark)
            end = max(end, last)
        return "".join((*pieces, text[end:]))

    def json(self, encoded: bytes) -> bytes:
        """A JSON document without the values, also where a value is a key or a number."""
        if not self._spellings or not self._is_in(encoded.decode(errors="replace")):
            return encoded
        return encoding.encode(self._within(encoding.decode(encoded)))

    def data(self, value: Any) -> Any:
        """JSON data without the values."""
        return self._within(value) if self._spellings else value

    def _is_in(self, text: str) -> bool:
        if self._is_plainly_in(text):
            return True
        if not _may_be_escaped(text):
            return False
        return any(self._is_in_decoded(text, escape) for escape in _ESCAPES)

    def _is_in_decoded(self, text: str, escape: re.Pattern[str]) -> bool:
        for _ in range(_TIMES):
            escaped, text = text, _unescaped(text, escape)
            if text == escaped:
                return False
            if self._is_plainly_in(text):
                return True
        return False

    def _is_plainly_in(self, text: str) -> bool:
        spaced = text.replace("+", " ")  # forms encode a space as +
        return any(spelling in spaced for spelling in self._spellings)

    def _find(self, text: str) -> list[tuple[int, int, str]]:
        """The positions of values in a text (start, end) and their replacements."""
        return [place for escape in _ESCAPES for place in self._find_decoded(text, escape)]

    def _find_decoded(self, text: str, escape: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
        layers: list[_Decoded] = []
        while True:
            for match in self._pattern.finditer(text.replace("+", " ")):
                first, last = match.span()
                for layer in reversed(layers):
                    first, last = layer.span(first, last)
                yield first, last, self._marks[match[0]]
            if len(layers) == _TIMES:
                return
            layers.append(_Decoded(text, escape))
            text = layers[-1].text

    def _within(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self._within(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._within(inner) for inner in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            said = encoding.encode(value).decode()
            shown = self.text(said)
            return value if shown == said else shown
        return value

    def __enter__(self) -> Self:
        if self._spellings:
            _active.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._spellings:
            _active.remove(self)


NOTHING = Redaction({})
"""Masks nothing, at no cost."""


def are_in_use() -> bool:
    """Whether a call with secrets runs in this process."""
    return bool(_active)


def without_secrets_in_use(text: str) -> str:
    """`text` without the secrets of the calls that run in this process."""
    if _active:
        for redaction in tuple(_active):
            text = redaction.text(text)
    return text


def _may_be_escaped(text: str) -> bool:
    return "%" in text or "\\" in text or "\n" in text


def _unescaped(text: str, escape: re.Pattern[str]) -> str:
    """A text with its escapes decoded once, without recording positions."""
    if not _may_be_escaped(text):
        return text
    return escape.sub(lambda found: _decoded(found[0]), text)


class _Decoded:
    """A text with its escapes decoded once, and the original position of each part."""

    __slots__ = ("_decoded_at", "_escaped_at", "text")

    def __init__(self, escaped: str, escape: re.Pattern[str]) -> None:
        pieces: list[str] = []
        self._decoded_at, self._escaped_at = [0], [0]
        """Where each piece begins; a piece without escapes has the same length in both texts."""
        length = end = 0
        for match in escape.finditer(escaped):
            for piece, to in ((escaped[end : match.start()], match.start()), (None, match.end())):
                pieces.append(_decoded(match[0]) if piece is None else piece)
                length += len(pieces[-1])
                self._decoded_at.append(length)
                self._escaped_at.append(to)
            end = match.end()
        pieces.append(escaped[end:])
        self.text = "".join(pieces)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The corresponding range of the escaped text; `last` is exclusive."""
        return self._at(first), self._at(last - 1, is_last=True)

    def _at(self, decoded: int, *, is_last: bool = False) -> int:
        piece = bisect_right(self._decoded_at, decoded) - 1
        begin, escaped = self._decoded_at[piece], self._escaped_at[piece]
        if piece + 1 < len(self._decoded_at):
            next_escaped = self._escaped_at[piece + 1]
            if self._decoded_at[piece + 1] - begin != next_escaped - escaped:
                return next_escaped if is_last else escaped
        return escaped + decoded - begin + is_last


def _decoded(escape: str) -> str:
    """The character of an escape; the escape itself if it is invalid; nothing for a line's end."""
    if escape[-1] == "\n":
        return ""
    if escape[0] == "%" or escape[1] == "x":
        raw = bytes.fromhex(escape.replace("%", "").replace("\\x", ""))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")
    if escape[1] not in "uU":
        return _LETTERS.get(escape[1], escape[1])
    codes = [int(code, 16) for code in re.split(r"\\[uU]", escape)[1:]]
    if len(codes) == 2:
        return chr(0x10000 + ((codes[0] - 0xD800) << 10) + codes[1] - 0xDC00)
    return chr(codes[0]) if codes[0] <= 0x10FFFF else escape


def _spellings_of(value: str) -> Iterator[str]:
    yield value
    yield value.strip()
    value = encoding.printable(value)
    yield value
    yield from _in_base64(value.encode())
    lines = value.splitlines()
    if len(lines) > 1:
        for line in lines[:_LINES_AT_MOST]:
            if len(line) >= _LEAST_LINE and not line.startswith("-----"):
                yield line


def _in_base64(value: bytes) -> Iterator[str]:
    """The parts of a value's base64 that its neighbours cannot change (`user:password`)."""
    for before, unsure in ((0, 0), (1, 2), (2, 3)):
        whole = (before + len(value)) * 8 // 6
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            spelling = alphabet(bytes(before) + value).decode()[unsure:whole]
            if len(spelling) > LEAST_CHARACTERS:
                yield spelling
