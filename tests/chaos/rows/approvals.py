"""Calls that wait for a person while everything around them dies, and clocks jump."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from typing import Any

from tests.chaos import processes
from tests.chaos.asker import ASKS, Asker
from tests.chaos.book import RECOVERY_SECONDS, Asked
from tests.chaos.fleet import Fleet, environment_of
from tests.chaos.load import allowed_seconds
from tests.chaos.people import Case, People
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.servers import Server
from tests.chaos.wall_clock import WallClock
from toolpool import Dispatcher

_RATE = 14.0
_JUMPS = (3_600.0, -3_600.0, -3_600.0, 3_600.0)
_EXPIRES = (2.0, 12.0, 12.0, 12.0)
_QUEUE_WAIT_SECONDS = 14.0
"""To wait for one lease after the server's clock has jumped, and be started then."""
_SWITCHED = "write_thread"


class _Desk(Asker):
    """A dispatcher whose calls wait for people: their time begins with what these decide."""

    cases: dict[str, Case]
    stops: list[tuple[float, float]]

    def late_by(self, said: dict[str, Any]) -> float:
        case, now = self.cases.get(said["id"]), time.monotonic()
        if case is None:
            return super().late_by(said)
        stood = sum(
            min(now, ended) - max(case.asked_at, began)
            for began, ended in self.stops
            if ended > case.asked_at
        )
        return now - case.owed_from - self._allowed - stood


class _Play:
    """Three dispatchers that ask a person, and a stranger that does not know the rule."""

    def __init__(self, scene: Scene, fleet: Fleet, server: Server, clock: WallClock) -> None:
        self._scene = scene
        self._fleet = fleet
        self._server = server
        self._clock = clock
        self._rng = scene.rng
        self._jumps = itertools.cycle(_JUMPS)
        self._numbers = itertools.count()
        self._plain = environment_of(fleet.settings, scene.journal.path)
        self._calls: dict[str, dict[str, Any]] = {}
        self._stops: list[tuple[float, float]] = []
        self._desks: list[_Desk] = []
        self.cases: dict[str, Case] = {}
        self.people: People

    async def start(self) -> None:
        """Start the dispatchers."""
        asks = [True, True, True, False]
        *self._desks, self._stranger = await asyncio.gather(*(self._open(each) for each in asks))

    async def _open(self, asks: bool = True) -> _Desk:
        scene, environment = self._scene, self._plain | ({ASKS: "1"} if asks else {})
        # Behind a fault an approved call may wait for its queue wait once more.
        allowed = allowed_seconds(self._fleet.settings) + RECOVERY_SECONDS
        desk = _Desk(scene.book, environment, allowed)
        desk.cases, desk.stops = self.cases, self._stops
        await desk.start()
        return desk

    async def ask_on(self) -> None:
        """For ever, four of five calls such that a person has to approve them."""
        while True:
            await asyncio.sleep(self._rng.expovariate(_RATE))
            self._ask(f"c{next(self._numbers)}")

    def _ask(self, key: str) -> None:
        rng, at, session = self._rng, time.monotonic(), f"s-{key}"
        tool = f"{rng.choice(('write', 'plain'))}_{rng.choice(ALL_MODES)}"
        tool = "rated_loop" if rng.random() < 0.5 else tool
        given = {"key": key, "seconds": round(rng.uniform(0.0, 0.4), 2)}
        call = {"id": key, "name": tool, "input": given, "session": session, "turn": key}
        if rng.random() < 0.8:
            expires = rng.choice(_EXPIRES)
            call |= {"context": {"expires": expires}, "wait": rng.uniform(0.1, 1.0)}
            self.cases[key] = Case(key, tool, session, at, expires)
            self._calls[key] = call
        self._scene.book.ask(Asked(key, tool, at, allowed_seconds(self._fleet.settings)))
        rng.choice(self._desks).ask(call)

    def owner(self, key: str) -> _Desk | None:
        """The dispatcher that has a call now."""
        return next((desk for desk in self._desks if key in desk.unanswered), None)

    def seen(self, case: Case) -> None:
        """Now and then another dispatcher asks for the same call, one without the rule."""
        if self._rng.random() < 0.15:
            self._scene.book.calls[case.key].askers += 1
            self._stranger.ask(self._calls[case.key])

    async def hurt(self) -> Collection[str]:
        """The next fault; which kinds of tools it hurt."""
        faults = (
            self._kill,
            self._kill_worker,
            self._restart,
            self._jump,
            self._freeze,
            self._deny,
        )
        turn, place = divmod(self._scene.figures.faults, len(faults))
        return await faults[(place + turn) % len(faults)]() or ALL_MODES

    async def _kill(self) -> None:
        """What a dispatcher owed, another is asked for: again, or by its handle."""
        rng, number = self._rng, self._rng.randrange(len(self._desks))
        dead = self._desks[number]
        self._desks[number] = self._desks[number - 1]  # nobody asks one that is dead
        owed, replacement = await dead.kill(), await self._open()
        self._desks[number] = replacement
        heir = rng.choice((self._desks[number - 1], replacement))
        for call in owed:
            key = call["id"]
            if key in heir.unanswered:
                self._scene.book.calls[key].askers -= 1
                continue
            if key in self.cases:
                self.cases[key].asked_at = time.monotonic()
            by_handle = key in dead.handles and rng.random() < 0.5
            heir.ask({**call, "handle": dead.handles[key]} if by_handle else call)

    async def _kill_worker(self) -> Collection[str]:
        worker = self._rng.choice(self._fleet.workers)
        await self._scene.off_loop(worker.kill)
        return worker.run_in.split(",")

    async def _restart(self) -> None:
        began = time.monotonic()
        with self._scene.outage():
            await self._scene.off_loop(self._server.kill)
            await self._scene.pause(0.1, 0.8)
            await self._scene.off_loop(self._server.start)
        self._stops.append((began, time.monotonic()))

    async def lose(self) -> Collection[str]:
        """Redis comes back without its last moment; whoever talked to it lives on."""
        await self._scene.off_loop(self._server.keep_data)
        since = time.monotonic()
        await self._scene.pause(0.1, 1.0)
        with self._scene.outage():
            await self._scene.off_loop(self._server.kill)
            self.people.lost.append((since, time.monotonic()))
            await self._scene.off_loop(self._server.restore_data)
            await self._scene.off_loop(self._server.start)
        self._stops.append((since, time.monotonic()))
        return ALL_MODES

    async def _jump(self) -> None:
        self._clock.offset += next(self._jumps)

    async def _freeze(self) -> None:
        began, frozen = time.monotonic(), self._rng.choice(self._desks).pid
        processes.send([frozen], processes.STOP)
        await self._scene.pause(2.0, 6.0)
        processes.send([frozen], processes.CONTINUE)
        self._stops.append((began, time.monotonic()))

    async def _deny(self) -> None:
        await self.people.switch(_SWITCHED, seconds=self._rng.uniform(1.0, 2.0))

    async def end(self) -> None:
        """Return when all was answered or is far too late, and the dispatchers are dead."""
        desks = [*self._desks, self._stranger]
        longest = max(_EXPIRES) + allowed_seconds(self._fleet.settings) + RECOVERY_SECONDS
        give_up_at = time.monotonic() + longest
        while any(desk.unanswered for desk in desks) and time.monotonic() < give_up_at:
            await asyncio.sleep(0.05)
        await self.people.done()
        await asyncio.gather(*(desk.kill() for desk in desks))


