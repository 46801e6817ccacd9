"""Masks passwords in URLs and in libraries' messages."""

import re
from urllib.parse import unquote

_SERVERS = re.compile(r";(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_QUERY = re.compile(r"([?&][^=&;]*(?:password|secret|token)[^=&;]*=)([^&;]+)", re.IGNORECASE)


def without_password(url: str) -> str:
    """A URL, which may name several servers, without its passwords."""
    return _taken_apart(url)[0]


def without_passwords_of(url: str | None, text: str) -> str:
    """`text`, such as an error message, without the passwords in `url`."""
    for password in sorted(_taken_apart(url or "")[1], key=len, reverse=True):
        text = text.replace(password, "***")
    return text


def _taken_apart(url: str) -> tuple[str, set[str]]:
    shown, passwords = [], set()
    for server in _SERVERS.split(url):
        scheme, separator, rest = server.partition("://")
        user, at, place = rest.rpartition("@")  # a password may contain an unescaped @
        name, colon, password = user.partition(":")
        if at and colon and not name.startswith("/"):
            passwords |= {password, unquote(password)} - {""}
            rest = f"{name}:***@{place}" if password else rest
        for found in _QUERY.finditer(rest):
            passwords |= {found[2], unquote(found[2])}
        shown.append(scheme + separator + _QUERY.sub(r"\1***", rest))
    return ";".join(shown), passwords
