"""From an outcome to the result a caller sees, as a table; no I/O (R2, R6–R8, R11)."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code, ErrorType, Executed, Outcome, failure
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.problem import Problem
from toolpool.contract.spec import Effects, RunIn, ToolSpec
from toolpool.dispatcher.classifier import Wording, classified, rejected
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.locales import locale
from toolpool.dispatcher.outcomes import not_queued, server_full, unreachable

CALL = ToolCall(index=0, id="c-1", name="t", arguments={})
UNDECLARED = ToolSpec(name="t")
READ = ToolSpec(name="t", effects=Effects.READ)
WRITE = ToolSpec(name="t", effects=Effects.WRITE)
IDEMPOTENT = ToolSpec(name="t", effects=Effects.WRITE, idempotent=True)


def result_of(outcome: Outcome, spec: ToolSpec = UNDECLARED, call: ToolCall = CALL) -> ToolResult:
    return classified(call, spec, outcome, timeout=5, duration=1.5, wording=Wording())


CHECK = locale("en").may_have_run
REPEATS = {locale("en").advice[key] for key in ("exception", "rate", "connection")}
ERRORS = ("the reason", "429 too many requests", "connection refused", "timed out")


@pytest.mark.parametrize("run_in", RunIn)
@pytest.mark.parametrize("declared", [UNDECLARED, READ, WRITE, IDEMPOTENT])
@pytest.mark.parametrize("code", Code)
def test_no_ending_contradicts_itself(code: Code, declared: ToolSpec, run_in: RunIn) -> None:
    """Type, `retryable`, error and recommendations of every code, effect and run mode (R6, R8).

    `retryable: false` stands beside no hint to repeat the call, "check before you repeat it" beside
    none that it is no fault of the call, and is said once, of whatever may have had effects.
    """
    for name, executed, error in product(("t", "bash", "http_get"), Executed, ERRORS):
        spec = replace(declared, name=name, run_in=run_in)
        result = result_of(failure(code, error, executed), spec, replace(CALL, name=name))
        assert (result.ok, result.code, result.error_type) == (False, code, code.error_type)
        assert result.executed is executed
        assert result.error
        may_repeat = spec.rerunnable or executed is Executed.NO
        expected = {
            ErrorType.VALIDATION: False,
            ErrorType.RUNTIME: may_repeat or spec.effects is None,
            ErrorType.LOGICAL: True,
            ErrorType.ABORTED: False,
            ErrorType.EXCEPTION: may_repeat,
        }[code.error_type]
        assert result.retryable is expected
        hints = set(result.recommendations)
        assert expected or not hints & REPEATS
        says_check = [CHECK in result.error, CHECK in hints].count(True)
        if code.error_type is ErrorType.RUNTIME or CHECK in result.error:
            assert says_check == (not may_repeat)
        if not says_check and code.error_type not in (ErrorType.VALIDATION, ErrorType.LOGICAL):
            assert hints
        payload = result.payload()
        assert (payload["ok"], payload["errorType"], payload["code"], payload["executed"]) == (
            False, code.error_type.value, code.value, executed.value,
        )  # fmt: skip


@pytest.mark.parametrize("code", [Code.RAISED, Code.CRASHED, Code.BAD_RESULT])
def test_a_failed_write_may_be_repeated_only_if_it_did_not_run(code: Code) -> None:
    """A charge that raised may have charged: a model repeated it three times (R6)."""
    assert result_of(failure(code, "x", Executed.YES), WRITE).retryable is False
    assert result_of(failure(code, "x", Executed.UNKNOWN), WRITE).retryable is False
    assert result_of(failure(code, "x", Executed.NO), WRITE).retryable is True


def test_the_advice_to_check_a_write_stands_beside_the_tools_own() -> None:
    declared = replace(WRITE, recommendations=("declared",))
    result = result_of(failure(Code.RAISED, "x", Executed.YES), declared)
    assert result.recommendations == ("declared", CHECK)


def test_a_write_that_says_when_to_repeat_it_is_retryable() -> None:
    """`ToolError(retry_after=)`: its author knows whether it did anything."""
    reported = failure(Code.REPORTED, "busy", Executed.YES, retry_after=3.0)
    result = result_of(reported, WRITE)
    assert (result.retryable, result.retry_after, result.recommendations) == (True, 3.0, ())


def test_a_broken_result_is_not_blamed_on_the_arguments() -> None:
    problems = (Problem(("a",), "type", "string", "integer"),)
    result = result_of(failure(Code.BAD_RESULT, "x", Executed.YES, problems=problems), READ)
    assert result.error is not None
    assert "not of the arguments" in result.error
    assert "arguments" not in " ".join(result.recommendations)


def test_only_a_read_or_an_idempotent_tool_is_rerunnable() -> None:
    assert [spec.rerunnable for spec in (UNDECLARED, READ, WRITE, IDEMPOTENT)] == [
        False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "error", "executed", "expected"),
    [
        (Code.RAISED, "disk full", Executed.YES, "Error executing tool 't': disk full"),
        (Code.REPORTED, "no such order", Executed.YES, "no such order"),
        (Code.TIMEOUT, "", Executed.UNKNOWN, "Tool 't' timed out after 5 s and its worker has not"),
        (Code.EXPIRED, "", Executed.NO, "no worker started it in time. It was not run."),
        (Code.OVERLOADED, "", Executed.NO, "too many calls are waiting. It was not run."),
        (Code.WORKER_LOST, "", Executed.UNKNOWN, "It may have had effects: check before you"),
        (Code.CANCELLED, "", Executed.NO, "Tool 't' was cancelled. It was not run."),
        (Code.DENIED, "off tonight", Executed.NO, "Tool 't' was not run: off tonight."),
    ],
)
def test_the_words_say_what_happened_and_whether_it_ran(
    code: Code, error: str, executed: Executed, expected: str
) -> None:
    text = result_of(failure(code, error, executed)).error
    assert text is not None
    assert expected in text


def test_a_success_carries_its_data_and_nothing_of_a_failure() -> None:
    result = result_of(Outcome(ok=True, data=[1], attempt=2))
    assert (result.ok, result.data, result.attempts, result.duration) == (True, [1], 2, 1.5)
    assert result.payload() == {"ok": True, "data": [1]}
    assert result.executed is Executed.YES


def test_absent_fields_are_left_out() -> None:
    """R2: not null."""
    plain: dict[str, Any] = result_of(failure(Code.RAISED, "x", Executed.YES)).payload()
    assert set(plain) == {
        "ok", "error", "errorType", "code", "retryable", "executed", "recommendations",
    }  # fmt: skip
    full = result_of(failure(Code.OVERLOADED, "", Executed.NO, retry_after=2.0, note="n")).payload()
    assert (full["retryAfter"], full["note"]) == (2.0, "n")
    assert None not in full.values()


def test_details_are_for_operators() -> None:
    """R11: the stack never reaches the model."""
    outcome = failure(Code.RAISED, "x", Executed.YES, details={"stack": "Traceback s3cret"})
    result = result_of(outcome)
    assert result.details == {"stack": "Traceback s3cret"}
    assert "s3cret" not in str(result.payload())


def test_a_tools_own_recommendations_win() -> None:
    """R5: those of the outcome over those of the declaration over the generated."""
    declared = replace(UNDECLARED, recommendations=("declared",))
    own = failure(Code.REPORTED, "x", Executed.YES, recommendations=("own",))
    bare = failure(Code.REPORTED, "x", Executed.YES)
    assert result_of(own, declared).recommendations == ("own",)
    assert result_of(bare, declared).recommendations == ("declared",)
    assert result_of(bare).recommendations == ()


def test_what_was_assumed_of_a_call_is_noted() -> None:
    call = replace(CALL, note="It had no id.")
    outcome = Outcome(ok=True, data=1, note="It was cut.")
    assert result_of(outcome, call=call).note == "It had no id. It was cut."


def test_a_rejected_call_did_not_run_and_needs_other_arguments() -> None:
    result = rejected(CALL, Code.INVALID_ARGUMENTS, "a: Required", Wording())
    assert (result.executed, result.retryable, result.error) == (
        Executed.NO, False, "a: Required",
    )  # fmt: skip


def test_what_never_left_did_not_run() -> None:
    assert not_queued(Code.OVERLOADED, retry_after=1.0).executed is Executed.NO


def test_what_a_tool_raised_can_be_kept_from_the_model() -> None:
    """The class and an id are told; under the id operators find the text and the stack."""
    raised = failure(
        Code.RAISED, "password=hunter2 timed out", Executed.YES, worker="w-1",
        details={"exception": "psycopg.OperationalError", "stack": "Traceback: hunter2"},
    )  # fmt: skip
    masked = [
        classified(
            CALL, UNDECLARED, raised, timeout=5, duration=1.5,
            wording=Wording(masks_errors=True, locale=language),
        )
        for language in ("en", "zh", "en")
    ]  # fmt: skip
    details = masked[0].details
    assert details is not None
    error_id = details["error_id"]
    assert masked[0].error == f"Error executing tool 't': OperationalError, error id {error_id}"
    assert masked[1].error == f"执行工具 't' 出错：OperationalError，错误编号 {error_id}"
    assert masked[2] == masked[0]  # the same wherever it is answered
    assert "hunter2" not in str(masked[0].payload())
    assert "hunter2" in details["error"]
    other = classified(
        replace(CALL, id="c-2"), UNDECLARED, raised, timeout=5, duration=1.5,
        wording=Wording(masks_errors=True),
    )  # fmt: skip
    assert other.error != masked[0].error


def test_what_a_tool_reported_is_not_masked() -> None:
    """It was written for the model."""
    for code in Code:
        if code is not Code.RAISED:
            outcome = failure(code, "the reason", Executed.YES)
            plain = result_of(outcome)
            masked = classified(
                CALL, UNDECLARED, outcome, timeout=5, duration=1.5,
                wording=Wording(masks_errors=True),
            )  # fmt: skip
            assert masked == plain


def test_a_full_server_is_said_as_such() -> None:
    for outcome in (server_full(1.0), unreachable(Executed.NO, is_full=True)):
        assert "the server of the tool system is full" in texts.failed("t", outcome, timeout=1.0)
    plain = unreachable(Executed.NO, is_full=False)
    assert "is full" not in texts.failed("t", plain, timeout=1.0)
