"""A release rolls: workers with the old tools and with the new ones serve one queue."""

import asyncio
import itertools
import time
from collections.abc import Collection, Sequence
from typing import Any

from tests.chaos.book import Asked
from tests.chaos.load import allowed_seconds
from tests.chaos.rows import row
from tests.chaos.scene import Scene
from toolpool import Dispatcher

_RELEASES = ("tests.chaos.releases.old", "tests.chaos.releases.new")
_TOOLS = ("kept_loop", "changed_loop", "changed_thread", "removed_loop", "added_loop")
_GROUP = ("loop,thread",)
_RATE = 25.0
_UNSEEN_SECONDS = 3.0
"""A worker that leaves says so with its next beat, and dispatchers look once a second."""
_VALUES: dict[str, Any] = {"grams": 3, "unit": "kg", "amount": "3"}


@row("rolling-release", short=1, long=20)
async def rolling_release(scene: Scene) -> None:
    """Worker after worker is restarted with other tools, and then back; nobody is blamed for it."""
    server = await scene.server()
    settings = scene.settings(server.url, queue_timeout=10.0)
    fleet = await scene.fleet(settings, copies=2, groups=_GROUP, tools=_RELEASES[0])
    numbers = itertools.count()
    left_at: list[float] = []
    asking: set[asyncio.Task[None]] = set()

    async def ask(dispatcher: Dispatcher) -> None:
        offered = {found["name"]: found["input_schema"] for found in dispatcher.tools("anthropic")}
        name = scene.rng.choice([tool for tool in _TOOLS if tool in offered])
        key = f"c{next(numbers)}"
        values = {"key": key, "seconds": round(scene.rng.uniform(0.0, 0.3), 2), **_VALUES}
        arguments = {field: values[field] for field in offered[name]["properties"]}
        began, allowed = time.monotonic(), allowed_seconds(settings)
        scene.book.ask(Asked(key, name, began, allowed))
        call = {"id": key, "name": name, "input": arguments}
        (result,) = await dispatcher.dispatch([call], session="s", turn=key)
        scene.book.answered(key, result, time.monotonic() - began - allowed)

    async def ask_on(dispatcher: Dispatcher) -> None:
        while True:
            await asyncio.sleep(scene.rng.expovariate(_RATE))
            asking.add(task := asyncio.ensure_future(ask(dispatcher)))
            task.add_done_callback(asking.discard)

    async def roll() -> Collection[str]:
        tools = _RELEASES[(scene.figures.faults + 1) % 2]
        for worker in fleet.workers:
            worker.stop()
            left_at.append(time.monotonic())
            await scene.off_loop(worker.supervisor.wait)
            worker.tools = tools
            await scene.off_loop(worker.start)
            await scene.off_loop(lambda: fleet.wait_for_leases(len(fleet.workers)))
            await scene.pause(0.5, 2.0)
        return ()

    async with Dispatcher.connect(settings=settings) as dispatcher:
        load = asyncio.ensure_future(ask_on(dispatcher))
        try:
            await scene.repeat(roll, 1.0, 2.0)
            await scene.pause(1.0, 2.0)
        finally:
            load.cancel()
        await asyncio.gather(*asking)
    _expect(scene, left_at)


def _expect(scene: Scene, left_at: Sequence[float]) -> None:
    """All are ok, but for calls that no worker can take any more: they were not run.

    That is a tool that its release took along, and for a moment a version that did.
    """
    failed = [
        f"{asked.key}:{asked.tool}:{answer.code}:{answer.executed}"
        for asked in scene.book.calls.values()
        for answer in asked.answers
        if not answer.ok
        and not (
            (answer.code, answer.executed) == ("exception.expired", "no")
            and _may_be_gone(asked, left_at)
        )
    ]
    if failed:
        scene.figures.problems.append(f"not ok: {len(failed)}, among them {failed[:6]}")


def _may_be_gone(asked: Asked, left_at: Sequence[float]) -> bool:
    """A tool that no worker has any more is offered for a while: one may be on its way back."""
    if asked.tool in ("removed_loop", "added_loop"):
        return True
    is_changed = asked.tool.startswith("changed")
    return is_changed and any(abs(asked.at - at) < _UNSEEN_SECONDS for at in left_at)
