"""The walk over all roads on a real server: processes die, and the server's clock jumps."""

import asyncio
import json
import random
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings

from tests.chaos.fleet import Fleet, environment_of
from tests.chaos.journal import Journal
from tests.chaos.scene import Skipped
from tests.chaos.servers import Server
from tests.chaos.wall_clock import WallClock
from tests.roads.host import Case, Said
from tests.roads.walk import WRITTEN, Lost, Step, Taking, Walk, steps
from toolpool.contract.settings import Settings

pytestmark = pytest.mark.long

HOUR = 3600.0
_WRITTEN = re.compile(rb"toolpool(:(call|approvals|approved|shared|reply)|\.)")
"""Not the marks, and nothing whose loss lets more start: rates and switches."""
SECONDS = 40.0
"""No walk begins after so long."""


class Process:
    """A host in a process of its own, that can be killed."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def start(self) -> "Process":
        """Return when it is connected."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.roads.host",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):
                id, said = json.loads(line)
                if not (asked := self._asked.pop(id)).done():
                    asked.set_result(said)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(Lost)

    async def do(self, what: str, case: Case, handle: str | None = None) -> Said:
        """See `Taking`."""
        assert self._process.stdin is not None
        if self._reading.done():
            raise Lost
        id = time.monotonic_ns()
        answer = self._asked[id] = asyncio.get_running_loop().create_future()
        line = msgspec.json.encode([id, what, case, handle])
        with suppress(OSError):
            self._process.stdin.write(line + b"\n")
        said = await answer
        if isinstance(said, str):
            raise AssertionError(f"{what} of {case}: {said}")
        return msgspec.convert(said, Said)

    async def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading


class Real:
    """Two hosts and two workers on a server whose clock can be set."""

    def __init__(self, clock: WallClock, fleet: Fleet, environment: dict[str, str]) -> None:
        self._clock = clock
        self._fleet = fleet
        self._environment = environment
        self._client: Any = redis.Redis.from_url(environment["TOOLPOOL_REDIS_URL"])
        self._copies: dict[bytes, bytes | None] = {}
        self._spares = [self._started() for _ in range(4)]
        self.hosts: list[Taking] = []
        self.happened: list[str] = []

    def _started(self) -> "asyncio.Future[Process]":
        return asyncio.ensure_future(Process(self._environment).start())

    async def _next(self) -> Process:
        self._spares.append(self._started())
        return await self._spares.pop(0)

    async def connect(self) -> None:
        """Have two hosts."""
        for _ in range(2):
            self.hosts.append(await self._next())

    async def happen(self, what: str, number: int) -> None:
        """A host or a worker dies, or the server's clock jumps."""
        if what == "kill worker":
            if await asyncio.to_thread(self._fleet.living) < len(self._fleet.workers):
                return
            self._fleet.workers[number].kill()
        elif what in WRITTEN:
            await asyncio.to_thread(self._write, what)
        elif what == "jump":
            # An hour either way, and no more: what is kept for long is kept for that.
            self._clock.offset = 0.0 if self._clock.offset else HOUR * (1 - 2 * number)
        else:
            host = self.hosts[number]
            assert isinstance(host, Process)
            self.hosts[number] = await self._next()
            await host.kill()
        self.happened.append(what)

    def _write(self, what: str) -> None:
        """By somebody without the key, who leaves marks alone: see `docs/security.md`."""
        found = [key for key in self._client.scan_iter() if _WRITTEN.match(key)]
        if what == "copy":
            self._copies = {key: self._client.dump(key) for key in found}
            return
        rng = random.Random(len(self.happened))
        for key in rng.sample(found, len(found) // 2) if what != "restore" else ():
            self._client.delete(key)
            if what == "junk":
                self._client.set(key, b"junk", px=60_000)
        for key, value in self._copies.items() if what == "restore" else ():
            if value is not None:
                self._client.restore(key, 600_000, value, replace=True)

    async def close(self) -> None:
        """End the hosts."""
        for host in (*self.hosts, *[await spare for spare in self._spares]):
            assert isinstance(host, Process)
            await host.kill()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Real]:
    try:
        clock = WallClock(tmp_path, "server")
    except Skipped as reason:
        pytest.skip(str(reason))
    server = Server(tmp_path / "server", aof=False, environment=clock.environment)
    options = Settings(
        redis_url=server.url,
        background_wait=0.02,
        queue_timeout=5.0,
        approval_expires=2.0,
        lease_ttl=2.0,
        worker_return_timeout=1.0,
    )
    journal = Journal(tmp_path / "journal")
    fleet = Fleet(
        options, tmp_path, journal, copies=2, groups=("loop",), tools="tests.fleets.roads"
    )
    real = Real(clock, fleet, environment_of(options, journal.path))
    await real.connect()
    yield real
    await real.close()
    fleet.close()
    server.close()


@pytest.mark.timeout(120)
async def test_an_approved_call_runs_once_despite_crashes_and_clock_jumps(
    scene: Real, tmp_path: Path
) -> None:
    """Deaths, jumps of an hour, and a writer without the key, between any two steps."""
    loop, give_up_at = asyncio.get_running_loop(), time.monotonic() + SECONDS
    walks: list[Walk] = []

    async def walk(chosen: list[Step]) -> None:
        walks.append(Walk(scene, tmp_path / f"trace{len(walks)}"))
        await walks[-1].take(chosen)

    @settings(
        max_examples=100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(steps("kill host", "kill worker", "kill worker", *["jump"] * 4, *WRITTEN, most=30))
    def walk_on(chosen: list[Step]) -> None:
        if time.monotonic() < give_up_at:
            asyncio.run_coroutine_threadsafe(walk(chosen), loop).result()

    await asyncio.to_thread(walk_on)
    for each in walks:
        each.hold()
    ran = sum(len(starts) for each in walks for starts in each.starts().values())
    assert ran
    assert {"kill host", "kill worker", "jump", *WRITTEN} <= set(scene.happened)
