"""Pending calls and a transport that a test holds in its hand."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CallMessage
from toolpool.contract.ledger.client import NEW, Opening
from toolpool.contract.ledger.memory import MemoryServer
from toolpool.contract.ledger.steps import ServerAway
from toolpool.contract.names import Names
from toolpool.contract.spec import RunIn, ToolSpec
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.transports.memory import MemoryTransport


def pending(
    key: str,
    *,
    line: str = "s-1",
    run_in: RunIn = RunIn.LOOP,
    size: int = 10,
    wait: float = 10.0,
    deadline: float = 20.0,
) -> Pending:
    """A call that was accepted just now."""
    now = time.monotonic()
    return Pending(
        call=ToolCall(index=0, id=key, name="t", arguments={}),
        spec=ToolSpec(name="t", run_in=run_in),
        message=CallMessage(key=key, id=key, tool="t", digest="", arguments={}),
        queue=Names().queue("default", run_in),
        line=line,
        size=size,
        start_by=now + wait,
        deadline=now + deadline,
        keep=60.0,
    )


class HeldTransport(MemoryTransport):
    """Publishes when the test lets it; `batches` has the keys of every message."""

    def __init__(self) -> None:
        super().__init__(MemoryServer())
        self.batches: list[list[str]] = []
        self.nonces: list[str] = []
        self.fails: list[Exception] = []
        self.fails_for: set[str] = set()
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        """Keep publishes under way until `let_go`."""
        self._gate.clear()

    def let_go(self) -> None:
        """Let every publish through."""
        self._gate.set()

    async def publish(
        self, openings: Sequence[Opening], *, nonce: str, give_up_at: float, **options: Any
    ) -> tuple[str, list[bytes]]:
        """See `Transport.publish`."""
        self.batches.append([opening.key for opening in openings])
        self.nonces.append(nonce)
        await self._gate.wait()
        if self.fails_for.intersection(opening.key for opening in openings):
            raise ValueError
        if self.fails:
            raise self.fails.pop(0)
        return "epoch", [NEW] * len(openings)


def away(*, sent: bool) -> ServerAway:
    """What a step raises when no server confirmed it."""
    return ServerAway("open", sent=sent)


async def turns(count: int = 5) -> None:
    """Let everything that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)
