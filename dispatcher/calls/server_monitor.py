"""Surveys the server for published tools, live workers and calls that may be lost."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

from toolpool.contract import logs
from toolpool.contract.envelope import WorkerLease
from toolpool.contract.errors import CatalogEmpty, MessageRejected, Misconfigured
from toolpool.dispatcher.admission.availability import Availability
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.calls.fleet_circuits import FleetCircuits
from toolpool.dispatcher.calls.live_workers import LiveWorkers
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.recovery import Recovery
from toolpool.dispatcher.calls.reporting import Reporter
from toolpool.dispatcher.calls.services import Calls, Services

log = logs.logger("server_monitor")

_LONGEST_PAUSE_SECONDS = 1.0
_TOOLS_EVERY_SECONDS = 0.05
_CHANNELS_AT_ONCE = 5_000
"""Limits the arguments of one command in a script."""


class ServerMonitor:
    """Surveys the server about once a second; a fault is logged, and the next survey follows.

    `follows_catalog` is false if the tools come from a file.
    """

    def __init__(
        self,
        services: Services,
        calls: Calls,
        *,
        catalog: Catalog,
        pump: Pump,
        recovery: Recovery,
        fleet: LiveWorkers,
        available: Availability,
        circuits: FleetCircuits,
        reporter: Reporter,
        follows_catalog: bool,
    ) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._observers = services.observers
        self._calls = calls
        self._catalog = catalog
        self._pump = pump
        self._recovery = recovery
        self._fleet = fleet
        self._available = available
        self._circuits = circuits
        self._reporter = reporter
        self._follows_catalog = follows_catalog
        # A lease must span several surveys, or a living worker's lease would seem to be missing.
        self._every = min(_LONGEST_PAUSE_SECONDS, services.settings.lease_ttl / 8)
        self._unserved_timeout = services.settings.unserved_timeout
        self._strangers = 0
        self._workers: set[str] = set()
        self._subscribed: list[str] = []
        """The workers that were subscribed to their liveness channels at the last survey."""
        self._looking = asyncio.Lock()
        self._is_due = asyncio.Event()

    async def run(self) -> None:
        """Survey until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._is_due.wait()
            self._is_due.clear()
            await self.once()

    def soon(self) -> None:
        """Survey now instead of at the next interval."""
        self._is_due.set()

    async def wait_for_tools(self, seconds: float) -> None:
        """Return as soon as there is a tool. Raises `CatalogEmpty` or `Misconfigured`."""
        give_up_at = time.monotonic() + seconds
        while not self._catalog.has_tools:
            if self._catalog.refused:
                name, reason = next(iter(self._catalog.refused.items()))
                raise Misconfigured(f"no tool can be offered: {name}: {reason}")
            if time.monotonic() >= give_up_at:
                if self._catalog.strangers:
                    raise CatalogEmpty(
                        f"{self._catalog.strangers} tools are published, but signed with another "
                        "key: set TOOLPOOL_SIGNING_KEY to the key of the workers"
                    )
                raise CatalogEmpty(
                    f"no worker has published a tool in {seconds:g} s: start one with `toolpool "
                    "worker --tools …` on the same Redis, key prefix and signing key"
                )
            await asyncio.sleep(_TOOLS_EVERY_SECONDS)
            await self.once()

    async def once(self) -> None:
        """Survey once. Never raises."""
        try:
            async with self._looking:  # one survey at a time: an older one must not be applied last
                await self._look()
        except Exception as error:  # noqa: BLE001 - what was known stays good
            self._recovery.interrupted()
            self._pump.interrupted()
            log.warning("server_not_followed: %s", error)

    async def _look(self) -> None:
        if self._follows_catalog:
            entries = await self._transport.catalog()
            if entries is not None:
                self._catalog.replace_published(entries, self._envelope)
            self._catalog.forget_gone()
        calls = [p for p in self._calls.all_open() if not p.awaits_approval]
        survey = await self._transport.survey(
            sorted({pending.queue for pending in calls if pending.queue}),
            self._reporter.report(),
            workers=self._subscribed,
        )
        await self._available.follow_switches()
        await self._circuits.follow()
        leases = self._read(survey.leases)
        await self._fleet.follow(leases)
        self._subscribed = [lease.id for lease in leases if lease.subscribed][:_CHANNELS_AT_ONCE]
        self._tell(leases)
        if self._follows_catalog:
            self._catalog.follow_live(self._fleet.live)
            self._catalog.withhold(
                await self._fleet.unserved(self._catalog.published, after=self._unserved_timeout)
            )
        self._pump.set_workers(self._fleet.slots)
        await self._recovery.examine(survey, leases, calls)

    def _tell(self, leases: Iterable[WorkerLease]) -> None:
        """Report the workers that came and went since the last survey."""
        seen = {lease.id for lease in leases if not (lease.ended or lease.leaving)}
        for worker in seen - self._workers:
            self._observers.notify("worker_up", worker)
        for worker in self._workers - seen:
            self._observers.notify("worker_down", worker)
        self._workers = seen

    def _read(self, bodies: Iterable[bytes]) -> list[WorkerLease]:
        """The leases that are signed with our key; the number of others is logged once."""
        leases: list[WorkerLease] = []
        strangers = 0
        for body in bodies:
            try:
                leases.append(self._envelope.decode(WorkerLease, body))
            except MessageRejected:
                strangers += 1
        if strangers != self._strangers:
            self._strangers = strangers
            log.warning("leases_rejected count=%d: not signed with our key", strangers)
        return leases
