"""Prometheus metrics of real workers and dispatchers: what is read is what was run."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.fleet import call
from tests.scraping import Figures, by_code, free_port, scraped, value
from tests.waiting import eventually
from toolpool import Dispatcher, Metrics, Settings
from toolpool.contract.outcome import Code
from toolpool.local import LocalFleet

TOOLS = ("tests.fleets.ending", "tests.fleets.blocking")
QUICK = {"lease_ttl": 2.0, "worker_return_timeout": 0.2, "retry_delay": 0.01}
ENDINGS = {
    "works": (None, {}),
    "fails": (Code.RAISED, {}),
    "fails_in_a_thread": (Code.RAISED, {}),
    "fails_in_a_child": (Code.RAISED, {}),
    "dies": (Code.CRASHED, {}),
    "returns_what_is_none": (Code.BAD_RESULT, {}),
    "reports": (Code.REPORTED, {}),
    "hangs": (Code.TIMEOUT, {}),
}
"""The tools of a fleet, and how their calls end."""


@contextmanager
def worker(
    redis_url: str, port: int | str, log: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`toolpool worker` that serves metrics at a port."""
    quick = {f"TOOLPOOL_{name}".upper(): str(setting) for name, setting in QUICK.items()}
    command = [sys.executable, "-m", "toolpool", "worker"]
    command += [word for tools in TOOLS for word in ("--tools", tools)]
    environment = {
        **os.environ, **quick, "TOOLPOOL_REDIS_URL": redis_url,
        "TOOLPOOL_METRICS_PORT": str(port), "TOOLPOOL_SLOTS_PROCESS": "1", **more,
    }  # fmt: skip
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Watch:
    """Scrapes a port, and sees that no counter goes back."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.figures: Figures = {}

    def look(self) -> Figures:
        now = scraped(self.port)
        for (name, labels), before in self.figures.items():
            if name.endswith(("_total", "_bucket", "_count")):
                assert now.get((name, labels), 0.0) >= before, f"{name} {set(labels)} went back"
        self.figures = now
        return now

    async def until(self, is_so: object, what: str) -> Figures:
        assert callable(is_so)

        async def holds() -> bool:
            try:
                return bool(is_so(await asyncio.to_thread(self.look)))
            except OSError:  # not served yet
                return False

        await eventually(holds, what, 30.0)
        return self.figures


def directory_of(pid: int) -> Path:
    """Where a worker process writes its metrics."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [found] = [value for value in variables if value.startswith(b"PROMETHEUS_MULTIPROC_DIR=")]
    return Path(os.fsdecode(found.partition(b"=")[2]))


def settings_for(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, catalog_timeout=30.0, **QUICK)  # type: ignore[arg-type]


def ended_as(name: str, code: Code | None) -> tuple[str, str, str]:
    return (name, code.error_type.value, code.value) if code else (name, "ok", "ok")


