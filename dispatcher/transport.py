"""Everything a dispatcher needs from the outside world, behind one small interface."""

from collections.abc import Sequence
from typing import Protocol

from contract.ledger import Closing, Opening


class Transport(Protocol):
    """Carries batches out and replies in. Methods raise `ServerAway` past `give_up_at`."""

    @property
    def reply(self) -> str:
        """Where workers send this dispatcher's replies."""
        ...

    async def open(self) -> None:
        """Connect. Raises `Misconfigured` errors that say what to do."""
        ...

    async def publish(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        queue: str,
        message: bytes,
        give_up_at: float,
    ) -> tuple[str, list[bytes]]:
        """Note calls in the ledger and put their signed batch on a queue.

        Answers as `DispatcherLedger.open`.
        """
        ...

    async def close_calls(
        self, closings: Sequence[Closing], *, unstarted_only: bool, give_up_at: float
    ) -> list[bytes]:
        """End calls; answers as `DispatcherLedger.close`."""
        ...

    async def receive(self) -> list[bytes]:
        """The next signed replies; waits for them. May raise OSError or RedisError."""
        ...

    async def catalog(self) -> list[bytes] | None:
        """The signed catalog entries; None when nothing has changed since the last call."""
        ...

    async def leases(self) -> list[bytes]:
        """The signed leases of the living workers."""
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...
