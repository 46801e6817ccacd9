"""About a thousand calls that end in every way that there is, on real workers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import eventually
from toolpool import Code, Dispatcher, Sentry, ToolResult
from toolpool.local import LocalFleet

SECRET = "hunter2-424242"
_CONTEXT = {"key": f"{SECRET}-context"}


class Endings:
    """Runs them, and counts the results by code.

    `are_reported` says whether what the workers had to report has arrived: then they are killed.
    """

    def __init__(self, fleet: LocalFleet, are_reported: Callable[[], bool]) -> None:
        self._fleet = fleet
        self._are_reported = are_reported
        self._sessions = 0
        self.results: list[ToolResult] = []

    @asynccontextmanager
    async def _dispatcher(self, **settings: Any) -> AsyncIterator[Dispatcher]:
        changed = self._fleet.settings.model_copy(update=settings)
        async with Dispatcher.connect(settings=changed, observers=[Sentry("shop")]) as dispatcher:
            yield dispatcher

    async def _run(
        self, dispatcher: Dispatcher, name: str, count: int, *, together: int = 10, **given: Any
    ) -> None:
        """Each in a session of its own, `together` at a time."""
        arguments = given or {"token": SECRET}

        async def one(session: str) -> Sequence[ToolResult]:
            asked = [{"id": f"c-{session}", "name": name, "input": arguments}]
            return await dispatcher.dispatch(asked, session=session, context=_CONTEXT)

        for begun in range(0, count, together):
            sessions = [f"s-{self._sessions + n}" for n in range(min(together, count - begun))]
            self._sessions += len(sessions)
            for turn in await asyncio.gather(*map(one, sessions)):
                self.results += turn

    async def all(self) -> None:
        """Every ending; the workers and the server are gone after it."""
        async with self._dispatcher(circuit_minimum_calls=10_000) as dispatcher:
            await self._run(dispatcher, "works", 410)
            await self._run(dispatcher, "works", 150, tokens=SECRET)
            await self._run(dispatcher, "works", 50, token={"nested": SECRET})
            await self._run(dispatcher, f"unknown-{SECRET[:4]}", 50)
            await self._run(dispatcher, "reports", 100)
            await self._run(dispatcher, "fails", 40)
            await self._run(dispatcher, "fails_in_a_thread", 20)
            await self._run(dispatcher, "fails_in_a_child", 20, together=2)
            await self._run(dispatcher, "dies", 5, together=1)
            await self._run(dispatcher, "returns_what_is_none", 10)
            await self._run(dispatcher, "fails_twice", 10)
            await self._run(dispatcher, "hangs", 5)
            await self._misspoken(dispatcher)
            await self._looping(dispatcher)
            await self._cancelled(dispatcher)
            await dispatcher.deny("works", reason="maintenance")
            await self._run(dispatcher, "works", 10)
            await dispatcher.allow("works")
        async with self._dispatcher(
            circuit_minimum_calls=10_000, in_flight_per_session=1, waiting_per_session=1
        ) as dispatcher:
            await self._overloaded(dispatcher)
        async with self._dispatcher(
            circuit_minimum_calls=5, circuit_failure_rate=0.5
        ) as dispatcher:
            await self._run(dispatcher, "fails", 5, together=1)
            await self._run(dispatcher, "fails", 10)
        async with self._dispatcher(queue_timeout=1.0, circuit_minimum_calls=10_000) as dispatcher:
            await eventually(
                lambda: asyncio.to_thread(self._are_reported), "all is reported", 120.0
            )
            await self._lost(dispatcher)
            await self._run(dispatcher, "works", 5)
            self._fleet._server.close()
            await self._run(dispatcher, "works", 5)

    async def flood(self) -> None:
        """One failure, many times."""
        async with self._dispatcher(circuit_minimum_calls=10_000) as dispatcher:
            await self._run(dispatcher, "fails", 60)

    async def _misspoken(self, dispatcher: Dispatcher) -> None:
        """Calls that cannot be read, are cut off, too large, or too many."""
        call = {"id": "c", "name": "works", "input": {"token": SECRET}}
        block = {"type": "tool_use", **call}
        cut_off = {"type": "message", "content": [block], "stop_reason": "max_tokens"}
        for number, response in enumerate(
            (
                [{**call, "input": f'{{"token": {SECRET}'}],
                cut_off,
                [{**call, "input": {"token": SECRET * 200_000}}],
                [{**call, "id": str(n)} for n in range(70)],
            )
        ):
            self.results += await dispatcher.dispatch(response, session=f"misspoken-{number}")

    async def _looping(self, dispatcher: Dispatcher) -> None:
        asked = [{"id": "c", "name": "works", "input": {"tokens": SECRET}}]
        for _ in range(5):
            self.results += await dispatcher.dispatch(asked, session="looping")

    async def _cancelled(self, dispatcher: Dispatcher) -> None:
        asked = [{"id": str(n), "name": "waits", "input": {"token": SECRET}} for n in range(5)]
        dispatched = asyncio.ensure_future(dispatcher.dispatch(asked, session="cancelled"))
        await eventually(lambda: dispatcher.in_flight("cancelled") == 5, "they are on their way")
        await dispatcher.cancel("cancelled")
        self.results += await dispatched

    async def _overloaded(self, dispatcher: Dispatcher) -> None:
        asked = [{"id": str(n), "name": "hangs", "input": {"token": SECRET}} for n in range(8)]
        self.results += await dispatcher.dispatch(asked, session="overloaded")

    async def _lost(self, dispatcher: Dispatcher) -> None:
        asked = [{"id": str(n), "name": "waits", "input": {"token": SECRET}} for n in range(3)]
        running = 0
        dispatched = asyncio.ensure_future(dispatcher.dispatch(asked, session="lost"))
        async for event in dispatcher.events():
            running += event.kind == "tool:start"
            if running == len(asked):
                break
        for process, _ in self._fleet._workers:
            for pid in _children_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()
        self.results += await dispatched

    def codes(self) -> dict[Code | None, int]:
        """How many calls ended in which way."""
        return {
            code: sum(result.code == code for result in self.results)
            for code in {result.code for result in self.results}
        }


def _children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
