"""What an operator reads of real workers, and what a user of `Dispatcher.local` sees."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.chaos.servers import Server, free_port
from tests.integration.fleet import call, connected, running
from tests.integration.test_deadlines import worker
from tests.waiting import eventually
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key
from toolpool.local import LocalFleet

TOOLS = """
import logging
import os
from toolpool import tool

log = logging.getLogger("shop")

@tool
async def sells(token: str) -> str:
    "Sell."
    print("printed by a coroutine")
    log.info("logged by a coroutine")
    raise ValueError(f"no such customer: {token}")

@tool
def says(word: str) -> int:
    "Say it."
    log.warning("said %s", word)
    return os.getpid()

@tool
def counts(token: str) -> str:
    "Count."
    print("printed by a child")
    log.info("logged by a child")
    raise KeyError(token)
"""
SECRET = "hunter2-424242"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "shop_tools.py"
    path.write_text(TOOLS)
    return path


def lines_of(fleet: LocalFleet) -> list[dict[str, object]]:
    return [json.loads(line) for line in fleet.log().splitlines() if line.startswith("{")]


async def test_a_worker_says_what_it_does_and_what_failed(tools: Path) -> None:
    with running(str(tools), log_level="info", log_format="json") as fleet:
        async with connected(fleet) as dispatcher:
            await dispatcher.dispatch(
                call("sells", "c-1", token=SECRET) + call("counts", "c-2", token=SECRET),
                session="s-1",
            )

        def events() -> list[object]:
            return [line["event"] for line in lines_of(fleet)]

        await eventually(lambda: events().count("call_failed") == 2, "both are written")
        ready = [line for line in lines_of(fleet) if line["event"] == "worker_ready"]
        assert {(line["tools"], line["kinds"]) for line in ready} == {
            ("sells", "loop,thread"),
            ("counts,says", "process"),
        }
        assert all(line["queues"] and line["server"] for line in ready)
        left = [line["tools"] for line in lines_of(fleet) if line["event"] == "tools_not_taken"]
        assert sorted(map(str, left)) == ["counts,says", "sells"]
        failed = {line["call"]: line for line in lines_of(fleet) if line["event"] == "call_failed"}
        assert {(line["code"], line["executed"], line["session"]) for line in failed.values()} == {
            ("runtime.raised", "yes", "s-1")
        }
        assert failed["c-1"]["exception"] == "ValueError"
        assert "in sells" in str(failed["c-1"]["traceback"])
        assert "in counts" in str(failed["c-2"]["traceback"])
        assert SECRET not in fleet.log()
        for pid in fleet.worker_pids:
            subprocess.run(["kill", str(pid)], check=True)
        await eventually(lambda: events().count("worker_stopped") == 2, "both have stopped")
        assert events().count("worker_draining") == 2


async def written(log: Path, word: str, times: int) -> None:
    await eventually(lambda: log.read_text().count(word) == times, f"{word} is written", 30.0)


@pytest.mark.parametrize("is_apart", [False, True], ids=["one server", "a broker of its own"])
async def test_each_server_outage_and_recovery_is_reported_once(
    is_apart: bool, tmp_path: Path
) -> None:
    """Celery has a line for each of its attempts, and one of them had ten lines."""
    records, broker = (Server(tmp_path / name, listen="port") for name in ("records", "broker"))
    lost, what, back = (
        (broker, "Connection to broker lost", "broker_back")
        if is_apart
        else (records, "server_lost", "server_back")
    )
    settings = Settings(
        redis_url=records.url,
        broker_url=broker.url if is_apart else None,
        signing_key=SecretStr(generate_key()),
        lease_ttl=2.0,
    )
    log = tmp_path / "log"
    try:
        with log.open("w") as stderr, worker(settings, stderr=stderr):
            await eventually(lambda: "worker_ready" in log.read_text(), "it is ready")
            for times in (1, 2):
                lost.kill()
                await written(log, what, times)
                lost.start()
                await written(log, back, times)
    finally:
        records.close()
        broker.close()
    text = log.read_text()
    assert text.count("server_lost") == text.count("server_back") == 2 * (not is_apart)
    assert 1 <= text.count("Cannot connect") <= 3, "Celery may come back a little later than we"
    assert text.count("broker_back") == 2 * is_apart
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in text.splitlines()), text


def test_a_start_that_fails_ends_whatever_is_raised_at_the_end(tools: Path) -> None:
    """A thread for the log that is begun as the interpreter ends is waited for without end."""
    tools.write_text(f"""
