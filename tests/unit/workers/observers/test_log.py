"""What an operator reads in a worker's log of a call that failed."""

import pytest

from tests.unit.facts import run_ended, run_facts
from toolpool.contract.exception_report import Failure
from toolpool.contract.outcome import Code
from toolpool.workers.observers.log import Log


@pytest.mark.parametrize(
    ("code", "cause", "size", "told"),
    [
        (Code.CRASHED, "was killed by SIGSEGV", 0, "exception=None cause=was killed by SIGSEGV\n"),
        (Code.BAD_RESULT, "too large", 9_000, "exception=None cause=too large result_bytes=9000\n"),
        (Code.RAISED, "", 0, "exception=None\n"),
    ],
)
def test_a_failed_call_is_logged_with_its_cause(
    code: Code, cause: str, size: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    failure = Failure(
        text=None, faults=(), digest="", arguments_bytes=2, cause=cause, result_bytes=size
    )
    Log().failed(run_facts(call_id=f"c-{code}"), run_ended(code, failure=failure))
    assert told in caplog.text
