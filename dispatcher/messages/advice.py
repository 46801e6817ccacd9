"""Recommendations by error type, tool and error text; the texts are in the locales."""

from collections.abc import Sequence

from toolpool.contract.outcome import ARGUMENTS_DIFFER, Code, ErrorType, Executed
from toolpool.dispatcher.messages.error_patterns import symptom
from toolpool.dispatcher.messages.locales import locale as language
from toolpool.dispatcher.outcomes import OVER_RATE

_AT_MOST = 3

_BY_TOOL = {"fs_edit": "fs_edit", "fs_multi_edit": "fs_edit", "bash": "bash"}
_BY_FAMILY = {"fs": "fs", "bash": "bash", "http": "http"}

_BY_CODE = {Code.CANCELLED: "cancelled", Code.DENIED: "denied", Code.BAD_RESULT: "bad_result"}
_REPEATS = {"rate", "connection"}
"""Hints to repeat the call later."""


def recommendations(
    name: str,
    code: Code,
    error: str,
    executed: Executed,
    *,
    own: Sequence[str] = (),
    retryable: bool = True,
    rerunnable: bool = True,
    locale: str = "en",
) -> tuple[str, ...]:
    """At most three hints, the most specific first; the tool's own replace the generated ones.

    Hints that would only repeat the error are left out, as are hints that suggest a call that may
    not be repeated. If the failed tool is not `rerunnable`, one hint says to check for effects
    first.

    `error` is the tool's own text; the tool's name is not matched, as it might look like a symptom.
    """
    words = language(locale)
    may_have_run = executed is not Executed.NO and not rerunnable
    asks_to_check = may_have_run and code in (Code.RAISED, Code.BAD_RESULT)
    check = (words.may_have_run,) if asks_to_check else ()
    if own:
        return (*own, *check)
    keys = _keys(name, code, error, retryable=retryable)
    if not keys and not may_have_run and code.error_type is ErrorType.RUNTIME:
        keys = ["runtime"]
    return (*(words.advice[key] for key in dict.fromkeys(keys)), *check)[:_AT_MOST]


def _keys(name: str, code: Code, error: str, *, retryable: bool) -> list[str]:
    """The hints of the table, by code, error text and tool."""
    if error == ARGUMENTS_DIFFER and code is Code.DENIED:  # they may be written differently
        return []
    if code in _BY_CODE:
        return [_BY_CODE[code]]
    if code.error_type is ErrorType.VALIDATION:
        return []
    if code.error_type is ErrorType.EXCEPTION:
        return [_of_pool(code, error)] if retryable else []
    cause = "slow" if code is Code.TIMEOUT else symptom(error)
    if cause in _REPEATS and not retryable:
        cause = None
    return [key for key in (cause, _about(name)) if key is not None]


def _of_pool(code: Code, error: str) -> str:
    if code is Code.EXPIRED and error == "changed":  # no worker accepts the sent arguments any more
        return error
    if code is Code.OVERLOADED and error.startswith(OVER_RATE):
        return "rate"
    return code.error_type.value


def _about(name: str) -> str | None:
    return _BY_TOOL.get(name) or _BY_FAMILY.get(name.partition("_")[0] if "_" in name else "")
