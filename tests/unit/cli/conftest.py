"""A way to run commands in this process, and a dispatcher that needs no server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from toolpool.cli import main
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import response_reader
from toolpool.dispatcher.turn_result import TurnResult


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def toolpool(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command in this process."""

    def run(*argv: str) -> Ran:
        capfd.readouterr()
        code = main(argv)
        out, err = capfd.readouterr()
        return Ran(int(code), out, err)

    return run


@dataclass
class FakeDispatcher:
    """Reads and renders as the real one; every call succeeds with its arguments as data.

    A call of `fail` fails, one of `wait` waits for `released`, `slow` for its `seconds`.
    """

    released: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def __aenter__(self) -> "FakeDispatcher":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def dispatch(self, response: Any, *, format: Any = None, **asked: Any) -> TurnResult:
        self.asked.append(asked)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            found = response_reader.read(response, format=format, max_bytes=2**20)
            return TurnResult([await self._run(call) for call in found.calls], format=found.format)
        except response_reader.UnreadableResponse as error:
            return TurnResult([], format=error.format, error=str(error))
        finally:
            self.running -= 1

    async def _run(self, call: Any) -> ToolResult:
        arguments = call.arguments or {}
        if call.name == "wait":
            await self.released.wait()
        await asyncio.sleep(arguments.get("seconds", 0))
        if call.name != "fail":
            return ToolResult(call_id=call.id, name=call.name, ok=True, data=arguments)
        return ToolResult(
            call_id=call.id,
            name=call.name,
            ok=False,
            error="no",
            code=Code(arguments.get("code", "logical.reported")),
            executed=Executed.YES,
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDispatcher:
    """The dispatcher that commands get."""
    dispatcher = FakeDispatcher()
    monkeypatch.setattr("toolpool.cli.connect.connected", lambda *_, **__: dispatcher)
    return dispatcher
