"""`worker`, `status`, `tools`, `call` and `doctor` on a real server."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.integration.test_cli_run import TOOLS, environment, ran
from tests.waiting import wait_until
from toolpool.contract.envelope import CatalogEntry, Envelope, WorkerLease
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import RunIn, ToolSpec, sealed
from toolpool.contract.version import VERSION
from toolpool.embedded import EmbeddedServer
from toolpool.workers.catalog_publisher import toolset_of


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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with tools, and a server with a worker of them that no test changes."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "shop_tools.py").write_text(TOOLS)
    with EmbeddedServer() as server, working(folder, server.url):
        yield folder, server.url


@pytest.fixture
def worker(folder: Path, redis_url: str) -> "Iterator[subprocess.Popen[bytes]]":
    """`toolpool worker`, up and running, of this test alone."""
    with working(folder, redis_url) as process:
        yield process


@contextmanager
def working(folder: Path, redis_url: str) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(
        [sys.executable, "-m", "toolpool", "worker", "--tools", "shop_tools.py"],
        cwd=folder,
        env=environment(TOOLPOOL_REDIS_URL=redis_url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        with redis.Redis.from_url(redis_url) as server:
            wait_until(lambda: server.zcard(RedisKeys().workers), "the worker has a lease", 30)
            wait_until(lambda: server.keys("_kombu.binding*"), "it takes from its queues", 30)
        yield process
        process.kill()


def publish(client: "redis.Redis", spec: ToolSpec, at: float, key: str | None = None) -> None:
    envelope = Envelope(Keyring([key]) if key else Keyring.local())
    entry = envelope.encode(CatalogEntry(spec=spec, published_at=at, version="0"))
    field = RedisKeys.catalog_field(spec.name, spec.digest, envelope.key_id)
    client.hset(RedisKeys().catalog, field, entry)
    client.expire(RedisKeys().catalog, 60)


def test_status_tools_and_doctor_see_a_live_worker(shared: tuple[Path, str]) -> None:
    folder, redis_url = shared
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
    shared: tuple[Path, str], argv: list[str], code: int, told: str
) -> None:
    folder, redis_url = shared
    done = ran(folder, "call", *argv, TOOLPOOL_REDIS_URL=redis_url)
    assert (done.returncode, told in done.stdout) == (code, True), done.stdout + done.stderr


POLICY = """
[[rule]]
tool = "echo"
context = "role"
equals = "guest"
action = "deny"
reason = "not for guests"

