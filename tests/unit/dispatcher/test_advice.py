"""Recommendations: by error type, tool and text, in every language (R12)."""

import pytest

from contract.outcome import Code, Executed
from dispatcher import locales
from dispatcher.advice import recommendations

EN = locales.locale("en").advice


@pytest.mark.parametrize(
    ("name", "code", "error", "executed", "expected"),
    [
        ("t", Code.INVALID_ARGUMENTS, "not found", Executed.NO, ["validation"]),
        ("t", Code.UNKNOWN_TOOL, "Tool 't' not found", Executed.NO, ["unknown_tool"]),
        ("t", Code.LOOP, "again", Executed.NO, ["loop"]),
        ("t", Code.RAISED, "boom", Executed.YES, ["runtime"]),
        ("fs_read", Code.RAISED, "No such file: a", Executed.YES, ["missing", "fs"]),
        ("fs_edit", Code.REPORTED, "text is not there", Executed.YES, ["fs_edit"]),
        ("bash", Code.RAISED, "Permission denied", Executed.YES, ["permission", "bash"]),
        ("http_get", Code.RAISED, "connection refused", Executed.YES, ["connection", "http"]),
        ("t", Code.REPORTED, "429 Too Many Requests", Executed.YES, ["rate"]),
        ("t", Code.EXPIRED, "", Executed.NO, ["exception"]),
    ],
)
def test_the_table(
    name: str, code: Code, error: str, executed: Executed, expected: list[str]
) -> None:
    assert recommendations(name, code, error, executed) == tuple(EN[key] for key in expected)


def test_what_may_have_run_is_to_be_checked_first() -> None:
    told = recommendations("t", Code.TIMEOUT, "timed out", Executed.UNKNOWN, retryable=False)
    assert told == (EN["slow"], EN["unsure"])


def test_the_tool_s_own_win() -> None:
    """R5."""
    assert recommendations("t", Code.RAISED, "x", Executed.YES, own=["Ask me."]) == ("Ask me.",)


@pytest.mark.parametrize("name", locales.names())
def test_every_language_has_them_all(name: str) -> None:
    for code in Code:
        told = recommendations("fs_x", code, "timeout", Executed.UNKNOWN, locale=name)
        assert 1 <= len(told) <= 3
        assert all(text in locales.locale(name).advice.values() for text in told)
