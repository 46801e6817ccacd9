"""What a row plays on: servers, workers, a dispatcher under load, and a clock for recovery."""

import asyncio
import random
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from tests.chaos import policy
from tests.chaos.book import RECOVERY_SECONDS, Book, Figures
from tests.chaos.fleet import Fleet
from tests.chaos.journal import Journal
from tests.chaos.load import Load
from tests.chaos.proxy import Proxy
from tests.chaos.servers import Server
from toolpool import Dispatcher, Hooks
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key

ALL_MODES = ("loop", "thread", "process")
_LOOK_SECONDS = 0.05
_BEAT_SECONDS = 0.02
_Result = TypeVar("_Result")


class Skipped(Exception):
    """The row cannot be played on this machine; says why."""


class Scene:
    """One row's play. `faults` is how many it should bring about; all chance comes from `rng`."""

    def __init__(
        self,
        row: str,
        *,
        faults: int,
        long: bool,
        seed: int,
        logs: Path | None = None,
        with_hooks: bool = False,
    ) -> None:
        self._with_hooks = with_hooks
        self.faults = faults
        self.long = long
        self.rng = random.Random(f"{seed}:{row}")
        self.figures = Figures(row=row, seed=seed)
        self.book = Book()
        self.deadly: set[str] = set()
        """Keys of calls that end their worker when they start."""
        self._logs = logs
        self._stack = AsyncExitStack()
        self._began = time.monotonic()
        self._lag = _Lag()

    async def __aenter__(self) -> "Scene":
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        self.directory = Path(directory)
        self.journal = Journal(self.directory / "journal")
        self._stack.push_async_callback(self._judge)  # when all that comes after it has ended
        self._lag.start()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """End everything, last first, and then hold the answers against the journal."""
        await self._stack.aclose()
        self._lag.stop()

    async def _judge(self) -> None:
        self.book.judge(self.figures, self.journal)
        self.figures.lag = self._lag.longest
        if self._logs is not None:
            copy = self._logs / self.figures.row
            shutil.copytree(self.directory, copy, ignore=_only_logs, dirs_exist_ok=True)
            (copy / "book").write_text("\n".join(map(str, self.book.calls.values())))
        self.figures.seconds = time.monotonic() - self._began

    async def server(self, name: str = "server", **options: Any) -> Server:
        """A server of the row's own."""
        server = await self.off_loop(lambda: Server(self.directory / name, **options))
        self._stack.push_async_callback(asyncio.to_thread, server.close)
        return server

    async def proxy(self, server: Server) -> Proxy:
        """A proxy that leads to a server."""
        proxy = Proxy(server.port, self.rng)
        await proxy.start()
        self._stack.push_async_callback(proxy.close)
        return proxy

    def settings(self, url: str, **changes: Any) -> Settings:
        """Settings with short times, so that rows are quick."""
        defaults: dict[str, Any] = {
            "redis_url": url,
            "signing_key": SecretStr(generate_key()),
            "queue_timeout": 8.0,
            "slots_process": 2,
            "drain_timeout": 3.0,
            # Rows about faults are full of failures; an open circuit would hide what comes after.
            "circuit_minimum_calls": 1_000_000,
        }
        return Settings(**(defaults | changes))

    async def fleet(self, settings: Settings, **options: Any) -> Fleet:
        """Workers that have taken their leases."""
        given = {"journal": self.journal, **options}
        fleet = await self.off_loop(lambda: Fleet(settings, self.directory, **given))
        self._stack.push_async_callback(asyncio.to_thread, fleet.close)
        return fleet

    @asynccontextmanager
    async def load(
        self, settings: Settings, *, hooks: Hooks | None = None, **options: Any
    ) -> AsyncIterator[Load]:
        """A dispatcher with calls coming in until the block ends, and answered after that."""
        if hooks is None and self._with_hooks:
            hooks = policy.hooks(self.rng)
        async with Dispatcher.connect(settings=settings, hooks=hooks) as dispatcher:
            async with Load(dispatcher, self.book, self.rng, **options) as load:
                await self.recovered(set(load.modes), count=False)  # all run before the first fault
                yield load

    async def off_loop(self, call: Callable[[], _Result]) -> _Result:
        """Run what blocks without holding up the dispatcher."""
        return await asyncio.to_thread(call)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for what must come about for the row to go on."""
        give_up_at = time.monotonic() + RECOVERY_SECONDS * 2
        while not await self.off_loop(condition):
            assert time.monotonic() < give_up_at, f"not in time: {what}"
            await asyncio.sleep(_LOOK_SECONDS)

    async def pause(self, least: float, most: float) -> None:
        """Wait a random while, as the seed has it."""
        await asyncio.sleep(self.rng.uniform(least, most))

    @contextmanager
    def outage(self) -> Iterator[None]:
        """While this lasts the server does not answer: what runs is not to be lost to it."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.book.outages.append((began, time.monotonic()))

    def fault(self) -> None:
        """Count one."""
        self.figures.faults += 1

    def expect_all_ok(self) -> None:
        """For faults that lose nothing, not even to an honest failure."""
        failed = [
            f"{asked.key}:{asked.tool}:{answer.code}"
            for asked in self.book.calls.values()
            for answer in asked.answers
            if not answer.ok
        ]
        if failed:
            self.figures.problems.append(f"not ok: {len(failed)}, among them {failed[:6]}")

    async def recovered(self, modes: Collection[str] = ALL_MODES, *, count: bool = True) -> float:
        """Wait until calls asked from now on start in each of these modes; how long it took.

        From the last fault on: a call that ends its worker may be in the queue still.
        """
        since = began = time.monotonic()
        missing = set(modes)
        while missing and time.monotonic() - since < RECOVERY_SECONDS * 2:
            await asyncio.sleep(_LOOK_SECONDS)
            for line in self.journal.follow():
                if line.word == "start" and line.key in self.deadly:
                    since = time.monotonic()
                asked = self.book.calls.get(line.key)
                if line.word == "start" and asked is not None and asked.at >= began:
                    missing.discard(line.mode)
        took = time.monotonic() - since
        if count:
            self.figures.recovery = max(self.figures.recovery, took)
        return took

    async def repeat(
        self, fault: Callable[[], Awaitable[Collection[str]]], least: float, most: float
    ) -> None:
        """Bring the row's faults about at random times; `fault` answers which modes it hurt.

        After about every other one, recovery is waited for; the rest come on top of one another.
        """
        for number in range(self.faults):
            await self.pause(least, most)
            self.book.faults.append(time.monotonic())
            modes = await fault()
            self.fault()
            if number == self.faults - 1 or self.rng.random() < 0.5:
                await self.recovered(modes)


def _only_logs(folder: str, names: list[str]) -> list[str]:
    """What is not copied: sockets cannot be, and the servers' data say little."""
    return [name for name in names if name == "s" or name.startswith("appendonly")]


class _Lag:
    """How late a thread of this process is woken: the noise of the machine, measured."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _beat(self) -> None:
        while not self._stopping.is_set():
            before = time.monotonic()
            time.sleep(_BEAT_SECONDS)
            self.longest = max(self.longest, time.monotonic() - before - _BEAT_SECONDS)
