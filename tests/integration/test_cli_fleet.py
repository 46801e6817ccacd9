"""`worker`, `status`, `tools`, `call` and `doctor` on a real server."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from contract.envelope import CatalogEntry, Envelope, WorkerLease
from contract.names import Names
from contract.signing import Keyring
from contract.spec import ToolSpec, sealed
from tests.integration.test_cli_run import TOOLS, environment, ran
from tests.waiting import wait_until


@pytest.fixture
def client(redis_url: str) -> "Iterator[redis.Redis]":
    """The server, as anybody sees it."""
    with redis.Redis.from_url(redis_url) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A current directory with tools."""
    (tmp_path / "shop_tools.py").write_text(TOOLS)
    return tmp_path


@pytest.fixture
def worker(folder: Path, redis_url: str) -> "Iterator[subprocess.Popen[bytes]]":
    """`toolpool worker`, up and running."""
    with subprocess.Popen(
        [sys.executable, "-m", "toolpool", "worker", "--tools", "shop_tools.py"],
        cwd=folder,
        env=environment(TOOLPOOL_REDIS_URL=redis_url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        with redis.Redis.from_url(redis_url) as server:
            wait_until(lambda: server.zcard(Names().workers), "the worker has a lease", 30)
            wait_until(lambda: server.keys("_kombu.binding*"), "it takes from its queues", 30)
        yield process
        process.kill()


def publish(client: "redis.Redis", spec: ToolSpec, at: float, key: str | None = None) -> None:
    envelope = Envelope(Keyring([key]) if key else Keyring.local())
    entry = envelope.encode_entry(CatalogEntry(spec=spec, published_at=at, version="0"))
    client.hset(Names().catalog, Names.catalog_field(spec.name, spec.digest), entry)
    client.expire(Names().catalog, 60)


@pytest.mark.usefixtures("worker")
def test_status_tools_and_doctor_see_a_live_worker(folder: Path, redis_url: str) -> None:
    status = ran(folder, "status", "--json", TOOLPOOL_REDIS_URL=redis_url)
    told = json.loads(status.stdout)
    assert status.returncode == 0
    assert len(told["workers"]) == 1
    assert {"name": "toolpool.default.loop", "waiting_messages": 0, "workers": 1, "tools": 2} in (
        told["queues"]
    )
    assert told["tools"] == ["crash", "echo", "nap"]
    listed = ran(folder, "tools", "list", "--json", TOOLPOOL_REDIS_URL=redis_url)
    assert [tool["name"] for tool in json.loads(listed.stdout)] == ["crash", "echo", "nap"]
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url)
    assert doctor.returncode == 0, doctor.stdout
    assert {each["level"] for each in json.loads(doctor.stdout)["findings"]} == {"ok"}
    assert ran(folder, "status", TOOLPOOL_REDIS_URL=redis_url).returncode == 0


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["echo", '{"text": "hi"}'], 0, "hi"),
        (["echo", "{}"], 3, "text: Required"),
        (["echo", '{"text": '], 3, "not valid JSON"),
        (["ehco"], 3, "Did you mean 'echo'?"),
        (["nap", '{"seconds": 30}', "--timeout", "0.2"], 4, "aborted.timeout"),
        (["crash"], 1, "runtime.crashed"),
        (["crash", "--dry-run"], 0, "accepted"),
        (["echo", "--dry-run"], 3, "text: Required"),
    ],
)
def test_call_says_in_its_exit_code_how_it_ended(
    folder: Path, redis_url: str, argv: list[str], code: int, told: str
) -> None:
    done = ran(folder, "call", *argv, TOOLPOOL_REDIS_URL=redis_url)
    assert (done.returncode, told in done.stdout) == (code, True), done.stdout + done.stderr


def test_a_worker_told_to_stop_drops_its_lease(
    worker: "subprocess.Popen[bytes]", client: "redis.Redis"
) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert client.zcard(Names().workers) == 0


def test_remove_takes_every_version_of_a_tool(
    folder: Path, redis_url: str, client: "redis.Redis"
) -> None:
    for timeout in (1.0, 2.0):
        publish(client, sealed(ToolSpec(name="old", timeout=timeout)), at=timeout)
    publish(client, sealed(ToolSpec(name="older")), at=1.0)
    shown = ran(folder, "tools", "show", "old", "--json", TOOLPOOL_REDIS_URL=redis_url)
    assert json.loads(shown.stdout)["timeout"] == 2.0  # the newest wins
    done = ran(folder, "tools", "remove", "old", TOOLPOOL_REDIS_URL=redis_url)
    assert (done.returncode, done.stdout) == (0, "old is out of the catalog\n")
    listed = ran(folder, "tools", "list", "--json", TOOLPOOL_REDIS_URL=redis_url)
    assert [tool["name"] for tool in json.loads(listed.stdout)] == ["older"]
    assert client.get(Names().catalog_version) == b"1"
    assert 0 < client.pttl(Names().catalog_version) <= 604_800_000
    again = ran(folder, "tools", "remove", "old", TOOLPOOL_REDIS_URL=redis_url)
    assert (again.returncode, "there is no tool 'old'" in again.stderr) == (1, True)


def test_an_empty_catalog_says_so(folder: Path, redis_url: str) -> None:
    listed = ran(folder, "tools", "list", TOOLPOOL_REDIS_URL=redis_url)
    assert listed.returncode == 2
    assert "the catalog is empty: start a worker" in listed.stderr
    called = ran(folder, "call", "x", TOOLPOOL_REDIS_URL=redis_url, TOOLPOOL_CATALOG_WAIT="0.1")
    assert called.returncode == 2
    assert called.stderr.startswith("toolpool: no worker has published a tool")
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url)
    assert doctor.returncode == 1
    levels = {each["name"]: each["level"] for each in json.loads(doctor.stdout)["findings"]}
    assert (levels["workers"], levels["catalog"]) == ("warn", "fail")
    assert ran(folder, "status", TOOLPOOL_REDIS_URL=redis_url).returncode == 1


def test_what_another_key_signed_is_named(
    folder: Path, redis_url: str, client: "redis.Redis"
) -> None:
    other = "somebody else's signing key"
    lease = WorkerLease(
        id="w-other", host="h", pid=1, version="0", started_at=time.time(), slots={}
    )
    client.set(Names().worker(lease.id), Envelope(Keyring([other])).encode_lease(lease), ex=60)
    client.zadd(Names().workers, {lease.id: time.time(), "w-gone": time.time()})
    client.expire(Names().workers, 60)
    publish(client, sealed(ToolSpec(name="theirs")), at=1.0, key=other)
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url)
    findings = json.loads(doctor.stdout)["findings"]
    assert doctor.returncode == 1
    assert any("w-other signs with another key" in each["message"] for each in findings)
    status = json.loads(ran(folder, "status", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout)
    assert (status["workers"], status["foreign_workers"]) == ([], ["w-other"])
    listed = ran(folder, "tools", "list", TOOLPOOL_REDIS_URL=redis_url)
    assert "(1 signed with another key)" in listed.stderr


def test_a_server_that_evicts_keys_is_unsuitable(
    folder: Path, redis_url: str, client: "redis.Redis"
) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        doctor = ran(folder, "doctor", TOOLPOOL_REDIS_URL=redis_url)
        called = ran(folder, "call", "x", TOOLPOOL_REDIS_URL=redis_url)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert doctor.returncode == 1
    assert "allkeys-lru" in doctor.stdout
    assert called.returncode == 2
    assert "set it to noeviction" in called.stderr
    assert called.stderr.count("\n") == 1