class Client:
    def __init__(self):
        self.itself = self
    def __del__(self):
        raise ValueError("{SECRET}")
client = Client()
{TOOLS}""")
    environment = os.environ | {
        "TOOLPOOL_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
        "TOOLPOOL_SIGNING_KEY": generate_key(),
    }
    done = subprocess.run(
        [sys.executable, "-m", "toolpool", "worker", "--tools", str(tools)],
        env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert "toolpool: cannot reach Redis" in done.stderr
    assert SECRET not in done.stderr


async def test_at_debug_every_step_of_a_call_has_a_line(tools: Path) -> None:
    with running(str(tools), log_level="debug", log_format="json") as fleet:
        async with connected(fleet) as dispatcher:
            await dispatcher.dispatch(call("sells", "c-1", token=SECRET), session="s-1")

        def steps() -> list[object]:
            return [line["event"] for line in lines_of(fleet) if line.get("call") == "c-1"]

        await eventually(lambda: "call_failed" in steps(), "it is written")
        assert steps() == ["call_started", "call_ended", "call_failed"]
        assert SECRET not in fleet.log()


async def test_a_child_that_logs_is_not_replaced(tools: Path) -> None:
    with running(str(tools), slots_process=1) as fleet:
        async with connected(fleet) as dispatcher:
            answers = [await dispatcher.dispatch(call("says", word=word)) for word in "abc"]
        assert len({turn[0].data for turn in answers}) == 1, fleet.log()
        await eventually(lambda: "said c" in fleet.log(), "it is written")


async def test_a_text_is_logged_where_it_is_allowed(tools: Path) -> None:
    with running(str(tools), error_texts=True) as fleet:
        async with connected(fleet) as dispatcher:
            await dispatcher.dispatch(call("sells", token=SECRET))
        await eventually(lambda: f"no such customer: {SECRET}" in fleet.log(), "it is written")


@pytest.mark.long
def test_local_shows_what_tools_print_and_log(tools: Path) -> None:
    program = tools.with_name("host.py")
    program.write_text(f"""
import asyncio
from toolpool import Dispatcher

async def main():
    async with Dispatcher.local([{str(tools)!r}]) as dispatcher:
        await dispatcher.dispatch([
            {{"id": "1", "name": "sells", "input": {{"token": "x"}}}},
            {{"id": "2", "name": "counts", "input": {{"token": "x"}}}},
        ])

if __name__ == "__main__":
    asyncio.run(main())
""")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=True
    )
    for who in ("a coroutine", "a child"):
        assert done.stderr.count(f"printed by {who}\n") == 1
        assert done.stderr.count(f"logged by {who}\n") == 1
    assert done.stderr.count("call_failed") == 2
    assert "worker_ready" not in done.stderr, "of itself a worker of ours says only warnings"
    assert "Celery" not in done.stderr
    assert "shutdown" not in done.stderr


async def test_a_tools_module_that_configures_logging_leaves_our_lines_on(tools: Path) -> None:
    tools.write_text(f"import logging.config\nlogging.config.dictConfig(dict(version=1))\n{TOOLS}")
    with running(str(tools), log_level="info", log_format="json") as fleet:
        async with connected(fleet) as dispatcher:
            await dispatcher.dispatch(call("sells", "c-1", token=SECRET))
        await eventually(
            lambda: any(line["event"] == "call_failed" for line in lines_of(fleet)), "it is written"
        )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_worker_shows_a_terminal_why_its_tools_cannot_be_imported(
    tmp_path: Path, is_terminal: bool
) -> None:
    """Class, file and line always; the text, which may hold a secret, in no log."""
    path = tmp_path / "fails.py"
    path.write_text(f"class Gone(Exception): ...\nraise Gone('{SECRET}')\n")
    reader, writer = os.openpty() if is_terminal else os.pipe()
    command = [sys.executable, "-m", "toolpool", "worker", "--tools", str(path)]
    environment = {**os.environ, "TOOLPOOL_REDIS_URL": f"unix://{tmp_path}/none.sock"}
    done = subprocess.run(command, stderr=writer, env=environment, timeout=50, check=False)
    told = os.read(reader, 10_000).decode().replace("\r\n", "")
    os.close(reader)
    os.close(writer)
    assert done.returncode == 2
    assert f"Gone in {path}, line 2: " in told
    assert (SECRET in told) is is_terminal
