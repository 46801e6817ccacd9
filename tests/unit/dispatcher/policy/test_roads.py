"""R66, R67: whatever people, models and hosts do to calls, in any order."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fleets import roads
from tests.integration.twins import second
from tests.roads.host import HOOKS, Case, Host, Said
from tests.roads.walk import Lost, Step, Taking, Walk, steps
from toolpool import Dispatcher, Settings

OPTIONS = {"background_wait": 0.02, "queue_timeout": 5.0, "approval_expires": 1.0}
TOOLS = [roads.pay, roads.look_alone, roads.pay_rated, roads.look_again, roads.look]


class Closable(Host):
    """A host whose dispatcher may be closed under a call that waits."""

    async def do(self, what: str, case: Case, handle: str | None = None) -> Said:
        try:
            return await super().do(what, case, handle)
        except RuntimeError as error:
            if "is closed" in str(error):
                raise Lost from error
            raise


class Memory:
    """Two dispatchers in this process."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._stacks: list[AsyncExitStack] = []
        self.hosts: list[Taking] = []

    async def connect(self) -> None:
        for number in range(2):
            self.hosts.append(await self._connected(number))

    async def _connected(self, number: int) -> Host:
        stack = AsyncExitStack()
        self._stacks[number : number + 1] = [stack]
        return Closable(await stack.enter_async_context(second(self._worker, HOOKS, **OPTIONS)))

    async def happen(self, what: str, number: int) -> None:
        """One that was closed and begins anew: no process dies here."""
        await self._stacks[number].aclose()
        self.hosts[number] = await self._connected(number)

    async def close(self) -> None:
        for stack in self._stacks:
            await stack.aclose()


async def walk(chosen: list[Step], trace: Path) -> None:
    async with Dispatcher.in_memory(TOOLS, settings=Settings(**OPTIONS)) as worker:
        scene = Memory(worker)
        await scene.connect()
        one = Walk(scene, trace)
        try:
            await one.take(chosen)
        finally:
            await scene.close()
        one.hold()


@pytest.mark.long
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(steps("kill host", most=16))
def test_an_approved_call_runs_once_under_any_order_of_operations(
    chosen: list[Step],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(walk(chosen, Path(folder) / "trace"))
