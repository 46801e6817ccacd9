"""The server's user: the documented rights are enough, and `doctor` names each that is missing."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.waiting import eventually, wait_until
from toolpool import Dispatcher
from toolpool.acl_check import COMMANDS, key_patterns, missing
from toolpool.checks import Level, check_memory, check_rights, check_server
from toolpool.cli import main
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
LUA = Path(__file__).parents[2] / "contract" / "ledger" / "lua"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"), listen="port", aof=False)
    yield started
    started.close()


def documented() -> list[str]:
    """The words of the documented rule, after the user's name."""
    found = re.search(
        r"^user toolpool (on .*)$", SECURITY.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    return found[1].replace(">PASSWORD", ">secret").split()


@contextmanager
def worker(server: Server, settings: Settings) -> Iterator[None]:
    """A worker, with its lease taken."""
    command = [sys.executable, "-m", "toolpool", "worker", "--tools", "tests.fleets.operated"]
    environment = environment_of(settings, Path(os.devnull))
    with subprocess.Popen([*command, "--run-in", "loop"], env=environment) as process:
        try:
            with server.client() as client:
                client.delete(RedisKeys().workers)
                workers = RedisKeys().workers
                wait_until(lambda: client.zcard(workers) or process.poll(), "it has a lease", 30)
            assert process.poll() is None
            yield
        finally:
            process.terminate()


def settings_of(server: Server, rules: list[str], name: str = "toolpool", **more: Any) -> Settings:
    """Settings of a user with these rules."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", name, "reset", *rules)
        client.execute_command("ACL", "LOG", "RESET")
    url = server.url.replace("://", f"://{name}:secret@")
    return Settings(redis_url=url, signing_key=SecretStr(generate_key()), **more)


def test_the_documented_rule_has_every_command_and_key() -> None:
    words = documented()
    assert [word for word in words if word.startswith("+")] == [
        f"+{command.lower()}" for command in COMMANDS
    ]
    assert [word[1:] for word in words if word.startswith("~")] == key_patterns("toolpool")


def test_every_command_of_a_script_is_tried() -> None:
    source = "".join(file.read_text() for file in LUA.glob("*.lua"))
    called = set(re.findall(r"redis\.p?call\('([A-Z]+)'", source))
    assert called - {command.partition("|")[0] for command in COMMANDS} == set()


async def test_a_fleet_and_its_commands_run_with_the_documented_rights_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(server, documented(), events=True)
    assert settings.redis_url is not None and settings.signing_key is not None
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", settings.signing_key.get_secret_value())
    with worker(server, settings):
        async with Dispatcher.connect(settings=settings) as dispatcher:
            assert (await dispatcher.dispatch(call("rare"), session="s", turn="t"))[0].ok
            await dispatcher.dispatch(call("fails"), session="s", turn="u")
            turn = await dispatcher.dispatch(
                call("hold_write", gate="/nonexistent"), session="s", wait=0.05
            )
            await dispatcher.task_cancel(str(turn[0].handle), session="s")
            for argv in (["status"], ["find", "s"], ["switch", "list"], ["doctor"]):
                capfd.readouterr()
                code = await asyncio.to_thread(main, [*argv, "--json"])
                assert code == 0, capfd.readouterr()
    with server.client() as client:
        denied = {entry["object"] for entry in client.acl_log()}
    assert denied <= {"config|get"}, "one may do without it, as the documents say"


def test_doctor_names_the_commands_that_are_not_allowed(server: Server) -> None:
    rules = [word for word in documented() if word not in ("+xadd", "+evalsha")]
    settings = settings_of(server, rules, "lacking")
    finding = check_rights(settings)
    assert finding.level is Level.FAIL
    assert finding.message == (
        "the server's user may not use EVALSHA, XADD on toolpool:*, XADD on toolpool.*, "
        "XADD on _kombu.binding*"
    )
    assert finding.remedy.startswith("on the server: ACL SETUSER lacking ~ ~toolpool:* ")
    assert finding.remedy.endswith(" +evalsha +xadd")
    with server.client() as client:
        client.execute_command(*finding.remedy.partition(": ")[2].split())
    assert check_rights(settings).level is Level.OK


def test_doctor_names_the_keys_that_are_not_allowed(server: Server) -> None:
    rules = [word for word in documented() if not word.startswith("~_kombu")]
    finding = check_rights(settings_of(server, rules, "keyless"))
    assert finding.level is Level.FAIL
    assert "SET on _kombu.binding*" in finding.message


def test_doctor_leaves_no_key_behind(server: Server) -> None:
    with server.client() as client:
        client.flushall()
        finding = check_rights(settings_of(server, documented()))
        assert finding.level is Level.OK, finding
        assert client.keys("*") == []


def test_without_the_right_to_delete_the_keys_of_doctor_expire_within_a_minute(
    server: Server,
) -> None:
    rules = [word for word in documented() if word != "+del"]
    with server.client() as client:
        client.flushall()
        assert check_rights(settings_of(server, rules, "keeping")).level is Level.FAIL
        assert client.keys("*") and all(0 < client.ttl(key) <= 60 for key in client.keys("*"))


def test_doctor_gives_each_key_an_expiry_with_the_command_after_the_one_that_makes_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client, server.client() as other:
        client.flushall()
        execute = client.execute_command
        lasting: list[str] = []

        def watched(*command: str) -> object:
            before = set(other.keys("*"))
            if command[0] != "EXPIRE" and any(other.ttl(key) == -1 for key in before):
                lasting.append(command[0])
            return execute(*command)

        monkeypatch.setattr(client, "execute_command", watched)
        assert missing(client, settings_of(server, documented())) == []
    assert lasting == []


def test_a_full_server_is_said_by_doctor(server: Server) -> None:
    settings = settings_of(server, documented())
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            found = {finding.name: finding for finding in check_server(settings)}
        finally:
            client.config_set("maxmemory", 0)
    assert found["memory"].level is Level.FAIL
    assert "the server is full" in found["memory"].message
    assert found["rights"].level is Level.FAIL
    assert "takes no writes" in found["rights"].message
    assert check_memory({"used_memory": 10, "maxmemory": 0}) == []


async def test_a_call_is_told_that_the_server_is_full(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(server, documented(), queue_timeout=1.0)
    assert settings.redis_url is not None and settings.signing_key is not None
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", settings.signing_key.get_secret_value())
    with worker(server, settings), server.client() as client:
        async with Dispatcher.connect(settings=settings) as dispatcher:
            client.config_set("maxmemory", round(client.info("memory")["used_memory"] * 1.08))
            try:
                told: list[str] = []

                async def is_told() -> bool:
                    asked = call("hold", gate=__file__)  # the first ones may yet be sent
                    result = (await dispatcher.dispatch(asked, timeout=0.5))[0]
                    told[:] = [str(result.code), str(result.error)]
                    return told[0] == "exception.overloaded"

                await eventually(is_told, "the model is told that the server is full")
                assert "the server of the tool system is full" in told[1]
                await asyncio.to_thread(main, ["status", "--json"])
                report = json.loads(capfd.readouterr().out)
                assert report["server"]["is_nearly_full"]
                assert {entry["object"] for entry in client.acl_log()} <= {"config|get"}
            finally:
                client.config_set("maxmemory", 0)
