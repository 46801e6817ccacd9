"""A dispatcher in a process of its own, to be killed: calls on stdin, answers on stdout."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from tests.chaos.book import Book
from toolpool import Dispatcher
from toolpool.contract.settings import Settings

_LINE_LIMIT = 1 << 20


class Asker:
    """The side of the row: starts one, asks it, kills it."""

    def __init__(self, book: Book, environment: dict[str, str], allowed: float) -> None:
        self._book = book
        self._environment = environment
        self._allowed = allowed
        self.unanswered: dict[str, dict[str, Any]] = {}

    async def start(self) -> None:
        """Return when it has its catalog."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.asker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
            limit=_LINE_LIMIT,
        )
        assert self._process.stdout is not None
        ready = await self._process.stdout.readline()
        assert ready == b"ready\n", "the dispatcher did not start"
        self._reading = asyncio.ensure_future(self._read())

    def ask(self, call: dict[str, Any]) -> None:
        """Ask for a call; what is said about it goes into the book."""
        self.unanswered[call["id"]] = call
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(call).encode() + b"\n")

    async def kill(self) -> list[dict[str, Any]]:
        """SIGKILL; the calls it had not answered, though it may have said so just before."""
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading
        left, self.unanswered = list(self.unanswered.values()), {}
        return left

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                return  # killed while it wrote
            said = json.loads(line)
            if self.unanswered.pop(said["id"], None) is None:
                self._book.extra += 1
                continue
            self._book.said(
                said["id"],
                ok=said["ok"],
                code=said["code"],
                executed=said["executed"],
                data=said["data"],
                late_by=said["took"] - self._allowed,
            )


async def _answer(dispatcher: Dispatcher, call: dict[str, Any]) -> None:
    began = time.monotonic()
    asked = [{"id": call["id"], "name": call["name"], "input": call["input"]}]
    turn = await dispatcher.dispatch(asked, session=call["session"], turn=call["turn"])
    for result in turn:
        said = {
            "id": result.call_id,
            "ok": result.ok,
            "code": result.code.value if result.code else None,
            "executed": result.executed.value,
            "data": result.data,
            "took": time.monotonic() - began,
        }
        os.write(1, json.dumps(said).encode() + b"\n")


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    calls = asyncio.StreamReader(limit=_LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(calls), sys.stdin)
    async with Dispatcher.connect(settings=Settings()) as dispatcher:
        os.write(1, b"ready\n")
        answering = set()
        async for line in calls:
            task = asyncio.ensure_future(_answer(dispatcher, json.loads(line)))
            answering.add(task)
            task.add_done_callback(answering.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
