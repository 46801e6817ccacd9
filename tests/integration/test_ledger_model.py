"""The ledger against a model: every step and its repeat, crash, epoch change and loss of data."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos.scene import Skipped
from tests.chaos.servers import Server
from tests.chaos.wall_clock import WallClock
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


@pytest.fixture
def redis_machine(tmp_path: Path) -> Iterator[type[LedgerMachine]]:
    """Against the Lua on a real server, whose clock can be set where that is possible."""
    clock: WallClock | None = None
    with suppress(Skipped):
        clock = WallClock(tmp_path, "server")
    environment = clock.environment if clock is not None else {}
    server = Server(tmp_path / "server", aof=False, environment=environment)

    class RedisMachine(LedgerMachine):
        def make(self) -> Real:
            return RealRedis(server.url, clock)

    yield RedisMachine
    server.close()


@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_the_ledger_does_what_its_model_does(kind: str, request: Any) -> None:
    """R1, R8, R18: at most one start, one outcome, an honest `no`, everybody told once."""
    machine = MemoryMachine if kind == "memory" else request.getfixturevalue("redis_machine")
    run_state_machine_as_test(machine, settings=SHORT)