[[rule]]
tool = "echo"
argument = "text"
longer_than = 5
action = "ask"
"""


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["{text}", "--context", '{"role": "guest"}'], 3, "denied, by rule 1: not for guests"),
        (["{text}"], 0, "would wait for a person, by rule 2"),
        (["{short}"], 0, "accepted: the call would be queued for echo"),
        (["{text}", "--context", "[1]"], 2, ""),
    ],
)
def test_rules_are_tried_without_running_anything(
    shared: tuple[Path, str], argv: list[str], code: int, told: str
) -> None:
    folder, redis_url = shared
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    made = {"{text}": '{"text": "longer than five"}', "{short}": '{"text": "hi"}'}
    words = ["call", "echo", "--dry-run", *(made.get(word, word) for word in argv)]
    done = ran(folder, *words, TOOLPOOL_REDIS_URL=redis_url, TOOLPOOL_POLICY=str(policy))
    assert (done.returncode, told in done.stdout) == (code, True), done.stdout + done.stderr


def test_a_worker_told_to_stop_says_that_it_left(
    worker: "subprocess.Popen[bytes]", client: "redis.Redis"
) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    [left] = client.zrange(RedisKeys().workers, 0, -1)
    body = client.get(RedisKeys().worker(left.decode()))
    lease = Envelope(Keyring.local()).decode(WorkerLease, body)
    assert (lease.leaving, lease.ended) == (True, True)


@pytest.mark.long
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
    assert client.get(RedisKeys().catalog_version)
    assert 0 < client.pttl(RedisKeys().catalog_version) <= 604_800_000
    again = ran(folder, "tools", "remove", "old", TOOLPOOL_REDIS_URL=redis_url)
    assert (again.returncode, "there is no tool 'old'" in again.stderr) == (1, True)


@pytest.mark.long
def test_an_empty_catalog_says_so(folder: Path, redis_url: str) -> None:
    listed = ran(folder, "tools", "list", TOOLPOOL_REDIS_URL=redis_url)
    assert listed.returncode == 2
    assert "the catalog is empty: start a worker" in listed.stderr
    called = ran(folder, "call", "x", TOOLPOOL_REDIS_URL=redis_url, TOOLPOOL_CATALOG_TIMEOUT="0.1")
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
    client.set(RedisKeys().worker(lease.id), Envelope(Keyring([other])).encode(lease), ex=60)
    client.zadd(RedisKeys().workers, {lease.id: time.time(), "w-gone": time.time()})
    client.expire(RedisKeys().workers, 60)
    publish(client, sealed(ToolSpec(name="theirs")), at=1.0, key=other)
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url)
    findings = json.loads(doctor.stdout)["findings"]
    assert doctor.returncode == 1
    key = Keyring([other]).key_id
    assert any(
        f"w-other on h signs with another key ({key})" in each["message"] for each in findings
    )
    assert any("another key and are passed over: theirs" in each["message"] for each in findings)
    status = json.loads(ran(folder, "status", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout)
    assert status["workers"] == []
    stranger = {"id": "w-other", "host": "h", "key": key, "is_unreadable": False}
    assert status["foreign_workers"] == [stranger]
    shown = ran(folder, "status", TOOLPOOL_REDIS_URL=redis_url).stdout
    assert "w-other" in shown
    assert "signs with another key" in shown
    listed = ran(folder, "tools", "list", TOOLPOOL_REDIS_URL=redis_url)
    assert "(1 signed with another key)" in listed.stderr
    denied = ran(folder, "switch", "deny", "theirs", "--reason", "no", TOOLPOOL_REDIS_URL=redis_url)
    assert denied.returncode == 2
    assert "follow no switch of this one" in denied.stderr
    assert client.hlen(RedisKeys().switches) == 0


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


def test_what_a_stranger_writes_is_fit_for_a_terminal(
    folder: Path, redis_url: str, client: "redis.Redis"
) -> None:
    """A lease is a stranger's text, and may be anything."""
    leases = {
        b"w-\x1b[2Jx": Keyring([generate_key()]).sign("lease", b'{"host": "\\u001b[31mred"}'),
        b"w-none": b"no lease at all",
        b"w-new": Keyring.local().sign("lease", b'{"id": "w-new", "host": "h9"}'),
    }
    for name, lease in leases.items():
        client.set(b"toolpool:worker:" + name, lease, px=60_000)
        client.zadd(RedisKeys().workers, {name: time.time()})
    client.expire(RedisKeys().workers, 60)
    done = ran(folder, "status", "--json", TOOLPOOL_REDIS_URL=redis_url)
    told = {each["id"]: each for each in json.loads(done.stdout)["foreign_workers"]}
    assert told["w-?[2Jx"]["host"] == "?[31mred"
    assert told["w-new"]["is_unreadable"]
    doctor = ran(folder, "doctor", TOOLPOOL_REDIS_URL=redis_url)
    assert "w-new on h9 describes itself in a form" in " ".join(doctor.stdout.split())
    assert "\x1b" not in doctor.stdout + done.stdout


@pytest.mark.usefixtures("worker")
def test_a_tool_that_dispatchers_refuse_is_named(
    folder: Path, redis_url: str, client: "redis.Redis"
) -> None:
    bad = sealed(ToolSpec(name="bad", input_schema={"type": "no such type"}))
    publish(client, bad, at=time.time())
    status = json.loads(ran(folder, "status", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout)
    assert list(status["refused"]) == ["bad"]
    assert "does not compile" in status["refused"]["bad"]
    shown = ran(folder, "status", TOOLPOOL_REDIS_URL=redis_url).stdout
    assert "bad is not offered: its input_schema does not compile" in " ".join(shown.split())
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url)
    names = [each["name"] for each in json.loads(doctor.stdout)["findings"]]
    assert (doctor.returncode, names.count("refused tools")) == (1, 1)


