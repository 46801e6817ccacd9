"""The closed set of endings, as a table: type and retryability of every code (R6, R7)."""

from itertools import product

import pytest

from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.classifier import is_retryable

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

READ = ToolSpec(name="t", effects=Effects.READ)
IDEMPOTENT = ToolSpec(name="t", effects=Effects.WRITE, idempotent=True)
UNDECLARED = ToolSpec(name="t")
WRITE = ToolSpec(name="t", effects=Effects.WRITE)
UNKNOWN_TOOL = None
SPECS = (READ, IDEMPOTENT, UNDECLARED, WRITE, UNKNOWN_TOOL)

EVERY_TOOL = {
    ErrorType.VALIDATION: False,
    ErrorType.LOGICAL: True,
    ErrorType.ABORTED: False,
}
"""What the tool has no say in."""
REPEATED = {
    ErrorType.RUNTIME: (READ, IDEMPOTENT, UNDECLARED, UNKNOWN_TOOL),
    ErrorType.EXCEPTION: (READ, IDEMPOTENT),
}
"""Whose calls may be repeated that ran, or may have; one that did not run always may."""


def test_the_codes_are_these() -> None:
    written = {f"{kind}.{rest}" for kind, rests in CODES.items() for rest in rests}
    assert {code.value for code in Code} == written


@pytest.mark.parametrize("code", Code)
def test_a_code_is_of_the_type_before_its_dot(code: Code) -> None:
    assert code.value.partition(".")[2] in CODES[code.error_type]


@pytest.mark.parametrize(("code", "executed"), list(product(Code, Executed)))
@pytest.mark.parametrize("spec", SPECS)
def test_whether_the_same_arguments_may_be_sent_again(
    code: Code, executed: Executed, spec: ToolSpec | None
) -> None:
    kind = code.error_type
    expected = EVERY_TOOL.get(kind)
    if expected is None:
        expected = executed is Executed.NO or spec in REPEATED[kind]
    assert is_retryable(code, executed, spec) is expected
