"""A release that removes a tool: it is not offered any more, and an operator sees it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.fleet import call
from tests.integration.test_cli_run import environment, ran
from tests.waiting import eventually
from toolpool import Dispatcher
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
        env=environment(TOOLPOOL_REDIS_URL=redis_url, TOOLPOOL_DRAIN_GRACE="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_tool_that_a_release_removed_is_unknown_at_once(
    tmp_path: Path, redis_url: str
) -> None:
    settings = Settings(redis_url=redis_url, unserved_after=1.0)
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
        listed = json.loads(
            ran(tmp_path, "tools", "list", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout
        )
        assert {each["name"]: "unserved_seconds" in each for each in listed} == {
            "goes": True,
            "stays": False,
        }
