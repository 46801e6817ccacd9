"""Reads what a running fleet has written to Redis: its workers and its catalog."""

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from toolpool.contract.encoding import decode
from toolpool.contract.envelope import CatalogEntry, Envelope, Switch, Toolset, WorkerLease
from toolpool.contract.errors import BrokerUnreachable, MessageRejected, ToolDeclarationInvalid
from toolpool.contract.fleet_clock import fleet_time
from toolpool.contract.kill_switches import KillSwitches, States, switch_name
from toolpool.contract.ledger.lua_scripts import LuaScript, new_nonce, script
from toolpool.contract.ledger.protocols import SwitchChange
from toolpool.contract.ledger.redis_ledger import switch_states
from toolpool.contract.operator_messages import DispatcherReport
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server.connection import keyring, open_sync, unreachable
from toolpool.contract.settings import Settings
from toolpool.contract.spec import CATALOG_TTL_SECONDS, ToolSpec
from toolpool.dispatcher.admission.availability import make_switch

_OLDEST_SECONDS = 10 * 365 * 86_400.0
"""The largest age in seconds that is believed of unsigned data."""


@dataclass(frozen=True, slots=True)
class ForeignWorker:
    """A worker that signs with another key, by its own unverified description.

    With our key and `is_unreadable`, it is a worker of another version.
    """

    id: str
    host: str = ""
    key: str = ""
    is_unreadable: bool = False

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        return f"{self.id}{where}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The state of workers and tools.

    Data signed with another key are counted, and otherwise ignored.
    """

    names: RedisKeys = field(default_factory=RedisKeys)
    now: float = field(default_factory=time.time)
    """When it was read, in fleet time (Unix seconds)."""
    workers: list[WorkerLease] = field(default_factory=list)
    entries: dict[str, CatalogEntry] = field(default_factory=dict)
    foreign_workers: list[ForeignWorker] = field(default_factory=list)
    foreign_tools: list[str] = field(default_factory=list)
    offers: dict[str, dict[str, str]] = field(default_factory=dict)
    """The digests of each worker's tools, by name, if it reports them."""
    served: dict[str, float] = field(default_factory=dict)
    """The seconds since a live worker last had each tool, by name."""
    unserved_timeout: float = 60.0
    """The setting with the same name, in seconds."""
    dispatchers: list[DispatcherReport] = field(default_factory=list)
    foreign_dispatchers: list[str] = field(default_factory=list)
    """The ids of dispatchers that sign with another key, or are of another version."""
    switches: list[Switch] = field(default_factory=list)
    """The kill switches that deny calls now."""
    foreign_switches: list[str] = field(default_factory=list)
    """The fields of the kill switches that are signed with another key."""

    def stale_tools(self, worker: str) -> list[str]:
        """The tools that a worker has in another version than the offered one."""
        return sorted(
            name
            for name, digest in self.offers.get(worker, {}).items()
            if name in self.entries and self.entries[name].spec.digest != digest
        )

    def unserved(self) -> dict[str, float | None]:
        """The tools that no live worker has, with the seconds since one had them, if known."""
        if any(lease.id not in self.offers for lease in self.workers):
            return {}  # a worker that does not report its tools may have them all
        live = {name for tools in self.offers.values() for name in tools}
        return {name: self.served.get(name) for name in sorted(self.entries.keys() - live)}

    def withheld(self) -> set[str]:
        """The tools of `unserved` that are not offered, because their queues have workers."""
        started_at: dict[str, float] = {}
        for lease in self.workers:
            for queue in lease.slots:
                started_at[queue] = min(lease.started_at, started_at.get(queue, lease.started_at))
        found, now, unserved = set(), self.now, self.unserved()
        for queue, tools in self.tools_by_queue().items():
            served_for = now - started_at.get(queue, now)
            for name in unserved.keys() & tools if queue in started_at else ():
                age = unserved[name]
                if min(served_for, served_for if age is None else age) >= self.unserved_timeout:
                    found.add(name)
        return found

    def specs(self) -> list[ToolSpec]:
        """The offered tools, by name."""
        return [self.entries[name].spec for name in sorted(self.entries)]

    def refused(self) -> dict[str, str]:
        """Why dispatchers do not offer a tool of the catalog, by its name."""
        from toolpool.contract.schema.validator import SchemaCache

        schemas, reasons = SchemaCache(), {}
        for spec in self.specs():
            try:
                schemas.validator(spec)
            except ToolDeclarationInvalid as error:
                reasons[spec.name] = str(error)
        return reasons

    def tools_by_queue(self) -> dict[str, list[str]]:
        """The names of the tools of each queue."""
        tools: dict[str, list[str]] = defaultdict(list)
        for spec in self.specs():
            tools[self.names.queue(spec.queue, spec.run_in)].append(spec.name)
        return dict(tools)

    def queues(self) -> list[str]:
        """Every queue that a tool uses or a worker consumes."""
        served = {queue for lease in self.workers for queue in lease.slots}
        return sorted(served | set(self.tools_by_queue()))


