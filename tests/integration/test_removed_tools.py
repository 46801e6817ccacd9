"""A release that removes a tool: it is not offered any more, and an operator sees it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import call
from tests.integration.test_cli_run import environment, ran
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.settings import Settings

TOOL = '''

@tool
async def {name}() -> str:
    """Say the name."""
    return "{name}"
'''


@contextmanager
def released(folder: Path, redis_url: str, *names: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A worker of a release that has these tools."""
    file = folder / f"release_{'_'.join(names)}.py"
    tools = "".join(TOOL.format(name=name) for name in names)
    file.write_text(f"from toolpool import tool\n{tools}")
    with subprocess.Popen(
        [sys.executable, "-m", "toolpool", "worker", "--run-in", "loop", "--tools", file.name],
        cwd=folder,
        env=environment(TOOLPOOL_REDIS_URL=redis_url, TOOLPOOL_DRAIN_TIMEOUT="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long
async def test_a_tool_that_a_release_removed_is_unknown_at_once(
    tmp_path: Path, redis_url: str
) -> None:
    settings = Settings(redis_url=redis_url, unserved_timeout=1.0, catalog_timeout=30.0)
    with (
        released(tmp_path, redis_url, "stays", "goes") as old,
        released(tmp_path, redis_url, "stays"),
    ):
        async with Dispatcher.connect(settings=settings) as dispatcher:

            async def is_offered() -> bool:
                return {spec.name for spec in dispatcher.specs} >= {"stays", "goes"}

            await eventually(is_offered, "both releases run", 30)
            assert (await dispatcher.dispatch(call("goes"), session="s"))[0].data == "goes"
            os.kill(old.pid, signal.SIGTERM)

            async def is_gone() -> bool:
                return "goes" not in {spec.name for spec in dispatcher.specs}

            await eventually(is_gone, "the tool is offered no more", 30)
            result = (await dispatcher.dispatch(call("goes"), session="s"))[0]
            assert (result.code, result.executed) == (Code.UNKNOWN_TOOL, Executed.NO)
            assert "goes" in dispatcher.refused
            stays = (await dispatcher.dispatch(call("stays"), session="s"))[0]
            assert stays.data == "stays"
        for arguments in (("status",), ("tools", "list"), ("doctor",)):
            told = ran(tmp_path, *arguments, TOOLPOOL_REDIS_URL=redis_url).stdout
            assert "goes" in told, arguments
        report = json.loads(ran(tmp_path, "status", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout)
        assert report["unserved"].keys() == {"goes"}
        assert report["unserved"]["goes"] >= 0.0
        assert isinstance(report["withheld"], list)
        listed = json.loads(
            ran(tmp_path, "tools", "list", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout
        )
        assert all("withheld" in each for each in listed if each["name"] == "goes")
        assert {each["name"]: "unserved_seconds" in each for each in listed} == {
            "goes": True,
            "stays": False,
        }


@tool
async def stays() -> str:
    """Be there."""
    return "here"


def withhold(dispatcher: Any, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As after a release without these tools, until the test ends."""
    catalog = dispatcher._parts.catalog
    catalog.withhold(frozenset(names))
    monkeypatch.setattr(catalog, "withhold", lambda *_: None)


async def test_a_call_that_runs_is_not_said_not_to_have_run_once_its_tool_is_withheld(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()

    @tool(effects="write")
    async def goes() -> str:
        """Wait."""
        await gate.wait("goes")
        return "done"

    async with alone([goes, stays]) as owner, second(owner) as other:
        asked = {"session": "s", "turn": "t"}
        running = asyncio.ensure_future(owner.dispatch(call("goes"), **asked))
        await eventually(lambda: gate.came, "it runs")
        withhold(other, monkeypatch, "goes")
        again = (await other.dispatch(call("goes"), **asked))[0]
        fresh = (await other.dispatch(call("goes"), session="s", turn="u"))[0]
        gate.open()
        assert (await running)[0].data == "done"
    assert (again.code, again.executed) == (Code.UNKNOWN_TOOL, Executed.UNKNOWN)
    assert (fresh.code, fresh.executed) == (Code.UNKNOWN_TOOL, Executed.NO)


async def test_a_handle_of_a_withheld_tool_keeps_its_retries_and_effects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, starts = Gate(), []

    @tool(effects="read", retries=3)
    async def flaky() -> str:
        """Fail."""
        await gate.wait("flaky")
        starts.append("start")
        raise ConnectionError("not yet")

    @tool(effects="write", background=True)
    async def charge() -> str:
        """Fail half way."""
        await gate.wait("charge")
        raise ValueError("half done")

    settings = {"background_wait": 0.02, "retry_delay": 0.3}
    async with alone([flaky, charge, stays], **settings) as owner, second(owner) as other:
        turns = [
            (await owner.dispatch(call(name), session="s", wait=0.02))[0]
            for name in ("flaky", "charge")
        ]
        withhold(other, monkeypatch, "flaky", "charge")
        gate.open()
        await eventually(lambda: starts, "the first try has failed")
        cancelled = await other.task_cancel(str(turns[0].handle), session="s")
        failed = await other.task_result(str(turns[1].handle), session="s", wait=5.0)
        ended = await owner.task_result(str(turns[0].handle), session="s", wait=5.0)
    assert failed is not None
    assert (failed.code, failed.retryable) == (Code.RAISED, False)
    assert cancelled.code is Code.CANCELLED
    assert ended is not None
    assert ended.code is Code.CANCELLED
    assert starts == ["start"]
