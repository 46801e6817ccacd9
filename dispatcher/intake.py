"""From whatever a caller hands in to the calls in it (R13–R18)."""

from typing import Any

from contract import encoding
from dispatcher import arguments
from dispatcher.formats import FORMATS, NotAResponse, Response, detect
from dispatcher.formats.blocks import Reader

ASK_FOR_VALID = "Please try again with valid format."


class Unreadable(Exception):
    """Raised when a response holds no calls that could be answered one by one (R14).

    `format` is the provider whose form the answer should have.
    """

    def __init__(self, reason: str, format: str = "bare") -> None:
        super().__init__(reason)
        self.format = format


def read(
    response: Any, *, turn: str | None = None, format: str | None = None, max_bytes: int
) -> Response:
    """The calls in `response`: JSON text, plain data, or an SDK's response object.

    Raises `Unreadable`.
    """
    plain, doubled_keys = _plain(response)
    name = format if format not in (None, "auto") else detect(plain)
    if name is None:
        raise Unreadable("the response is of no known provider's form")
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: use one of {', '.join(FORMATS)}")
    module = FORMATS[name]
    response_id, model = module.identity(plain) if isinstance(plain, dict) else (None, None)
    turn = turn or (response_id if isinstance(response_id, str) else None)
    reader = Reader(turn or _stable_name(plain), max_bytes, doubled_keys)
    try:
        calls = module.parse(plain, reader)
    except (NotAResponse, AttributeError) as error:
        raise Unreadable(str(error), name) from None
    return Response(
        format=name,
        calls=tuple(calls),
        id=turn,
        model=model if isinstance(model, str) else None,
    )


def _plain(response: Any) -> tuple[Any, bool]:
    """Plain data, and whether an object in it had a key twice."""
    if isinstance(response, (str, bytes)):
        try:
            return arguments.load(response)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"the response is not JSON: {type(error).__name__}") from None
    dump = getattr(response, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_unset=True), False
    if isinstance(response, (list, tuple)):
        return [
            _plain(item)[0] if hasattr(item, "model_dump") else item for item in response
        ], False
    return response, False


def _stable_name(plain: Any) -> str:
    """A name for a response without one: the same response has the same (R15)."""
    try:
        return f"turn-{encoding.digest(plain)[:12]}"
    except (TypeError, ValueError, RecursionError):
        return "turn-unnamed"
