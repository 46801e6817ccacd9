"""What probes of a container are told about a worker: over HTTP, and by the age of a file."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.scraping import free_port
from tests.waiting import wait_until
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key

DOCKERFILE = Path(__file__).parents[2] / "deploy" / "Dockerfile"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"), listen="port", aof=False)
    yield started
    started.close()


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("health") / "worker"


@pytest.fixture(scope="module")
def worker(server: Server, port: int, file: Path) -> "Iterator[subprocess.Popen[bytes]]":
    settings = Settings(
        redis_url=server.url,
        signing_key=SecretStr(generate_key()),
        metrics_port=port,
        health_file=str(file),
        worker_stall_timeout=3.0,
        connect_timeout=1.0,
    )
    command = [sys.executable, "-m", "toolpool", "worker", "--run-in", "loop"]
    environment = environment_of(settings, Path(os.devnull))
    key = file.with_name("key")
    key.write_text(environment.pop("TOOLPOOL_SIGNING_KEY") + "\n")
    environment["TOOLPOOL_SIGNING_KEY_FILE"] = str(key)  # as a container is given it
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: asked(port, "/readyz") == (200, "ok"), "it is ready", 30)
        yield process
        process.kill()


def asked(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status), answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()
    except OSError:
        return 0, ""


def is_healthy(file: Path) -> bool:
    """What the image's own health check says."""
    found = re.search(r'CMD (\["sh", .*\])$', DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    command = json.loads(found[1])
    environment = {**os.environ, "TOOLPOOL_HEALTH_FILE": str(file)}
    return subprocess.run(command, env=environment, check=False).returncode == 0


def worker_of(supervisor: int) -> int:
    """The process of a supervisor's worker."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(children[0])


def test_a_worker_reads_its_key_from_a_file_and_passes_the_path_to_no_child(
    worker: "subprocess.Popen[bytes]",
) -> None:
    child = Path(f"/proc/{worker_of(worker.pid)}/environ").read_bytes()
    assert b"TOOLPOOL_HEALTH_FILE" in child
    assert b"SIGNING_KEY" not in child


def test_a_worker_that_takes_calls_is_healthy_and_ready(
    worker: "subprocess.Popen[bytes]", port: int, file: Path
) -> None:
    assert worker.poll() is None
    assert asked(port, "/healthz") == (200, "ok")
    assert file.read_text() == "ready\n"
    assert is_healthy(file)


def test_an_outage_of_the_server_makes_it_unready_and_not_unhealthy(
    worker: "subprocess.Popen[bytes]", server: Server, port: int, file: Path
) -> None:
    server.freeze()
    try:
        expected = (503, "the server does not answer")
        wait_until(lambda: asked(port, "/readyz") == expected, "it is unready")
        assert asked(port, "/healthz") == (200, "ok")
        assert file.read_text() == "the server does not answer\n"
        assert is_healthy(file)
    finally:
        server.thaw()
    wait_until(lambda: asked(port, "/readyz") == (200, "ok"), "it is ready again")


def test_a_worker_that_hangs_is_unhealthy(
    worker: "subprocess.Popen[bytes]", port: int, file: Path
) -> None:
    os.kill(worker_of(worker.pid), signal.SIGSTOP)
    wait_until(lambda: asked(port, "/healthz")[0] == 503, "it is unhealthy")
    wait_until(lambda: asked(port, "/readyz") == (200, "ok"), "it was started again", 60)
    assert asked(port, "/healthz") == (200, "ok")


def test_a_stale_heartbeat_file_is_unhealthy(tmp_path: Path) -> None:
    file = tmp_path / "health"
    assert not is_healthy(file)
    file.write_text("ready\n")
    assert is_healthy(file)
    os.utime(file, (time.time() - 60, time.time() - 60))
    assert not is_healthy(file)


def test_a_worker_that_drains_is_unready(
    worker: "subprocess.Popen[bytes]", port: int, file: Path
) -> None:
    worker.terminate()
    seen: set[str] = set()
    while worker.poll() is None:
        seen.add(asked(port, "/readyz")[1])
    assert "the worker drains" in seen or not file.exists()
    assert not file.exists()


def test_the_image_s_user_is_a_number() -> None:
    assert re.search(r"^USER 10001:10001$", DOCKERFILE.read_text(), re.MULTILINE)


def test_a_worker_that_cannot_reach_its_broker_is_unready(
    server: Server, port: int, tmp_path: Path
) -> None:
    settings = Settings(
        redis_url=server.url,
        broker_url=f"amqp://guest:guest@127.0.0.1:{free_port()}//",
        signing_key=SecretStr(generate_key()),
        metrics_port=port,
        health_file=str(tmp_path / "health"),
        connect_timeout=1.0,
    )
    environment = environment_of(settings, Path(os.devnull))
    command = [sys.executable, "-m", "toolpool", "worker", "--run-in", "loop"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            seen: set[str] = set()
            wait_until(
                lambda: seen.add(asked(port, "/readyz")[1]) or asked(port, "/healthz")[0] == 200,
                "its supervisor answers",
                30,
            )
            wait_until(
                lambda: (
                    asked(port, "/readyz") == (503, "the worker is not connected to the broker")
                ),
                "it says what it lacks",
                30,
            )
            assert "ok" not in seen
        finally:
            process.kill()


@pytest.mark.long
def test_a_worker_whose_server_is_full_is_unready(
    server: Server, port: int, tmp_path: Path
) -> None:
    settings = Settings(
        redis_url=server.url,
        signing_key=SecretStr(generate_key()),
        metrics_port=port,
        lease_ttl=2.0,
    )
    environment = environment_of(settings, Path(os.devnull))
    command = [sys.executable, "-m", "toolpool", "worker", "--run-in", "loop"]
    with (
        redis.Redis.from_url(server.url) as client,
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            wait_until(lambda: asked(port, "/readyz") == (200, "ok"), "it is ready", 30)
            client.config_set("maxmemory", "1mb")
            wait_until(lambda: asked(port, "/readyz")[0] == 503, "it is unready")
        finally:
            client.config_set("maxmemory", "0")
            process.kill()
