"""Reads text from tools' objects safely, even if their own methods misbehave.

An exception's `__str__` may raise, exit, or return a subclass of `str`.
"""

import math
import re
import traceback
from collections.abc import Callable
from typing import Any

from toolpool.contract.encoding import printable

_STACK_CHARACTERS = 8_000
_NAME_CHARACTERS = 200
"""The limit for the name of a class or a module, which the model reads."""
_RECOMMENDATIONS, _RECOMMENDATION_CHARACTERS = 20, 1_000
_URL_CHARACTERS = 2_000
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_NAME = type.__dict__["__qualname__"]
_MODULE = type.__dict__["__module__"]


def _as_it_is(text: str) -> str:
    return text


def text_of(value: object, characters: int, hide: Callable[[str], str] = _as_it_is) -> str:
    """At most `characters` characters of `str(value)`; empty if it has no text. Never raises.

    `hide` gets the whole text before it is cut: a truncated secret would not be found.
    """
    try:
        text = hide(str.__str__(str(value)))  # an exact `str`, without methods of a subclass
    except BaseException:  # noqa: BLE001 - it may raise SystemExit
        return ""
    return printable(cut(text, characters))


def name_of(error: BaseException, hide: Callable[[str], str] = _as_it_is) -> str:
    """The module and name of its class. Never raises."""
    module, name = _MODULE.__get__(type(error)), short_name_of(error, hide)
    if type(module) is not str:
        return name
    return f"{printable(hide(module)[:_NAME_CHARACTERS])}.{name}"


def short_name_of(error: BaseException, hide: Callable[[str], str] = _as_it_is) -> str:
    """The name of its class. Never raises."""
    return printable(hide(str.__str__(_NAME.__get__(type(error))))[:_NAME_CHARACTERS])


def stack_of(error: BaseException, hide: Callable[[str], str] = _as_it_is) -> str:
    """The end of its traceback. Never raises."""
    try:
        return printable(hide("".join(traceback.format_exception(error)))[-_STACK_CHARACTERS:])
    except BaseException:  # noqa: BLE001 - a group's members, notes and causes are objects too
        return short_name_of(error)


def recommendations_of(value: Any, hide: Callable[[str], str] = _as_it_is) -> tuple[str, ...]:
    """The recommendations of a tool; empty if they are not a list of texts. Never raises."""
    try:
        given = list(value)[:_RECOMMENDATIONS] if issubclass(type(value), (list, tuple)) else []
    except BaseException:  # noqa: BLE001 - as above
        return ()
    texts = [text_of(item, _RECOMMENDATION_CHARACTERS, hide) for item in given]
    return tuple(text for text in texts if text)


def url_of(value: Any, hide: Callable[[str], str] = _as_it_is) -> str | None:
    """A URL that may be shown; None if it is invalid or too long. Never raises."""
    text = text_of(value, _URL_CHARACTERS + 1, hide) if issubclass(type(value), str) else ""
    return text if len(text) <= _URL_CHARACTERS and _URL.fullmatch(text) else None


def seconds_of(value: Any) -> float | None:
    """A finite number of seconds, 0 or more; None for anything else. Never raises."""
    try:
        seconds = float(value) if issubclass(type(value), (int, float)) else math.nan
    except BaseException:  # noqa: BLE001 - as above, and integers may be too large
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def cut(text: str, characters: int) -> str:
    """`text`, or its start with an ellipsis."""
    return text if len(text) <= characters else text[: characters - 1] + "…"