@pytest.mark.long
async def test_what_is_read_is_what_was_run_though_a_worker_is_killed(
    redis_url: str, tmp_path: Path
) -> None:
    """Every ending, two dispatchers, and a worker process that is replaced."""
    worker_port, port = free_port(), free_port()
    settings = settings_for(redis_url)
    workers, dispatchers = Watch(worker_port), Watch(port)
    expected = {ended_as(name, code): 2.0 for name, (code, _) in ENDINGS.items()}
    with worker(redis_url, worker_port, tmp_path / "log"):
        async with (
            Dispatcher.connect(settings=settings, observers=[Metrics(port=port)]) as one,
            Dispatcher.connect(settings=settings, observers=[Metrics(port=port)]) as two,
        ):
            for dispatcher in (one, two):
                calls = [call(name, name, token="secret-424242")[0] for name in ENDINGS]
                turn = await dispatcher.dispatch(calls, session="s-424242")
                assert [result.code for result in turn] == [code for code, _ in ENDINGS.values()]
                await dispatcher.dispatch(call("works", token=1) + call("made_up_424242", "d"))
            rejected = {
                ("works", "validation", "validation.arguments"): 2.0,
                ("(unknown)", "validation", "validation.unknown_tool"): 2.0,
            }
            await dispatchers.until(
                lambda f: by_code(f, "toolpool_calls_total") == expected | rejected, "all counted"
            )
            await workers.until(
                lambda f: by_code(f, "toolpool_runs_total") == expected, "all runs are counted"
            )
            pid = (await one.dispatch(call("whoami")))[0].data
            directory = directory_of(pid)
            files = {path.name for path in directory.iterdir()}
            lost = asyncio.ensure_future(one.dispatch(call("waits", token="x")))
            waited = {"queue": "toolpool.default.loop"}
            await workers.until(
                lambda f: value(f, "toolpool_queue_wait_seconds_count", **waited) == 12, "it runs"
            )
            os.kill(pid, signal.SIGKILL)
            assert (await lost)[0].code is Code.WORKER_LOST
            assert (await two.dispatch(call("works", token="again")))[0].ok
            after = expected | {ended_as("works", None): 3.0, ended_as("whoami", None): 1.0}
            read = await workers.until(
                lambda f: by_code(f, "toolpool_runs_total") == after, "what the dead one ran stays"
            )
            assert value(read, "toolpool_worker_processes") == 1
            assert value(read, "toolpool_worker_process_failures_total") == 1
            assert value(read, "toolpool_run_duration_seconds_count", tool="works") == 3
            assert {path.name for path in directory.iterdir()} == files
            read = await dispatchers.until(
                lambda f: value(f, "toolpool_executed_unknown_total", tool="waits") == 1, "unknown"
            )
            lost_calls = after | rejected | {ended_as("waits", Code.WORKER_LOST): 1.0}
            assert by_code(read, "toolpool_calls_total") == lost_calls
            assert value(read, "toolpool_lost_calls_total", tool="waits") == 1
            assert value(read, "toolpool_call_duration_seconds_count", tool="hangs") == 2
            await dispatchers.until(
                lambda f: value(f, "toolpool_workers_alive") == 1, "the next worker is seen"
            )
            text = repr(read) + repr(workers.figures)
            assert "424242" not in text, "no argument, session or made-up name is a label"
    assert not directory.exists()


@pytest.mark.long
async def test_a_call_that_is_sent_again_is_counted(redis_url: str, tmp_path: Path) -> None:
    worker_port, port = free_port(), free_port()
    with worker(redis_url, worker_port, tmp_path / "log"):
        async with Dispatcher.connect(
            settings=settings_for(redis_url), observers=[Metrics(port=port)]
        ) as dispatcher:
            turn = await dispatcher.dispatch(call("die_once", flag=str(tmp_path / "died")))
            assert (turn[0].data, turn[0].attempts) == ("survived", 2)
            await Watch(worker_port).until(
                lambda f: value(f, "toolpool_worker_process_failures_total") == 1, "it died"
            )
            read = await Watch(port).until(
                lambda f: value(f, "toolpool_redispatches_total", tool="die_once") == 1,
                "sent again",
            )
            assert by_code(read, "toolpool_calls_total") == {ended_as("die_once", None): 1.0}


async def test_a_local_fleet_leaves_the_port_to_its_dispatcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setenv("TOOLPOOL_METRICS_PORT", str(port))
    fleet = LocalFleet(["tests.fleets.ending"], Settings())
    try:
        async with Dispatcher.connect(settings=fleet.settings, observers=[Metrics()]) as dispatcher:
            assert (await dispatcher.dispatch(call("works", token="x")))[0].ok
            await Watch(port).until(
                lambda f: value(f, "toolpool_workers_alive") == 2, "the dispatcher is read there"
            )
        assert "metrics" not in fleet.log()
    finally:
        fleet.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "said"),
    [("taken", "another process uses it"), ("tcp://10.0.0.1:9646", "from 1 to 65535")],
)
async def test_a_taken_port_is_logged_once_and_calls_go_on(
    redis_url: str, tmp_path: Path, given: str, said: str
) -> None:
    """A Kubernetes service called toolpool-metrics sets the variable to its own address."""
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1]) if given == "taken" else given
        with worker(redis_url, port, log):
            async with Dispatcher.connect(settings=settings_for(redis_url)) as dispatcher:
                assert (await dispatcher.dispatch(call("works", token="x"))).ok
            await eventually(lambda: said in log.read_text(), "it is said")
    assert log.read_text().count("metrics_") == 1, log.read_text()
