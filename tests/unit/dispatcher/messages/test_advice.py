"""Recommendations: by error type, tool and text, in every language (R12)."""

import pytest

from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code, ErrorType, Executed, failure
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.classifier import classified
from toolpool.dispatcher.messages import locales
from toolpool.dispatcher.messages.advice import recommendations
from toolpool.dispatcher.messages.wording import Wording

EN = locales.locale("en").advice


@pytest.mark.parametrize(
    ("name", "code", "error", "executed", "expected"),
    [
        # What the error says is what to do: nothing is added.
        ("t", Code.INVALID_ARGUMENTS, "not found", Executed.NO, []),
        ("t", Code.UNKNOWN_TOOL, "Tool 't' not found", Executed.NO, []),
        ("t", Code.LOOP, "again", Executed.NO, []),
        ("t", Code.REPORTED, "text is not there", Executed.YES, []),
        ("t", Code.RAISED, "boom", Executed.YES, ["runtime"]),
        ("fs_read", Code.RAISED, "No such file: a", Executed.YES, ["missing", "fs"]),
        ("fs_edit", Code.REPORTED, "text is not there", Executed.YES, ["fs_edit"]),
        ("bash", Code.RAISED, "Permission denied", Executed.YES, ["permission", "bash"]),
        ("http_get", Code.RAISED, "connection refused", Executed.YES, ["connection", "http"]),
        ("t", Code.REPORTED, "429 Too Many Requests", Executed.YES, ["rate"]),
        ("t", Code.EXPIRED, "", Executed.NO, ["exception"]),
        ("t", Code.EXPIRED, "changed", Executed.NO, ["changed"]),
        ("t", Code.RAISED, "changed", Executed.YES, ["runtime"]),
        ("t", Code.DENIED, "no timeout was agreed", Executed.NO, ["denied"]),
        ("t", Code.CANCELLED, "", Executed.NO, ["cancelled"]),
        ("bash", Code.RAISED, "boom", Executed.YES, ["bash"]),
        ("bash_run", Code.RAISED, "boom", Executed.YES, ["bash"]),
        ("bashful", Code.RAISED, "boom", Executed.YES, ["runtime"]),
        ("https", Code.RAISED, "boom", Executed.YES, ["runtime"]),
        ("fs_editor", Code.RAISED, "boom", Executed.YES, ["fs"]),
    ],
)
def test_the_table(
    name: str, code: Code, error: str, executed: Executed, expected: list[str]
) -> None:
    assert recommendations(name, code, error, executed) == tuple(EN[key] for key in expected)


def test_what_may_have_run_is_not_told_to_be_sent_again() -> None:
    """The error itself says to look at its effects first."""
    told = recommendations("t", Code.TIMEOUT, "timed out", Executed.UNKNOWN, retryable=False)
    assert told == (EN["slow"],)
    assert recommendations("t", Code.WORKER_LOST, "", Executed.UNKNOWN, retryable=False) == ()
    assert recommendations("t", Code.WORKER_LOST, "", Executed.UNKNOWN) == (EN["exception"],)


def test_the_tool_s_own_win() -> None:
    """R5."""
    assert recommendations("t", Code.RAISED, "x", Executed.YES, own=["Ask me."]) == ("Ask me.",)


@pytest.mark.parametrize("name", locales.names())
def test_every_language_has_them_all(name: str) -> None:
    for code in Code:
        told = recommendations("fs_x", code, "timeout", Executed.UNKNOWN, locale=name)
        assert len(told) <= 3
        assert told or code.error_type is ErrorType.VALIDATION
        assert all(text in locales.locale(name).advice.values() for text in told)


@pytest.mark.parametrize("locale", locales.names())
def test_the_name_of_a_tool_is_no_symptom(locale: str) -> None:
    """Nor are the words that say what became of its call, in whichever language."""
    call = ToolCall(index=0, id="c", name="forbidden: connection refused", arguments={})
    spec = ToolSpec(name=call.name, effects=Effects.READ)
    texts = locales.locale(locale).advice
    for code, key in ((Code.RAISED, "runtime"), (Code.TIMEOUT, "slow")):
        told = classified(
            call,
            spec,
            failure(code, "boom" if code is Code.RAISED else "", Executed.YES),
            timeout=1.0,
            duration=1.0,
            wording=Wording(locale=locale),
        ).recommendations
        assert told[0] == texts[key]
