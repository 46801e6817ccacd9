"""When a tool is left alone, and what says nothing about it (R32)."""

import pytest

from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.settings import Settings
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.observer import Observers

FAILED = failure(Code.RAISED, "no", Executed.YES, worker="w")


def breaker(**settings: float) -> Breaker:
    changed = {"circuit_minimum_calls": 4, "circuit_failure_rate": 0.5} | settings
    return Breaker(Settings(**changed), Observers())


def is_open(made: Breaker) -> bool:
    return made.retry_after("t") is not None


@pytest.mark.parametrize("code", [Code.RAISED, Code.CRASHED, Code.TIMEOUT])
def test_what_a_tool_fails_opens_its_circuit(code: Code) -> None:
    made = breaker()
    for _ in range(4):
        assert not is_open(made)
        made.note("t", failure(code, "", Executed.UNKNOWN, worker="w"))
    assert is_open(made)
    assert made.retry_after("another") is None


@pytest.mark.parametrize(
    "code",
    [
        Code.EXPIRED,
        Code.QUEUE_UNREACHABLE,
        Code.OVERLOADED,
        Code.CANCELLED,
        Code.DENIED,
        Code.INTERNAL,
        Code.WORKER_LOST,
    ],
)
def test_what_never_came_to_the_tool_says_nothing_about_it(code: Code) -> None:
    """No worker for a while, or no server: when they are back, so is the tool."""
    made = breaker()
    for _ in range(20):
        made.note("t", failure(code, "", Executed.NO))
    assert not is_open(made)


@pytest.mark.parametrize("code", [Code.TIMEOUT, Code.CRASHED])
def test_what_no_worker_has_said_says_nothing_about_it(code: Code) -> None:
    """A server or a worker that is away makes calls overrun: that is no fault of their tool."""
    made = breaker()
    for _ in range(20):
        made.note("t", failure(code, "", Executed.UNKNOWN))
    assert not is_open(made)


def test_a_rate_opens_it_and_not_a_count() -> None:
    made = breaker(circuit_failure_rate=0.7)
    for _ in range(10):
        made.note("t", FAILED)
        made.note("t", Outcome(ok=True))
    assert not is_open(made)


def test_one_call_is_let_through_to_see() -> None:
    """A probe that says nothing is followed by another; one that succeeds closes the circuit."""
    made = breaker(circuit_reset_timeout=1e-6)
    for _ in range(4):
        made.note("t", FAILED)
    assert [is_open(made), is_open(made)] == [False, True]
    made.note("t", failure(Code.EXPIRED, "", Executed.NO))
    assert [is_open(made), is_open(made)] == [False, True]
    made.note("t", FAILED)
    assert [is_open(made), is_open(made)] == [False, True]
    made.note("t", Outcome(ok=True))
    assert [is_open(made), is_open(made)] == [False, False]


def test_what_ended_well_takes_no_memory() -> None:
    made = breaker(circuit_minimum_calls=10**9)
    made.note("t", FAILED)
    for _ in range(10_000):
        made.note("t", Outcome(ok=True))
    assert len(made.circuits["t"].buckets) <= 11


def test_a_call_from_before_it_opened_lets_no_second_one_through() -> None:
    """Its end says nothing about the one that tries the tool."""
    made = breaker(circuit_reset_timeout=1e-6)
    for _ in range(4):
        made.note("t", FAILED)
    assert made.retry_after("t", call="trial") is None
    made.release("t", call="older")
    made.note("t", failure(Code.CANCELLED, "", Executed.NO), call="older")
    assert made.retry_after("t", call="next") is not None
    made.release("t", call="trial")
    assert made.retry_after("t", call="next") is None
