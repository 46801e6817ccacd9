"""The embedded server: real servers, and parents that are killed."""

import asyncio
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import kombu
import pytest
import redis
import redis.asyncio

from tests.processes import is_running, kill_hard, python, read_line
from tests.waiting import wait_until
from toolpool import embedded
from toolpool.contract.errors import BrokerUnreachable
from toolpool.embedded import EmbeddedServer

Listen = Literal["socket", "port"]
BOTH = pytest.mark.parametrize("listen", ["socket", "port"])

STARTS_SERVER = """
import sys
from toolpool.embedded import EmbeddedServer
server = EmbeddedServer(listen=sys.argv[1])
print(server.pid, server.url, server.broker_url, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def temporary(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder that servers make theirs in, so that killed ones leave none behind for good.

    Short, as pytest's own are not: a socket has room in it.
    """
    tmp_path_factory.getbasetemp()  # else pytest would settle in this one, and miss it later
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def directories(folder: Path) -> list[Path]:
    return sorted(folder.glob("toolpool-server-*"))


@BOTH
async def test_every_kind_of_client_can_use_its_urls(listen: Listen) -> None:
    with EmbeddedServer(listen=listen) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("key", "value", ex=60)
        async with redis.asyncio.Redis.from_url(server.url) as async_client:
            assert await async_client.get("key") == b"value"

        def through_kombu() -> object:
            with kombu.Connection(server.broker_url) as connection:
                queue = connection.SimpleQueue("queue")
                queue.put({"n": 1})
                message = queue.get(timeout=5)
                message.ack()
                queue.close()
                return message.payload

        assert await asyncio.to_thread(through_kombu) == {"n": 1}


@BOTH
def test_it_keeps_every_key_and_writes_nothing(listen: Listen) -> None:
    with (
        EmbeddedServer(listen=listen) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        wanted = {"maxmemory-policy": "noeviction", "save": "", "appendonly": "no"}
        assert client.config_get(*wanted) == wanted


@BOTH
def test_the_description_names_the_server_and_no_password(listen: Listen) -> None:
    with EmbeddedServer(listen=listen) as server:
        assert server.description.startswith(f"embedded {server.program} at ")
        assert server.program.version in server.description
        if listen == "port":
            password = server.url.split(":")[2].split("@")[0]
            assert password not in server.description


def test_nobody_else_on_this_machine_can_use_it(temporary: Path) -> None:
    with EmbeddedServer(listen="port") as server:
        without_password = "redis://" + server.url.rpartition("@")[2]
        with redis.Redis.from_url(without_password) as client:
            with pytest.raises(redis.AuthenticationError):
                client.ping()
        [directory] = directories(temporary)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_ctrl_c_in_its_users_terminal_is_not_for_the_server() -> None:
    with EmbeddedServer() as server:
        assert os.getpgid(server.pid) == server.pid


@BOTH
def test_closing_leaves_nothing_and_may_be_repeated(temporary: Path, listen: Listen) -> None:
    server = EmbeddedServer(listen=listen)
    assert directories(temporary)
    server.close()
    server.close()
    assert not is_running(server.pid)
    assert not directories(temporary)


@BOTH
def test_several_processes_at_once_have_a_server_each(listen: Listen) -> None:
    with (
        python(STARTS_SERVER, listen) as a,
        python(STARTS_SERVER, listen) as b,
        python(STARTS_SERVER, listen) as c,
        python(STARTS_SERVER, listen) as d,
    ):
        urls = [read_line(process).split()[1] for process in (a, b, c, d)]
        for number, url in enumerate(urls):
            with redis.Redis.from_url(url) as client:
                assert client.dbsize() == 0
                client.set("number", number)


@BOTH
def test_it_dies_with_its_killed_parent(listen: Listen) -> None:
    with python(STARTS_SERVER, listen) as parent:
        server = int(read_line(parent).split()[0])
        assert is_running(server)
        kill_hard(parent)
        wait_until(lambda: not is_running(server), "the server to die with its parent")


def test_it_ends_with_a_parent_that_ends_without_closing_it() -> None:
    with python(STARTS_SERVER, "socket") as parent:
        pid, url, _ = read_line(parent).split()
        directory = Path(url.removeprefix("unix://")).parent
        assert directory.is_dir()
        parent.communicate("\n", timeout=10)
        assert parent.returncode == 0
        assert not is_running(int(pid))
        assert not directory.exists()


def test_a_fork_that_ends_does_not_take_it_along() -> None:
    script = """
import os, sys
from toolpool.embedded import EmbeddedServer
server = EmbeddedServer()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
import redis
print(redis.Redis.from_url(server.url).ping(), flush=True)
"""
    with python(script) as process:
        assert read_line(process) == "True"


def test_it_outlives_the_thread_it_was_started_in() -> None:
    started: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: started.append(EmbeddedServer()))
    thread.start()
    thread.join()
    with started[0] as server, redis.Redis.from_url(server.url) as client:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert client.ping()


