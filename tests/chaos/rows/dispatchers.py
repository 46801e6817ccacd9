"""SIGKILL of dispatchers, with the same calls asked again by another (R18)."""

import asyncio
import itertools
import random
import time
from collections.abc import Collection
from typing import Any

from tests.chaos.asker import Asker
from tests.chaos.book import Asked
from tests.chaos.fleet import environment_of
from tests.chaos.load import KINDS, allowed_seconds
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene

_RATE = 30.0
_TICK_SECONDS = 0.05
_ASK_BOTH = 0.15


@row("dispatcher-kill", short=5, long=100)
async def dispatcher_kill(scene: Scene) -> None:
    """Two share the calls and are both asked for some; what a dead one owed, another asks."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)
    allowed = allowed_seconds(settings)
    environment = environment_of(settings, scene.journal.path)
    askers = [Asker(scene.book, environment, allowed) for _ in range(2)]
    await asyncio.gather(*(asker.start() for asker in askers))
    numbers = itertools.count()
    tools = [f"{kind}_{mode}" for kind in KINDS for mode in ALL_MODES]

    def some_call(rng: random.Random) -> dict[str, Any]:
        key = f"c{next(numbers)}"
        tool = rng.choice(tools)
        scene.book.ask(Asked(key, tool, time.monotonic(), allowed))
        arguments = {"key": key, "seconds": round(rng.uniform(0.0, 0.3), 3)}
        session = f"s{rng.randrange(20)}"
        return {"id": key, "name": tool, "input": arguments, "session": session, "turn": key}

    async def ask_on() -> None:
        rng = random.Random(scene.rng.random())
        while True:
            await asyncio.sleep(rng.expovariate(_RATE))
            call = some_call(rng)
            both = rng.random() < _ASK_BOTH
            for asker in set(askers) if both else [rng.choice(askers)]:
                asker.ask(call)

    async def kill() -> Collection[str]:
        victim = scene.rng.randrange(2)
        replacement = Asker(scene.book, environment, allowed)
        dead, askers[victim] = askers[victim], askers[1 - victim]
        owed = await dead.kill()
        if scene.rng.random() < 0.5:  # at once by the other, or later by the one that comes next
            await replacement.start()
            askers[victim] = replacement
        heir = askers[victim]
        for call in owed:
            if call["id"] not in heir.unanswered:
                heir.ask(call)
        if heir is not replacement:
            await replacement.start()
            askers[victim] = replacement
        return ALL_MODES

    asking = asyncio.ensure_future(ask_on())
    try:
        await scene.recovered(count=False)
        await scene.repeat(kill, 0.3, 1.5)
    finally:
        asking.cancel()
    give_up_at = time.monotonic() + allowed + 5.0
    while any(a.unanswered for a in askers) and time.monotonic() < give_up_at:
        await asyncio.sleep(_TICK_SECONDS)
    for asker in askers:
        await asker.kill()
