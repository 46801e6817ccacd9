"""Hides the secrets that a call was given in what is said of it afterwards.

Exact occurrences, and the common ways to spell a value: as JSON, in a URL, as Python shows it, in
base64, and each long line of one that has several. It is a net, not a wall: what a tool makes of a
secret in another way, half of it or its hash, is not known again.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, quote_plus

from toolpool.contract import encoding

LEAST_CHARACTERS = 6
"""What is shorter is not hidden: it would be found in everything."""
_ESCAPE = re.compile("%[0-9A-F]{2}")
_LEAST_LINE, _LINES_AT_MOST = 20, 200

_active: "list[Redaction]" = []
"""Of the calls that run in this process, for its log. Changed in single steps, without a lock: a
fork of a tool may come by while another thread holds one."""


class Redaction:
    """Puts `[secret NAME]` in the place of values, which are given by name.

    In `with redaction:` it holds for all that this process logs as well.
    """

    __slots__ = ("_encoded", "_marks", "_spellings")

    def __init__(self, values: Mapping[str, str]) -> None:
        self._marks: dict[str, str] = {}
        for name, value in values.items():
            for spelling in _spellings_of(value):
                if len(spelling) >= LEAST_CHARACTERS:
                    self._marks.setdefault(spelling, f"[secret {name}]")
        self._spellings = sorted(self._marks, key=len, reverse=True)
        self._encoded = [encoding.encode(spelling)[1:-1] for spelling in self._spellings]

    def text(self, text: str) -> str:
        """`text` without the values."""
        if not self._spellings or not any(spelling in text for spelling in self._spellings):
            return text
        pattern = "|".join(map(re.escape, self._spellings))
        return re.sub(pattern, lambda found: self._marks[found[0]], text)

    def json(self, encoded: bytes) -> bytes:
        """A JSON document without the values, also where one is a key or a number."""
        if not self._encoded or not any(spelling in encoded for spelling in self._encoded):
            return encoded
        return encoding.encode(self._within(encoding.decode(encoded)))

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
"""Hides nothing, at no cost."""


def are_in_use() -> bool:
    """Whether a call with secrets runs in this process."""
    return bool(_active)


def without_secrets_in_use(text: str) -> str:
    """`text` without the secrets of the calls that run in this process."""
    if _active:
        for redaction in tuple(_active):
            text = redaction.text(text)
    return text


def _spellings_of(value: str) -> Iterator[str]:
    yield value
    yield value.strip()
    value = encoding.printable(value)
    yield encoding.encode(value)[1:-1].decode()
    yield json.dumps(value)[1:-1]
    yield ascii(value)[1:-1]
    yield repr(value)[1:-1]
    yield repr(value.encode())[2:-1]
    for spelling in (quote(value), quote(value, safe=""), quote_plus(value)):
        yield spelling
        yield _ESCAPE.sub(lambda found: found[0].lower(), spelling)
    yield from _in_base64(value.encode())
    lines = value.splitlines()
    if len(lines) > 1:
        for line in lines[:_LINES_AT_MOST]:
            if len(line) >= _LEAST_LINE and not line.startswith("-----"):
                yield line


def _in_base64(value: bytes) -> Iterator[str]:
    """What base64 makes of it for certain, whatever stands before and behind: `user:password`."""
    for before, unsure in ((0, 0), (1, 2), (2, 3)):
        whole = (before + len(value)) * 8 // 6
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            spelling = alphabet(bytes(before) + value).decode()[unsure:whole]
            if len(spelling) > LEAST_CHARACTERS:
                yield spelling
