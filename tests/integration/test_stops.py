"""A stop that was asked for comes to an end, whatever hangs. Durations are asserted here."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.waiting import wait_until
from toolpool import Dispatcher
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings

pytestmark = pytest.mark.long

GRACE = 0.5
DEAF = """
import signal, sys, time
from toolpool.contract.settings import Settings
from toolpool.workers.supervision import supervise
if "--boot" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1], "w").close()
    time.sleep(60)
supervise._STOP_MARGIN_SECONDS = 1.0
command = [sys.executable, __file__, sys.argv[1]]
sys.exit(supervise.Supervisor(command, Settings()).run())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.close()


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(redis_url=server.url, drain_timeout=GRACE)


@contextmanager
def started(command: list[str], settings: Settings, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment_of(settings, log), stderr=file, stdout=file
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def seconds_to_stop(process: "subprocess.Popen[bytes]") -> float:
    began = time.monotonic()
    process.terminate()
    process.wait(40)
    return time.monotonic() - began


@pytest.mark.parametrize("idle", [True, False])
async def test_a_worker_stops_while_the_server_is_frozen(
    server: Server, settings: Settings, tmp_path: Path, idle: bool
) -> None:
    """Also while it still connects, where nothing bounds its wait."""
    log = tmp_path / "log"
    command = ["-m", "toolpool", "worker", "--run-in", "loop,thread"]
    command += ["--tools", "tests.fleets.road"]
    with started(command, settings, log) as worker:
        with connection.open_sync(settings) as client:
            pattern = RedisKeys().worker("*")
            wait_until(lambda: list(client.scan_iter(pattern)), "the worker has its lease", 30.0)
        if idle:
            async with Dispatcher.connect(settings=settings) as dispatcher:
                assert (await dispatcher.dispatch(call("echo", value=1)))[0].data == 1
        server.freeze()
        try:
            if not idle:  # and would now come to its connection to the broker
                await asyncio.sleep(1.0)
            took = seconds_to_stop(worker)
        finally:
            server.thaw()
    assert took < GRACE + 15.0


def test_a_worker_that_does_not_stop_is_ended_by_its_supervisor(
    settings: Settings, tmp_path: Path
) -> None:
    script, trace = tmp_path / "deaf.py", tmp_path / "trace"
    script.write_text(DEAF)
    with started([str(script), str(trace)], settings, tmp_path / "log") as supervisor:
        wait_until(trace.exists, "the worker runs", 30.0)
        assert seconds_to_stop(supervisor) < GRACE + 1.0 + 10.0
    assert "worker_not_stopped" in (tmp_path / "log").read_text()


def test_the_signal_that_ended_a_worker_is_named(settings: Settings, tmp_path: Path) -> None:
    script, trace = tmp_path / "dies.py", tmp_path / "trace"
    script.write_text(
        DEAF.replace("time.sleep(60)", "__import__('os').kill(__import__('os').getpid(), 11)")
    )
    log = tmp_path / "log"
    with started([str(script), str(trace)], settings, log) as supervisor:
        wait_until(lambda: "worker_ended" in log.read_text(), "its end is logged", 30.0)
        os.kill(supervisor.pid, signal.SIGTERM)
        supervisor.wait(20)
    assert re.search(r"worker_ended id=\S+ was killed by SIGSEGV", log.read_text())
