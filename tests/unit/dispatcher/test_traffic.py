"""Starting and ending what runs behind a dispatcher."""

import asyncio

from contract.envelope import Envelope
from contract.memory import MemoryServer
from contract.settings import Settings
from contract.signing import Keyring
from contract.spec import ToolSpec
from dispatcher.dispatch import Dispatcher
from dispatcher.memory_transport import MemoryTransport


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
