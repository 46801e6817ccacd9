"""Many dispatchers ask for the same calls, each in its own time; some change their minds or die."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from tests.chaos.asker import Asker
from tests.chaos.book import Asked
from tests.chaos.fleet import Fleet, environment_of
from tests.chaos.load import KINDS, allowed_seconds
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.servers import Server
from toolpool import Dispatcher
from toolpool.contract.settings import Settings

_CALLS = 15
_SPREAD_SECONDS = 3.0
_TIMEOUTS = (1.5, 3.0, 5.0)
_LONGEST_WAIT = 6.0
_TICK_SECONDS = 0.05
_Kill = Callable[[], Awaitable[None]]
_CANCEL, _HAND_OVER, _KILL_ASKER, _KILL_WORKER = 0.12, 0.15, 0.6, 0.5


@dataclass(frozen=True, slots=True)
class _Storm:
    """The calls of one storm, and when each of so many askers asks for one, in seconds."""

    calls: list[dict[str, Any]]
    askings: list[tuple[float, int, int]]


@row("second-askers", short=2, long=60)
async def second_askers(scene: Scene) -> None:
    """2 to 30 dispatchers ask for the same calls with other waits, cancel, and are killed."""

    async def hurt(server: Server, fleet: Fleet, kill_asker: _Kill) -> None:
        if scene.rng.random() < _KILL_WORKER:
            await scene.off_loop(scene.rng.choice(fleet.workers).kill)
        if scene.rng.random() < _KILL_ASKER:
            await kill_asker()

    await _storms(scene, KINDS, hurt)


@row("asked after a loss", short=3, long=60)
async def asked_after_a_loss(scene: Scene) -> None:
    """Calls that may not run twice, while they are asked for; Redis loses its data meanwhile."""

    async def lose(server: Server, fleet: Fleet, kill_asker: _Kill) -> None:
        def flush() -> None:
            with server.client() as client:
                client.flushall()

        await scene.off_loop(flush)

    await _storms(scene, ("write", "plain"), lose, at_faults=True)


async def _storms(
    scene: Scene,
    kinds: Sequence[str],
    hurt: Callable[[Server, Fleet, "_Kill"], Awaitable[None]],
    *,
    at_faults: bool = False,
) -> None:
    """`at_faults`: all but the first asker of a call ask for it right after the fault."""
    server = await scene.server()
    settings = scene.settings(server.url, queue_timeout=_LONGEST_WAIT, slots_process=4)
    fleet = await scene.fleet(settings)
    rng = scene.rng
    waits = [_LONGEST_WAIT] + [rng.uniform(0.3, _LONGEST_WAIT) for _ in range(27)]
    waits = waits if scene.long else waits[:8]
    numbers = itertools.count()
    async with AsyncExitStack() as stack:
        living = []
        for wait in waits:
            own = settings.model_copy(update={"queue_timeout": wait})
            living.append(await stack.enter_async_context(Dispatcher.connect(settings=own)))
        mortal = [await _start(scene, settings) for _ in range(2)]

        async def kill_asker() -> None:
            victim = rng.randrange(len(mortal))
            heir = await _start(scene, settings)
            dying, mortal[victim] = mortal[victim], heir
            for call in await dying.kill():
                scene.book.calls[call["id"]].askers -= 1

        for _ in range(scene.faults):
            fault_at = rng.uniform(0.2, _SPREAD_SECONDS)
            most = len(living) + len(mortal)
            storm = _storm(rng, numbers, most, kinds, fault_at if at_faults else None)
            asking = asyncio.ensure_future(_play(scene, storm, living, waits, mortal))
            await asyncio.sleep(fault_at)
            scene.fault()
            await hurt(server, fleet, kill_asker)
            await asking
        give_up_at = time.monotonic() + allowed_seconds(settings, max(_TIMEOUTS)) + 1.0
        while any(asker.unanswered for asker in mortal) and time.monotonic() < give_up_at:
            await asyncio.sleep(_TICK_SECONDS)
        for asker in mortal:
            await asker.kill()


async def _start(scene: Scene, settings: Settings) -> Asker:
    environment = environment_of(settings, scene.journal.path)
    asker = Asker(scene.book, environment, allowed_seconds(settings))
    await asker.start()
    return asker


def _storm(
    rng: random.Random,
    numbers: "itertools.count[int]",
    most: int,
    kinds: Sequence[str],
    fault_at: float | None,
) -> _Storm:
    calls: list[dict[str, Any]] = []
    askings = []
    for number in range(_CALLS):
        key = f"c{next(numbers)}"
        seconds = round(rng.choice((rng.uniform(0.0, 0.4), rng.uniform(0.5, 2.5))), 2)
        tool = f"{rng.choice(kinds)}_{rng.choice(ALL_MODES)}"
        arguments = {"key": key, "seconds": seconds, "how": "stamp"}
        session = f"s{rng.randrange(4)}"
        calls.append({"id": key, "name": tool, "input": arguments, "session": session, "turn": key})
        askers = rng.sample(range(most), rng.randint(2, most))
        if fault_at is not None:
            times = [0.0] + [fault_at + rng.uniform(0.0, 0.5) for _ in askers[1:]]
        else:
            at_once = rng.random() < 0.4
            times = [0.0 if at_once else rng.uniform(0.0, _SPREAD_SECONDS) for _ in askers]
        askings += [(at, number, asker) for at, asker in zip(times, askers, strict=True)]
    return _Storm(calls, sorted(askings))


async def _play(
    scene: Scene, storm: _Storm, living: list[Dispatcher], waits: list[float], mortal: list[Asker]
) -> None:
    """Ask as the storm has it, and return when those that live have been answered."""
    began = time.monotonic()
    longest = _LONGEST_WAIT + max(_TIMEOUTS)
    for call in storm.calls:
        scene.book.ask(Asked(call["id"], call["name"], began, longest, askers=0))
    asking = []
    for at, number, asker in storm.askings:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        call = storm.calls[number]
        asked = scene.book.calls[call["id"]]
        if asker < len(living):
            chance = random.Random(scene.rng.random())
            one = _ask(scene, living[asker], waits[asker], call, chance)
            asking.append(asyncio.ensure_future(one))
        elif call["id"] not in mortal[asker - len(living)].unanswered:
            asked.askers += 1
            mortal[asker - len(living)].ask(call)
    await asyncio.gather(*asking)


async def _ask(
    scene: Scene, dispatcher: Dispatcher, wait: float, call: dict[str, Any], rng: random.Random
) -> None:
    """One asker's word on one call: it is answered, hands it over for a while, or cancels."""
    asked = scene.book.calls[call["id"]]
    timeout = rng.choice(_TIMEOUTS)
    allowed = allowed_seconds(dispatcher._settings, timeout)
    is_handed_over = rng.random() < _HAND_OVER
    session, began = call["session"], time.monotonic()
    bare = [{"id": call["id"], "name": call["name"], "input": call["input"]}]
    asking = asyncio.ensure_future(
        dispatcher.dispatch(
            bare,
            session=session,
            turn=call["turn"],
            timeout=timeout,
            wait=rng.uniform(0.1, 1.5) if is_handed_over else None,
        )
    )
    if rng.random() < _CANCEL:
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        return
    asked.askers += 1
    try:
        (result,) = await asking
        while result.handle is not None:
            final = await dispatcher.task_result(result.handle, session=session, wait=allowed)
            result = final if final is not None else result
    except Exception as error:
        scene.book.raised.append(repr(error))
        return
    scene.book.answered(call["id"], result, time.monotonic() - began - allowed)
