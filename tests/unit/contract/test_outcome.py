"""The closed set of endings, as a table: type and retryability of every code (R6, R7)."""

from itertools import product

import pytest

from toolpool.contract.outcome import Code, ErrorType, Executed, is_retryable

CODES = {
    ErrorType.VALIDATION: {
        "arguments", "unknown_tool", "unparseable", "truncated", "loop", "too_large",
        "too_many_calls",
    },
    ErrorType.RUNTIME: {"raised", "crashed", "bad_result"},
    ErrorType.LOGICAL: {"reported"},
    ErrorType.ABORTED: {"timeout", "cancelled", "denied"},
    ErrorType.EXCEPTION: {
        "worker_lost", "expired", "queue_unreachable", "overloaded", "circuit_open", "internal",
    },
}  # fmt: skip

NEVER = dict.fromkeys(product(Executed, (True, False)), False)
ALWAYS = dict.fromkeys(NEVER, True)
UNLESS_A_WRITE_MAY_HAVE_RUN = {
    (Executed.NO, True): True,
    (Executed.NO, False): True,
    (Executed.YES, True): True,
    (Executed.YES, False): False,
    (Executed.UNKNOWN, True): True,
    (Executed.UNKNOWN, False): False,
}
TABLE = {
    ErrorType.VALIDATION: NEVER,
    ErrorType.RUNTIME: ALWAYS,
    ErrorType.LOGICAL: ALWAYS,
    ErrorType.ABORTED: NEVER,
    ErrorType.EXCEPTION: UNLESS_A_WRITE_MAY_HAVE_RUN,
}


def test_the_codes_are_these() -> None:
    written = {f"{kind}.{rest}" for kind, rests in CODES.items() for rest in rests}
    assert {code.value for code in Code} == written


@pytest.mark.parametrize("code", Code)
def test_a_code_is_of_the_type_before_its_dot(code: Code) -> None:
    assert code.value.partition(".")[2] in CODES[code.error_type]


@pytest.mark.parametrize(
    ("code", "executed", "rerunnable"), list(product(Code, Executed, (True, False)))
)
def test_whether_the_same_arguments_may_be_sent_again(
    code: Code, executed: Executed, rerunnable: bool
) -> None:
    """A pool failure of what is no read is retryable only where it certainly did not run."""
    expected = TABLE[code.error_type][executed, rerunnable]
    assert is_retryable(code, executed, rerunnable=rerunnable) is expected
