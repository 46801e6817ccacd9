"""What a dispatcher remembers of ended calls, and when the server may have lost it."""

import time

import pytest

from tests.unit.dispatcher.samples import Told, services
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.dispatcher.calls import ended_calls
from toolpool.dispatcher.calls.ended_calls import EndedCalls
from toolpool.dispatcher.transports.memory import MemoryTransport


async def test_an_approved_call_waits_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server may have come back with a record from before the call was denied."""
    server = MemoryServer()
    ended = EndedCalls(services(MemoryTransport(server)), Told())
    await ended.restore(server.epoch)
    assert ended.pause_after_loss(server.epoch) == 0.0
    ended.interrupted()
    assert 2.0 < ended.pause_after_loss(server.epoch) <= ended_calls._NOTICED_SECONDS
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10.0)
    assert ended.pause_after_loss(server.epoch) == 0.0