@pytest.mark.usefixtures("worker")
def test_a_worker_with_older_tools_than_are_offered_is_named(
    folder: Path, redis_url: str, client: "redis.Redis"
) -> None:
    """R63: it goes on with its own, and somebody has to know."""
    newer = sealed(ToolSpec(name="echo", timeout=7.0))
    publish(client, newer, at=time.time() + 60)
    envelope, names = Envelope(Keyring.local()), RedisKeys()
    toolset = toolset_of([newer])
    client.set(names.toolset(toolset.digest), envelope.encode(toolset), ex=60)
    lease = WorkerLease(
        id="w-newer", host="h", pid=1, version=VERSION, started_at=0.0, slots={},
        toolset=toolset.digest,
    )  # fmt: skip
    client.set(names.worker("w-newer"), envelope.encode(lease), ex=60)
    client.zadd(names.workers, {"w-newer": time.time()})
    status = json.loads(ran(folder, "status", "--json", TOOLPOOL_REDIS_URL=redis_url).stdout)
    [running] = [each for each in status["workers"] if each["id"] != "w-newer"]
    assert running["stale_tools"] == ["echo"]
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url)
    [finding] = [each for each in json.loads(doctor.stdout)["findings"] if each["name"] == "tools"]
    assert f"worker {running['id']} on {running['host']} has another version" in finding["message"]
    assert finding["message"].endswith("of echo")
    shown = ran(folder, "status", TOOLPOOL_REDIS_URL=redis_url).stdout
    assert "has another version than is offered of echo" in " ".join(shown.split())


@pytest.mark.long
def test_depths_come_from_the_broker(folder: Path, redis_url: str, client: "redis.Redis") -> None:
    """And not from the server with the records, which has queues of the same names at most."""
    key = generate_key()
    publish(client, sealed(ToolSpec(name="echo")), at=time.time(), key=key)
    queue = RedisKeys().queue("default", RunIn.LOOP)
    with EmbeddedServer(listen="port") as other:
        environment = {
            "TOOLPOOL_REDIS_URL": redis_url,
            "TOOLPOOL_BROKER_URL": other.url,
            "TOOLPOOL_SIGNING_KEY": key,
        }
        with redis.Redis.from_url(other.url) as broker:
            assert waiting(ran(folder, "status", "--json", **environment)) == {queue: 0}
            client.rpush(queue, "a", "b", "c")
            broker.rpush(queue, "a")
            assert waiting(ran(folder, "status", "--json", **environment)) == {queue: 1}
            client.delete(queue)
        doctor = ran(folder, "doctor", "--json", **environment)
        [finding] = [e for e in json.loads(doctor.stdout)["findings"] if e["name"] == "broker"]
        assert finding["level"] == "ok"
        password = other.url.split("@")[0].rpartition(":")[2]
        assert password not in finding["message"]
        shown = ran(folder, "status", **environment)
        assert "broker at redis://:***@" in shown.stdout
    gone = ran(folder, "status", "--json", **environment)
    assert waiting(gone) == {queue: None}
    assert "cannot reach the broker" in json.loads(gone.stdout)["broker"]["fault"]
    doctor = ran(folder, "doctor", "--json", **environment)
    [finding] = [e for e in json.loads(doctor.stdout)["findings"] if e["name"] == "broker"]
    assert (doctor.returncode, finding["level"]) == (1, "fail")
    assert "TOOLPOOL_BROKER_URL" in finding["remedy"]
    assert password not in doctor.stdout + gone.stdout


@pytest.mark.parametrize(
    "url", ["nonsense", "nosuch://h", "sqs://h", "amqp://u:hush-4242@127.0.0.1:1//"]
)
def test_a_broker_url_that_cannot_work_is_a_finding(folder: Path, redis_url: str, url: str) -> None:
    environment = {"TOOLPOOL_BROKER_URL": url, "TOOLPOOL_SIGNING_KEY": generate_key()}
    doctor = ran(folder, "doctor", "--json", TOOLPOOL_REDIS_URL=redis_url, **environment)
    [finding] = [e for e in json.loads(doctor.stdout)["findings"] if e["name"] == "broker"]
    assert finding["level"] == "fail", finding
    assert "hush-4242" not in doctor.stdout


def waiting(done: "subprocess.CompletedProcess[str]") -> dict[str, int | None]:
    return {each["name"]: each["waiting_messages"] for each in json.loads(done.stdout)["queues"]}