@row("approvals", short=6, long=96)
async def approvals(scene: Scene) -> None:
    """People approve, deny and cancel while dispatchers, workers and Redis die and clocks jump."""
    await _play(scene, lambda play: play.hurt, 2.0)


@row("lost decisions", short=4, long=48)
async def lost_decisions(scene: Scene) -> None:
    """People approve, deny and cancel while Redis keeps coming back without its last moment."""
    await _play(scene, lambda play: play.lose, 6.0)


async def _play(
    scene: Scene, fault: Callable[[_Play], Callable[[], Awaitable[Collection[str]]]], rest: float
) -> None:
    clock = WallClock(scene.directory, "server")
    server = await scene.server(environment=clock.environment)
    settings = scene.settings(server.url, queue_timeout=_QUEUE_WAIT_SECONDS)
    fleet = await scene.fleet(settings)
    play = _Play(scene, fleet, server, clock)
    await play.start()
    async with AsyncExitStack() as stack:
        anna, ben = [
            await stack.enter_async_context(Dispatcher.connect(settings=settings)) for _ in "ab"
        ]
        people = play.people = People((anna, ben), settings, scene.rng, play.owner)
        people.cases = play.cases
        asking = asyncio.ensure_future(play.ask_on())
        deciding = asyncio.ensure_future(people.decide(play.seen))
        await scene.recovered(count=False)
        await scene.repeat(fault(play), rest / 4, rest)
        asking.cancel()
        await play.end()
        deciding.cancel()
        for ended in (asking, deciding):
            with suppress(asyncio.CancelledError):
                await ended  # raises what it ended with, if not this
    people.judge(scene.figures, scene.book, scene.journal)
    scene.figures.notes.append(f"{people.decisions} calls were decided by a person")
