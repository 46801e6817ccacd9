"""What a running fleet has written to Redis: its workers and its catalog."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from contract.connection import keyring, open_sync, unreachable
from contract.envelope import CatalogEntry, Envelope, WorkerLease
from contract.errors import BrokerUnreachable, MessageRejected
from contract.names import Names
from contract.settings import Settings
from contract.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class Fleet:
    """A look at workers and tools. What another key signed is named and otherwise passed over."""

    names: Names = field(default_factory=Names)
    workers: list[WorkerLease] = field(default_factory=list)
    entries: dict[str, CatalogEntry] = field(default_factory=dict)
    foreign_workers: list[str] = field(default_factory=list)
    foreign_tools: list[str] = field(default_factory=list)

    def specs(self) -> list[ToolSpec]:
        """The tools on offer, by name."""
        return [self.entries[name].spec for name in sorted(self.entries)]

    def tools_by_queue(self) -> dict[str, list[str]]:
        """The names of the tools that each queue carries."""
        tools: dict[str, list[str]] = defaultdict(list)
        for spec in self.specs():
            tools[self.names.queue(spec.queue, spec.run_in)].append(spec.name)
        return dict(tools)

    def queues(self) -> list[str]:
        """Every queue that a tool is on or a worker takes from."""
        served = {queue for lease in self.workers for queue in lease.slots}
        return sorted(served | set(self.tools_by_queue()))


@contextmanager
def answering(settings: Settings) -> Iterator[Any]:
    """A redis-py client of the server at the Redis URL (untyped: its stubs do not know bytes).

    Raises `BrokerUnreachable` where the server fails in the block.
    """
    from redis.exceptions import AuthenticationError, ConnectionError, RedisError, TimeoutError

    with open_sync(settings) as client:
        try:
            yield client
        except AuthenticationError as error:
            raise BrokerUnreachable(
                f"the server refuses the user or password ({error}): "
                "put the right ones into TOOLPOOL_REDIS_URL"
            ) from None
        except (ConnectionError, TimeoutError, OSError) as error:
            raise BrokerUnreachable(unreachable(settings, error)) from None
        except RedisError as error:
            raise BrokerUnreachable(
                f"the server refuses what toolpool asks of it ({error}); "
                "`toolpool doctor` says more"
            ) from None


def read_fleet(settings: Settings) -> Fleet:
    """What the server holds now. Raises `BrokerUnreachable` or `SigningKeyMissing`."""
    names = Names(settings.key_prefix)
    envelope = Envelope(keyring(settings))
    fleet = Fleet(names=names)
    with answering(settings) as client:
        catalog: dict[bytes, bytes] = client.hgetall(names.catalog)
        ids = [raw.decode() for raw in client.zrange(names.workers, 0, -1)]
        leases = client.mget([names.worker(id_) for id_ in ids]) if ids else []
    for id_, body in zip(ids, leases, strict=True):
        if body is None:
            continue  # gone
        try:
            fleet.workers.append(envelope.decode_lease(body))
        except MessageRejected:
            fleet.foreign_workers.append(id_)
    for name, body in catalog.items():
        _note_entry(fleet, envelope, name.decode(errors="replace"), body)
    return fleet


def _note_entry(fleet: Fleet, envelope: Envelope, name: str, body: bytes) -> None:
    try:
        entry = envelope.decode_entry(body)
    except MessageRejected:
        fleet.foreign_tools.append(name.partition("\0")[0])
        return
    known = fleet.entries.get(entry.spec.name)
    if known is None or known.published_at < entry.published_at:
        fleet.entries[entry.spec.name] = entry


def depths(settings: Settings, queues: list[str]) -> dict[str, int]:
    """How many messages wait in each queue; a message carries a batch of calls."""
    with answering(settings) as client:
        pipeline = client.pipeline(transaction=False)
        for queue in queues:
            pipeline.llen(queue)
        return dict(zip(queues, pipeline.execute(), strict=True))


def remove_tool(settings: Settings, name: str) -> int:
    """Take every version of a tool out of the catalog; return how many there were."""
    names = Names(settings.key_prefix)
    with answering(settings) as client:
        fields = [
            raw for raw in client.hkeys(names.catalog) if raw.partition(b"\0")[0] == name.encode()
        ]
        if not fields:
            return 0
        pipeline = client.pipeline(transaction=True)
        pipeline.hdel(names.catalog, *fields)
        pipeline.incr(names.catalog_version)
        pipeline.pexpire(names.catalog_version, round(settings.catalog_kept * 1000))
        removed: int = pipeline.execute()[0]
        return removed


def describe(lease: WorkerLease) -> dict[str, Any]:
    """A worker for programs."""
    return {
        "id": lease.id,
        "host": lease.host,
        "pid": lease.pid,
        "version": lease.version,
        "up": round(max(0.0, time.time() - lease.started_at), 1),
        "slots": lease.slots,
    }