@pytest.mark.parametrize(
    ("name", "has_room"),
    [("x" * 180, False), ("with a space", True), ("é;%20?[*#&'\"\\", True)],
    ids=["long", "space", "odd"],
)
def test_any_temporary_directory_will_do(temporary: Path, name: str, has_room: bool) -> None:
    folder = temporary / name
    folder.mkdir()
    with python(STARTS_SERVER, "socket", TMPDIR=str(folder)) as process:
        _, url, broker_url = read_line(process).split()
        assert bool(directories(folder)) is has_room
        with redis.Redis.from_url(url) as client:
            assert client.config_get("port") == {"port": "0"}
        with kombu.Connection(broker_url) as connection:
            connection.ensure_connection(max_retries=1)
        process.communicate("\n", timeout=10)
        assert process.returncode == 0
    assert not directories(folder)


def test_with_a_directory_its_data_are_found_again(tmp_path: Path) -> None:
    data = tmp_path / "my data" / "é"
    with EmbeddedServer(data_dir=data) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes", ex=600)
    with EmbeddedServer(data_dir=data) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"


def test_two_servers_never_share_a_data_directory(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path):
        with pytest.raises(BrokerUnreachable, match="Another embedded server is using"):
            EmbeddedServer(data_dir=tmp_path)
    EmbeddedServer(data_dir=tmp_path).close()


def test_a_data_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(BrokerUnreachable, match=r"cannot use .*file: .* Give it a directory"):
        EmbeddedServer(data_dir=file)


@pytest.mark.parametrize(
    ("behaviour", "what"),
    [
        ("echo 'out of luck'; exit 3", "ended with status 3"),
        ("echo 'out of luck'; exec /bin/sleep 600", "did not answer in time"),
    ],
)
def test_a_server_that_does_not_come_up_shows_its_log(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, what: str
) -> None:
    program = tmp_path / "valkey-server"
    program.write_text(
        "#!/bin/sh\n"
        "[ \"$1\" = --version ] && { echo 'Valkey server v=9.0.0'; exit; }\n"
        f"{behaviour}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerUnreachable) as raised:
        EmbeddedServer(startup_seconds=1)
    assert f"The embedded server {program} {what}" in str(raised.value)
    assert "  out of luck" in str(raised.value)
    assert not directories(temporary)


def test_a_port_that_someone_else_was_faster_to_take_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with EmbeddedServer(listen="port") as other:
        fresh_address = embedded._port_address
        taken = embedded._Address(
            url=other.url.replace("redis://:", "redis://:not-"),
            broker_url="",
            shown="",
            configuration=(
                f"port {other.url.rpartition(':')[2].partition('/')[0]}",
                "bind 127.0.0.1",
            ),
        )
        answers = iter([taken, fresh_address()])
        monkeypatch.setattr(embedded, "_port_address", lambda: next(answers))
        with EmbeddedServer(listen="port") as server, redis.Redis.from_url(server.url) as client:
            assert client.info("server")["process_id"] == server.pid


def test_what_killed_processes_left_behind_is_removed(temporary: Path) -> None:
    long_ago = time.time() - 3600

    def left_behind(name: str) -> Path:
        directory = temporary / f"toolpool-server-{name}"
        directory.mkdir()
        (directory / "server.log").write_text("")
        os.utime(directory, (long_ago, long_ago))
        return directory

    abandoned, fresh = left_behind("abandoned"), left_behind("fresh")
    os.utime(fresh)
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("precious")
    link = temporary / "toolpool-server-link"
    link.symlink_to(elsewhere)
    os.utime(link, (long_ago, long_ago), follow_symlinks=False)
    with EmbeddedServer() as running:
        in_use = Path(running.url.removeprefix("unix://")).parent
        os.utime(in_use, (long_ago, long_ago))
        with EmbeddedServer(), redis.Redis.from_url(running.url) as client:
            assert client.ping()
            assert in_use.is_dir()
    assert not abandoned.exists()
    assert fresh.exists()
    assert (elsewhere / "lock").read_text() == "precious"