@contextmanager
def answering(settings: Settings) -> Iterator[Any]:
    """A redis-py client of the server at the Redis URL (untyped: its stubs do not know bytes).

    Raises `BrokerUnreachable` if the server fails in the block.
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
    """Read the current state. Raises `BrokerUnreachable` or `SigningKeyMissing`."""
    names = RedisKeys(settings.key_prefix)
    envelope = Envelope(keyring(settings))
    with answering(settings) as client:
        now = fleet_time(client, settings)
        fleet = Fleet(names=names, now=now, unserved_timeout=settings.unserved_timeout)
        catalog: dict[bytes, bytes] = client.hgetall(names.catalog)
        ids = [text_of(raw) for raw in client.zrange(names.workers, 0, -1)]
        leases = client.mget([names.worker(id_) for id_ in ids]) if ids else []
        for id_, lease in zip(ids, leases, strict=True):
            if lease is not None:  # else the lease has expired
                _note_worker(fleet, envelope, id_, lease)
        last_served = dict(client.zrange(names.toolsets, 0, -1, withscores=True))
        digests = [text_of(raw) for raw in last_served]
        used = sorted({lease.toolset for lease in fleet.workers}.union(digests))
        toolsets = client.mget([names.toolset(digest) for digest in used]) if used else []
        ids = [text_of(raw) for raw in client.zrange(names.dispatchers, 0, -1)]
        reports = client.mget([names.dispatcher(id_) for id_ in ids]) if ids else []
        for id_, report in zip(ids, reports, strict=True):
            _note_dispatcher(fleet, envelope, id_, report or b"")
        fleet.dispatchers.sort(key=lambda report: report.started_at)
        switches = KillSwitches(envelope, names.prefix)
        switches.take(*_switch_states(client, names))
        fleet.switches.extend(switches.denying())
        fleet.foreign_switches.extend(switches.foreign)
    ages = {
        text_of(raw): max(0.0, now - at)
        for raw, at in last_served.items()
        if now - at < _OLDEST_SECONDS
    }
    _note_tools(fleet, envelope, toolsets, ages)
    _note_entries(fleet, envelope, catalog)
    return fleet


def text_of(raw: bytes | None) -> str:
    """An unsigned text; empty if the key does not exist."""
    return (raw or b"").decode(errors="replace")


def int_of(raw: bytes | None) -> int | None:
    """An unsigned integer; None if it is not one of 64 bits."""
    with suppress(ValueError):
        number = int(raw or b"")
        return number if -(2**63) <= number < 2**63 else None
    return None


def _note_dispatcher(fleet: Fleet, envelope: Envelope, id_: str, lease: bytes) -> None:
    ends, _, report = lease.partition(b" ")
    if not lease or (int_of(ends) or math.inf) / 1000 <= fleet.now:
        return  # the entry has expired
    try:
        fleet.dispatchers.append(envelope.decode(DispatcherReport, report))
    except MessageRejected:
        fleet.foreign_dispatchers.append(_shown(id_))


def _note_worker(fleet: Fleet, envelope: Envelope, id_: str, lease: bytes) -> None:
    try:
        known = envelope.decode(WorkerLease, lease)
        if not known.ended:
            fleet.workers.append(known)
    except MessageRejected as error:
        is_unreadable = error.reason == "malformed"
        fleet.foreign_workers.append(_stranger(id_, lease, is_unreadable=is_unreadable))


def _note_tools(
    fleet: Fleet, envelope: Envelope, bodies: Iterable[bytes | None], ages: Mapping[str, float]
) -> None:
    """Record the tools of each worker, by its lease's toolset, and when they were last served."""
    tools: dict[str, dict[str, str]] = {}
    for body in bodies:
        with suppress(MessageRejected):  # a holder of our key signs both
            if body is not None:
                toolset = envelope.decode(Toolset, body)
                tools[toolset.digest] = toolset.tools
                for name in toolset.tools if toolset.digest in ages else ():
                    age = ages[toolset.digest]
                    fleet.served[name] = min(age, fleet.served.get(name, age))
    for lease in fleet.workers:
        if lease.toolset in tools:
            fleet.offers[lease.id] = tools[lease.toolset]


