"""What to do next, by error type, tool and error text; the words are in the locales."""

from collections.abc import Sequence

from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.dispatcher.words.feedback import OVER_RATE
from toolpool.dispatcher.words.locales import locale as language
from toolpool.dispatcher.words.symptoms import symptom

_AT_MOST = 3

_BY_TOOL = {"fs_edit": "fs_edit", "fs_multi_edit": "fs_edit", "bash": "bash"}
_BY_FAMILY = {"fs": "fs", "bash": "bash", "http": "http"}

_BY_CODE = {
    Code.CANCELLED: "cancelled",
    Code.DENIED: "denied",
}


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
    """At most three hints, the most specific first; the tool's own win.

    There are none where they would only repeat what the error says.

    `error` is the tool's own text: in a sentence about it the tool's name might say something else.
    """
    if own:
        return tuple(own)
    texts = language(locale).advice
    chosen: list[str] = []
    if code.error_type is not ErrorType.VALIDATION:
        chosen += [key for key in (_cause(code, error), _about(name)) if key is not None]
    if not _says_enough(code, executed, retryable=retryable) and (
        not chosen or code.error_type is ErrorType.EXCEPTION
    ):
        chosen.append(_by_code(code, error))
    return tuple(texts[key] for key in dict.fromkeys(chosen))[:_AT_MOST]


def _says_enough(code: Code, executed: Executed, *, retryable: bool) -> bool:
    """Whether the error itself says what to do: to correct the call, or to look at its effects."""
    may_have_run = executed is Executed.UNKNOWN and not retryable
    return may_have_run or code.error_type in (ErrorType.VALIDATION, ErrorType.LOGICAL)


def _by_code(code: Code, error: str) -> str:
    if code is Code.EXPIRED and error == "changed":  # what was sent fits no worker any more
        return error
    if code is Code.OVERLOADED and error.startswith(OVER_RATE):
        return "rate"
    return _BY_CODE.get(code, code.error_type.value)


def _cause(code: Code, error: str) -> str | None:
    if code in _BY_CODE:
        return _BY_CODE[code]
    return "slow" if code is Code.TIMEOUT else symptom(error)


def _about(name: str) -> str | None:
    return _BY_TOOL.get(name) or _BY_FAMILY.get(name.partition("_")[0] if "_" in name else "")
