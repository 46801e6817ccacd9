"""Starting and ending what runs behind a dispatcher."""

import asyncio

import pytest

from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import Misconfigured
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.dispatch import Dispatcher
from toolpool.dispatcher.transports.memory import MemoryTransport


class Deaf(MemoryTransport):
    """Swallows the first cancellation, as Python 3.11's asyncio.wait_for may inside redis-py."""

    swallowed = 0

    async def receive(self) -> list[bytes]:
        """See `Transport.receive`."""
        try:
            return await super().receive()
        except asyncio.CancelledError:
            self.swallowed += 1
            if self.swallowed == 1:
                return []
            raise


async def test_closing_ends_a_task_that_did_not_hear_its_cancellation() -> None:
    transport = Deaf(MemoryServer())
    envelope = Envelope(Keyring.local())
    specs = [ToolSpec(name="t")]
    async with Dispatcher(transport, settings=Settings(), envelope=envelope, specs=specs):
        await asyncio.sleep(0)  # the collector has to be reading
    assert transport.swallowed == 2


def test_a_language_that_is_not_there_is_said_before_any_call_fails() -> None:
    """R9: the set-up raises, and says what there is; a model's mistake never does."""
    transport, envelope = MemoryTransport(MemoryServer()), Envelope(Keyring.local())
    with pytest.raises(Misconfigured, match="there is no locale 'fr': use one of en, zh"):
        Dispatcher(transport, settings=Settings(locale="fr"), envelope=envelope)
