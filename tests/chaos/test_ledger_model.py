"""The long form of the ledger's model test."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.test_ledger_model import MemoryMachine, redis_machine
from tests.ledger.machine import LedgerMachine

__all__ = ["redis_machine"]

STEPS = 50_000
ROUND = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_lua_does_what_its_model_does_for_long(redis_machine: type[LedgerMachine]) -> None:
    """Rounds of random steps until there were enough of them."""
    while redis_machine.steps_taken < STEPS:
        run_state_machine_as_test(redis_machine, settings=ROUND)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_in_memory_ledger_does_what_its_model_does_for_long() -> None:
    """The same rounds."""
    while MemoryMachine.steps_taken < STEPS:
        run_state_machine_as_test(MemoryMachine, settings=ROUND)
