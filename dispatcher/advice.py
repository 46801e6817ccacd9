"""What to do next, by error type, tool and error text (R12); the words are in the locales."""

from collections.abc import Sequence

from contract.outcome import Code, ErrorType, Executed
from dispatcher.locales import locale as language

_AT_MOST = 3

_BY_TEXT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("no such file", "not found", "does not exist"), "missing"),
    (("permission denied", "access denied", "forbidden"), "permission"),
    (("rate limit", "too many requests", "429"), "rate"),
    (("connection refused", "connection reset", "name or service"), "connection"),
    (("timed out", "timeout"), "slow"),
)

_BY_PREFIX: tuple[tuple[str, str], ...] = (
    ("fs_edit", "fs_edit"),
    ("fs_multi_edit", "fs_edit"),
    ("fs_", "fs"),
    ("bash", "bash"),
    ("http_", "http"),
)

_BY_CODE = {Code.UNKNOWN_TOOL: "unknown_tool", Code.LOOP: "loop"}


def recommendations(
    name: str,
    code: Code,
    error: str,
    executed: Executed,
    *,
    own: Sequence[str] = (),
    retryable: bool = True,
    locale: str = "en",
) -> tuple[str, ...]:
    """At most three hints, the most specific first; the tool's own win (R5, R12)."""
    if own:
        return tuple(own)
    texts = language(locale).advice
    chosen: list[str] = []
    lowered = error.lower()
    if code.error_type is not ErrorType.VALIDATION:
        chosen += [key for words, key in _BY_TEXT if any(word in lowered for word in words)][:1]
        chosen += [key for prefix, key in _BY_PREFIX if name.startswith(prefix)][:1]
    if executed is Executed.UNKNOWN and not retryable:
        chosen.append("unsure")
    elif not chosen or code.error_type is ErrorType.EXCEPTION:
        chosen.append(_BY_CODE.get(code, code.error_type.value))
    return tuple(texts[key] for key in dict.fromkeys(chosen))[:_AT_MOST]
