"""Tracks live workers: the slots of each queue, and where each tool version runs."""

import time
from collections.abc import Sequence
from contextlib import suppress

from toolpool.contract.envelope import Envelope, Toolset, WorkerLease
from toolpool.contract.errors import MessageRejected
from toolpool.contract.redis_keys import RedisKeys, toolset_queue
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.transports.base import Transport

_LIVE_SECONDS = 10.0
"""How many seconds a version counts as running after its last worker, which may return.

A worker that announced its end, as in a release, is not waited for.
"""


class LiveWorkers:
    """Learns from the leases of every survey."""

    def __init__(self, transport: Transport, envelope: Envelope, names: RedisKeys) -> None:
        self._transport = transport
        self._names = names
        self._envelope = envelope
        self._toolsets: dict[str, Toolset] = {}
        self._seen_at: dict[str, float] = {}
        self.by_queue: dict[str, dict[str, int]] = {}
        """Slots by queue and toolset. When they change, the dict is replaced."""
        self._started_at: dict[str, float] = {}
        """When the oldest live worker of each queue started, in Unix time."""
        self._absent_since: dict[str, float] = {}
        """Since when each tool has been missing from its queue (monotonic clock)."""
        self._unserved: frozenset[str] = frozenset()
        self._compared: tuple[object, object] | None = None
        self.slots: dict[str, list[int]] = {}
        """The slots of each live worker, by queue."""
        self.live: dict[str, frozenset[str]] = {}
        """The digests of each tool that live workers offer."""

    async def follow(self, leases: Sequence[WorkerLease]) -> None:
        """Apply the leases of one survey. Raises what the transport raises.

        While a toolset cannot be read, the previous knowledge stays.
        """
        now = time.monotonic()
        by_queue: dict[str, dict[str, int]] = {}
        slots: dict[str, list[int]] = {}
        started_at: dict[str, float] = {}
        leaving = {lease.toolset for lease in leases if lease.leaving}
        for lease in leases:
            if lease.ended or lease.leaving:
                continue
            self._seen_at[lease.toolset] = now
            leaving.discard(lease.toolset)
            for queue, count in lease.slots.items():
                slots.setdefault(queue, []).append(count)
                started_at[queue] = min(lease.started_at, started_at.get(queue, lease.started_at))
                slots.setdefault(toolset_queue(queue, lease.toolset), []).append(count)
                sets = by_queue.setdefault(queue, {})
                sets[lease.toolset] = sets.get(lease.toolset, 0) + count
        self.slots, self._started_at = slots, started_at
        gone = [
            digest
            for digest, seen_at in self._seen_at.items()
            if digest in leaving or now - seen_at > _LIVE_SECONDS
        ]
        for digest in gone:
            del self._seen_at[digest]
            self._toolsets.pop(digest, None)
        learnt = await self._learn([d for d in self._seen_at if d and d not in self._toolsets])
        if learnt or gone or by_queue != self.by_queue:
            self.by_queue = by_queue
            live: dict[str, set[str]] = {}
            for toolset in self._toolsets.values():
                for tool, version in toolset.tools.items():
                    live.setdefault(tool, set()).add(version)
            self.live = {tool: frozenset(versions) for tool, versions in live.items()}

    async def _learn(self, digests: Sequence[str]) -> bool:
        if not digests:
            return False
        bodies = await self._transport.toolsets(digests)
        known = len(self._toolsets)
        for digest, body in zip(digests, bodies, strict=True):
            try:
                toolset = self._envelope.decode(Toolset, body) if body is not None else None
            except MessageRejected:
                continue
            if toolset is not None and toolset.digest == digest:
                self._toolsets[digest] = toolset
        return len(self._toolsets) > known

    async def unserved(self, specs: Sequence[ToolSpec], *, after: float) -> frozenset[str]:
        """The tools that no live worker of their queue has had for `after` seconds.

        A queue without workers keeps its tools: it may be scaled to zero. Raises what the transport
        raises.
        """
        if (
            self._compared is None
            or self._compared[0] is not specs
            or (self._compared[1] is not self.live)
        ):
            absent = [spec for spec in specs if self._is_absent(spec)]
            new = [spec for spec in absent if spec.name not in self._absent_since]
            found = await self._absent_for(new) if new else {}
            now = time.monotonic()
            self._absent_since = {
                spec.name: self._absent_since.get(spec.name, now - found.get(spec.name, 0.0))
                for spec in absent
            }
            self._compared = (specs, self.live)
        gone_by = time.monotonic() - after
        self._unserved = frozenset(n for n, at in self._absent_since.items() if at <= gone_by)
        return self._unserved

    def _is_absent(self, spec: ToolSpec) -> bool:
        if spec.name in self.live:
            return False
        sets = self.by_queue.get(self._names.queue(spec.queue, spec.run_in))
        if not sets:  # a tool that the last workers lacked stays absent without workers
            return spec.name in self._unserved
        return all(map(self.is_known, sets))

    async def _absent_for(self, specs: Sequence[ToolSpec]) -> dict[str, float]:
        """For how many seconds each tool's queue has had workers, but none with the tool."""
        ages = await self._transport.toolset_ages()
        bodies = await self._transport.toolsets(list(ages))
        last_had: dict[str, float] = {}
        for age, body in zip(ages.values(), bodies, strict=True):
            with suppress(MessageRejected):
                for tool in self._envelope.decode(Toolset, body).tools if body is not None else ():
                    last_had[tool] = min(age, last_had.get(tool, age))
        server_now = self._transport.server_time()
        return {
            spec.name: max(
                0.0,
                min(
                    last_had.get(spec.name, 0.0),
                    server_now - self._started_at[self._names.queue(spec.queue, spec.run_in)],
                ),
            )
            for spec in specs
        }

    def runs(self, spec: ToolSpec) -> bool:
        """Whether a live worker is known to run this version of the tool."""
        sets = self.by_queue.get(self._names.queue(spec.queue, spec.run_in), {})
        return any(self.has(toolset, spec.name, spec.digest) for toolset in sets)

    def is_known(self, toolset: str) -> bool:
        """Whether the tools of a toolset are known."""
        return toolset in self._toolsets

    def has(self, toolset: str, tool: str, digest: str | None = None) -> bool:
        """Whether a toolset is known to have a tool, in this version if one is given."""
        known = self._toolsets.get(toolset)
        version = known.tools.get(tool) if known is not None else None
        return version is not None and digest in (None, version)
