"""The ledger against a model: every step and its repeat, crash, epoch change and loss of data."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.ledger.machine import LedgerMachine
from tests.ledger.servers import Real, RealMemory, RealRedis

SHORT = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class MemoryMachine(LedgerMachine):
    """Against the in-memory server."""

    def make(self) -> Real:
        return RealMemory()


def redis_machine(url: str) -> type[LedgerMachine]:
    """Against the Lua on a real server."""

    class RedisMachine(LedgerMachine):
        def make(self) -> Real:
            return RealRedis(url)

    return RedisMachine


@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_the_ledger_does_what_its_model_does(kind: str, request: Any) -> None:
    """R1, R8, R18: at most one start, one outcome, an honest `no`, everybody told once."""
    machine = MemoryMachine
    if kind == "redis":
        machine = redis_machine(request.getfixturevalue("redis_url"))  # type: ignore[assignment]
    run_state_machine_as_test(machine, settings=SHORT)