def _stranger(id_: str, lease: bytes, *, is_unreadable: bool) -> ForeignWorker:
    key, _, rest = lease.partition(b".")
    try:
        said = decode(rest.partition(b".")[2])
        host = said.get("host", "") if isinstance(said, dict) else ""
    except (ValueError, RecursionError):
        host = ""
    return ForeignWorker(
        id=_shown(id_),
        host=_shown(host),
        key=_shown(key[:8].decode("ascii", "replace")),
        is_unreadable=is_unreadable,
    )


def _shown(text: Any) -> str:
    """Another worker's text, safe for a terminal."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:64])


def _note_entries(fleet: Fleet, envelope: Envelope, catalog: dict[bytes, bytes]) -> None:
    """Record the offered version of each tool: the newest that a worker runs, else the newest."""
    versions: dict[tuple[str, str], CatalogEntry] = {}
    for field_name, body in catalog.items():
        try:
            entry = envelope.decode(CatalogEntry, body)
        except MessageRejected:
            name = field_name.partition(b"\0")[0].decode(errors="replace")
            fleet.foreign_tools.append(_shown(name))
            continue
        version = (entry.spec.name, entry.spec.digest)
        known = versions.get(version)
        if known is None or known.published_at < entry.published_at:
            versions[version] = entry
    live = {version for tools in fleet.offers.values() for version in tools.items()}
    ordered = sorted(versions, key=lambda v: (v in live, versions[v].published_at))
    for name, digest in ordered:  # the last entry counts
        if not versions[name, digest].removed:
            fleet.entries[name] = versions[name, digest]


def remove_tool(settings: Settings, name: str) -> int:
    """Take every version of a tool out of the catalog; return how many there were.

    Entries that we can read are replaced by signed removals, which running workers respect.
    """
    names, envelope = RedisKeys(settings.key_prefix), Envelope(keyring(settings))
    with answering(settings) as client:
        catalog: dict[bytes, bytes] = client.hgetall(names.catalog)
        now = fleet_time(client, settings)
        fields = {
            raw: body for raw, body in catalog.items() if raw.partition(b"\0")[0] == name.encode()
        }
        removed = 0
        pipeline = client.pipeline(transaction=True)
        for raw, body in fields.items():
            try:
                entry = envelope.decode(CatalogEntry, body)
            except MessageRejected:
                pipeline.hdel(names.catalog, raw)
                removed += 1
                continue
            if not entry.removed:
                gone = replace(entry, removed=True, published_at=now + 1.0)
                pipeline.hset(names.catalog, raw, envelope.encode(gone))
                removed += 1
        if removed:
            pipeline.set(names.catalog_version, secrets.token_hex(8))
            pipeline.pexpire(names.catalog_version, CATALOG_TTL_SECONDS * 1000)
            pipeline.execute()
        return removed


def set_switch(
    settings: Settings,
    tool: str,
    argument: str | None,
    value: Any,
    reason: str,
    *,
    on: bool,
    tenant: str | None = None,
) -> bool:
    """Deny a tool to the fleet, or remove the denial.

    Returns whether the same denial existed before. Raises ValueError for an unenforceable switch,
    and as `read_fleet` does.
    """
    names, envelope = RedisKeys(settings.key_prefix), Envelope(keyring(settings))
    switches = KillSwitches(envelope, names.prefix)
    with answering(settings) as client:
        switches.take(*_switch_states(client, names))
        now = fleet_time(client, settings)
        switch = make_switch(tool, argument, value, reason, set_at=now, on=on, tenant=tenant)
        before = {switch_name(known) for known in switches.denying()}
        while True:
            change = switches.change(switch)
            version, states = _switch_states(client, names, change)
            switches.take(version, states)
            if states.get(change.field) == change.after:
                return change.field in before


def _switch_states(client: Any, names: RedisKeys, change: SwitchChange | None = None) -> States:
    """Read the kill switches, after a change; see `SwitchLedger.switches`."""
    words = [] if change is None else [new_nonce(), change.field, change.before, change.after]
    step = client.register_script(script(LuaScript.SWITCH)[0])
    return switch_states(
        step(keys=[names.epoch, names.switches], args=[secrets.token_hex(8), *words])
    )


def describe(lease: WorkerLease, fleet: Fleet) -> dict[str, Any]:
    """A worker as plain data, for programs."""
    return {
        "id": lease.id,
        "host": lease.host,
        "pid": lease.pid,
        "version": lease.version,
        "up": round(max(0.0, fleet.now - lease.started_at), 1),
        "slots": lease.slots,
        "slots_used": {
            queue: count - lease.free.get(queue, count) for queue, count in lease.slots.items()
        },
        "running": lease.running,
        "stuck": lease.abandoned,
        "leaving": lease.leaving,
        "stale_tools": fleet.stale_tools(lease.id),
    }
