"""Fleet time of the in-memory server."""

import time

import pytest

from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.dispatcher.transports.memory import MemoryTransport


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_jump_of_this_host_s_clock_does_not_count(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    transport, now = MemoryTransport(MemoryServer()), time.time()
    before = transport.server_time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    assert 0.0 <= transport.server_time() - before < 60.0
