"""Which failed calls the pool tries again by itself, and how long it waits before."""

import random

import pytest

from tests.unit.dispatcher.samples import pending
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.calls import retries
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.retries import pause_before

READ = ToolSpec(name="t", effects=Effects.READ, retries=3)
IDEMPOTENT = ToolSpec(name="t", effects=Effects.WRITE, idempotent=True, retries=3)
WRITE = ToolSpec(name="t", effects=Effects.WRITE, retries=3)
UNDECLARED = ToolSpec(name="t", retries=3)
LOST = failure(Code.WORKER_LOST, "", Executed.UNKNOWN)


class Steady(random.Random):
    """Chance that always comes out the same."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        """See `random.uniform`."""
        return a + self.share * (b - a)


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "random", Steady(0.5))


def failed_call(spec: ToolSpec = READ, *, retried: int = 0) -> PendingCall:
    """A call of which `retried` retries have failed too."""
    call = pending("k", spec=spec)
    for _ in range(retried):
        call.start_again(start_by=call.start_by, before=failure(Code.RAISED, "", Executed.YES))
    return call


def pause(call: PendingCall, outcome: Outcome = LOST, *, time_left: float = 600.0) -> float | None:
    return pause_before(call, outcome, first_pause=0.2, time_left=time_left)


@pytest.mark.parametrize(
    ("spec", "is_tried_again"),
    [(READ, True), (IDEMPOTENT, True), (WRITE, False), (UNDECLARED, False)],
)
@pytest.mark.parametrize("executed", Executed)
def test_only_what_does_no_harm_twice_is_tried_again(
    spec: ToolSpec, is_tried_again: bool, executed: Executed
) -> None:
    outcome = failure(Code.WORKER_LOST, "", executed)
    assert (pause(failed_call(spec), outcome) is not None) is is_tried_again


TRIED_AGAIN = {
    Code.RAISED,
    Code.CRASHED,
    Code.BAD_RESULT,
    Code.REPORTED,
    Code.WORKER_LOST,
    Code.INTERNAL,
}


@pytest.mark.parametrize("code", Code)
def test_a_failure_that_another_try_may_mend_is_tried_again(code: Code) -> None:
    """Not what the call would only wait for once more, nor what is wrong with the call itself."""
    outcome = failure(code, "", Executed.YES)
    assert (pause(failed_call(), outcome) is not None) is (code in TRIED_AGAIN)


def test_what_succeeded_is_not_tried_again() -> None:
    assert pause(failed_call(), Outcome(ok=True)) is None
    assert pause(failed_call(), Outcome(ok=True, code=Code.WORKER_LOST)) is None


def test_a_failure_that_does_not_say_what_it_is_stands() -> None:
    assert pause(failed_call(), Outcome(ok=False)) is None


def test_a_call_without_askers_is_not_retried() -> None:
    call = failed_call()
    call.abandoned()
    assert pause(call) is None


@pytest.mark.parametrize(
    ("allowed", "retried", "is_tried_again"),
    [(0, 0, False), (1, 0, True), (1, 1, False), (3, 2, True), (3, 3, False)],
)
def test_a_tool_says_how_many_retries_it_gets(
    allowed: int, retried: int, is_tried_again: bool
) -> None:
    spec = ToolSpec(name="t", effects=Effects.READ, retries=allowed)
    assert (pause(failed_call(spec, retried=retried)) is not None) is is_tried_again


@pytest.mark.parametrize(
    ("retried", "expected"),
    [(0, 0.2), (1, 0.4), (2, 0.8), (5, 6.4), (6, 10.0), (7, 10.0), (60, 10.0)],
)
def test_each_pause_is_twice_the_one_before_it_up_to_ten_seconds(
    retried: int, expected: float
) -> None:
    spec = ToolSpec(name="t", effects=Effects.READ, retries=100)
    assert pause(failed_call(spec, retried=retried)) == pytest.approx(expected)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.1), (0.5, 0.2), (1.0, 0.3)])
def test_a_pause_is_half_as_long_to_half_as_long_again(
    monkeypatch: pytest.MonkeyPatch, share: float, expected: float
) -> None:
    """So that calls that failed together do not come back together."""
    monkeypatch.setattr(retries, "random", Steady(share))
    assert pause(failed_call()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("time_left", "is_tried_again"),
    [(0.21, True), (0.19, False), (0.2, False), (0.0, False), (-5.0, False)],
)
def test_a_try_that_would_begin_too_late_for_an_answer_is_not_made(
    time_left: float, is_tried_again: bool
) -> None:
    assert (pause(failed_call(), time_left=time_left) is not None) is is_tried_again
