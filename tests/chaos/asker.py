"""A dispatcher in a process of its own, to be killed: calls on stdin, answers on stdout.

A line may also be the handle of a call that another asker made, or a session to be cancelled.
"""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from tests.chaos import policy
from tests.chaos.book import Book
from toolpool import Dispatcher, ToolResult
from toolpool.contract.settings import Settings

ASKS = "CHAOS_ASKS"
"""Set for a dispatcher that asks a person about calls whose context says so."""
_LINE_LIMIT = 1 << 20
_WAIT_SECONDS = 1.0


class Asker:
    """The side of the row: starts one, asks it, kills it."""

    def __init__(self, book: Book, environment: dict[str, str], allowed: float) -> None:
        self._book = book
        self._environment = environment
        self._allowed = allowed
        self.unanswered: dict[str, dict[str, Any]] = {}
        self.handles: dict[str, str] = {}
        self._cancels: dict[str, asyncio.Future[int]] = {}

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

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
        self._write(call)

    async def cancel(self, key: str, session: str) -> int:
        """Have a session cancelled; how many calls ended. Cancelled itself where it is killed."""
        self._cancels[key] = asyncio.get_running_loop().create_future()
        self._write({"id": key, "cancel": session})
        return await self._cancels[key]

    def late_by(self, said: dict[str, Any]) -> float:
        """How long after its deadline a call was answered, in seconds."""
        took: float = said["took"]
        return took - self._allowed

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def kill(self) -> list[dict[str, Any]]:
        """SIGKILL; the calls it had not answered, though it may have said so just before."""
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading
        for cancel in self._cancels.values():
            cancel.cancel()
        left, self.unanswered = list(self.unanswered.values()), {}
        return left

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                return  # killed while it wrote
            said = json.loads(line)
            if "cancelled" in said:
                self._cancels.pop(said["id"]).set_result(said["cancelled"])
                continue
            if "handle" in said:
                self.handles[said["id"]] = said["handle"]
                continue
            if self.unanswered.pop(said["id"], None) is None:
                self._book.extra += 1
                continue
            self._book.said(
                said["id"],
                ok=said["ok"],
                code=said["code"],
                executed=said["executed"],
                data=said["data"],
                late_by=self.late_by(said),
            )


def _say(**line: Any) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


async def _answer(dispatcher: Dispatcher, call: dict[str, Any]) -> None:
    began = time.monotonic()
    id, session = call["id"], call.get("session")
    if "cancel" in call:
        _say(id=id, cancelled=await dispatcher.cancel(session=call["cancel"]))
        return
    if "handle" in call:
        result = await _final(dispatcher, call["handle"], session)
    else:
        asked = [{"id": id, "name": call["name"], "input": call["input"]}]
        options = {name: call[name] for name in ("context", "wait") if name in call}
        (result,) = await dispatcher.dispatch(asked, session=session, turn=call["turn"], **options)
        if result.handle is not None and options:
            _say(id=id, handle=result.handle)
            result = await _final(dispatcher, result.handle, session)
    _say(
        id=id,
        ok=result.ok,
        code=result.code.value if result.code else None,
        executed=result.executed.value,
        data=result.data,
        took=time.monotonic() - began,
    )


async def _final(dispatcher: Dispatcher, handle: str, session: str | None) -> ToolResult:
    """What became of a call that was handed over, however long that takes."""
    while True:
        with suppress(*policy.AWAY):
            result = await dispatcher.task_result(handle, session=session, wait=_WAIT_SECONDS)
            if result is not None and not result.is_running:
                return result
        await asyncio.sleep(0.05)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    calls = asyncio.StreamReader(limit=_LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(calls), sys.stdin)
    hooks = policy.asking() if ASKS in os.environ else None
    async with Dispatcher.connect(settings=Settings(), hooks=hooks) as dispatcher:
        os.write(1, b"ready\n")
        answering = set()
        async for line in calls:
            task = asyncio.ensure_future(_answer(dispatcher, json.loads(line)))
            answering.add(task)
            task.add_done_callback(answering.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
