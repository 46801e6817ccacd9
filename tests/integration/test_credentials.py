"""Secrets of tools on real workers: each user's own, and in nothing that leaves a worker (R59)."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import processes
from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.fleets import vault
from tests.integration.fleet import call, connected, running
from tests.sentry_sink import SentrySink, sentry_sink
from tests.waiting import eventually, wait_until
from toolpool import Dispatcher, Misconfigured, Sentry, Settings
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long

TOOLS = "tests.fleets.entrusted"
SLIPS = ["slip_on_the_loop", "slip_in_a_thread", "slip_in_a_child"]
HOWS = {
    "raise": Code.RAISED,
    "raise late": Code.RAISED,
    "report": Code.REPORTED,
    "fail": Code.REPORTED,
    "return": None,
    "return much": None,
    "return nonsense": Code.BAD_RESULT,
    "sign in": Code.REPORTED,
    "keep": None,
}
MARK = "[secret api-key]"
UNSAID = ("keep", "return nonsense", "sign in")


def parts_of(secret: str) -> list[bytes]:
    """What would show that it slipped out, whole or cut, and however it is spelt."""
    first, _, last = secret.partition(vault.ODD)
    return [first[:8].encode(), first[-8:].encode(), last[:8].encode(), last[-8:].encode()]


@contextmanager
def everything_written(settings: Settings) -> Iterator[list[bytes]]:
    """Every command that anybody sends to the server, as MONITOR shows it."""
    seen: list[bytes] = []
    is_over = threading.Event()
    with connection.open_sync(settings) as client, client.monitor() as monitor:

        def listen() -> None:
            while not is_over.is_set():  # a lease is always renewed
                seen.append(monitor.connection.read_response(disable_decoding=True))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join(20)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[SentrySink]:
    with sentry_sink() as sink:
        monkeypatch.setenv("SENTRY_DSN", sink.dsn)
        monkeypatch.setenv("SENTRY_TRACES_SAMPLE_RATE", "1.0")
        yield sink


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_value_is_in_any_byte_that_leaves_a_worker(
    sink: SentrySink, tmp_path: Path, log_format: str
) -> None:
    """With all texts in the log, every observer on, and tools that let it slip in every way."""
    record = tmp_path / "record.jsonl"
    secret = vault.value_of("default", "u-7", "api-key")
    told: list[str] = []
    with running(
        TOOLS,
        secrets="tests.fleets.vault:resolve",
        error_texts=True,
        log_level="debug",
        log_format=log_format,
        events=True,
        slots_process=1,
    ) as fleet:
        with everything_written(fleet.settings) as written:
            async with Dispatcher.connect(
                settings=fleet.settings,
                observers=[Sentry(settings=fleet.settings)],
                record=record,
            ) as dispatcher:
                events = asyncio.ensure_future(_kept(dispatcher, told))
                for tool in SLIPS:
                    for how, code in HOWS.items():
                        turn = await dispatcher.dispatch(
                            call(tool, f"{tool}/{how}", how=how),
                            session="s-1",
                            context={"user": "u-7"},
                        )
                        assert turn[0].code is code, turn[0]
                        assert turn[0].executed is Executed.YES
                        said = json.dumps([turn[0].payload(), turn[0].details, turn.messages()])
                        assert (MARK in said) is (how not in UNSAID), said[:500]
                        told.append(said)
                await eventually(lambda: len(told) > 2 * len(SLIPS) * len(HOWS), "events came")
                events.cancel()
        with connection.open_sync(fleet.settings) as client:
            kept = [client.dump(key) or b"" for key in client.scan_iter()]
        log = fleet.log()
    assert log.count(f"key={MARK}") >= len(SLIPS) * len(HOWS)
    assert any(b"slip_in_a_child" in line for line in written)
    places = {
        "results and events": "".join(told).encode(),
        "server": b"".join(written),
        "kept": b"".join(kept),
        "log": log.encode(),
        "sentry": b"".join(sink.bodies),
        "record": record.read_bytes(),
    }
    for place, content in places.items():
        assert len(content) > 1_000, place
        for part in parts_of(secret):
            at = content.find(part)
            assert at < 0, f"{place}: …{content[max(0, at - 200) : at]!r}"


async def _kept(dispatcher: Dispatcher, told: list[str]) -> None:
    async for event in dispatcher.events():
        told += [repr(event)]


@pytest.mark.parametrize(
    "resolve", ["tests.fleets.vault:resolve", "tests.fleets.vault:resolve_in_a_thread"]
)
async def test_each_call_has_its_own_users_secrets_and_no_others(resolve: str) -> None:
    """Many at once, in the same event loop, threads and child processes, of two tenants."""
    names = ["own_on_the_loop", "own_in_a_thread", "own_in_a_child"]

    async def look(dispatcher: Dispatcher, tenant: str, name: str, user: str) -> dict[str, Any]:
        turn = await dispatcher.dispatch(
            call(name, user=user, tenant=tenant), context={"user": user}, session=user
        )
        assert turn[0].ok, turn[0]
        found: dict[str, Any] = turn[0].data
        return found

    with running(TOOLS, secrets=resolve, slots_process=2) as fleet:
        async with (
            connected(fleet, tenant="acme") as acme,
            connected(fleet, tenant="other") as other,
        ):
            found = await asyncio.gather(
                *(
                    look(dispatcher, tenant, name, f"u-{number}")
                    for number in range(40)
                    for name in names
                    for dispatcher, tenant in ((acme, "acme"), (other, "other"))
                )
            )
    assert len(found) == 240
    assert {(each["own"], each["told"], each["shown"]) for each in found} == {(True, False, False)}


async def test_a_failing_secret_source_is_one_issue_and_a_missing_secret_is_no_issue(
    sink: SentrySink,
) -> None:
    with running(TOOLS, secrets="tests.fleets.vault:resolve", retry_delay=0.01) as fleet:
        async with Dispatcher.connect(
            settings=fleet.settings, observers=[Sentry(settings=fleet.settings)]
        ) as dispatcher:
            for user in ("down", "nobody", "stranger"):
                asked = call("tells_its_end") + call("slip_on_the_loop", "d", how="keep")
                for result in await dispatcher.dispatch(asked, context={"user": user}):
                    wanted = Code.INTERNAL if user == "down" else Code.REPORTED
                    assert (result.code, result.executed) == (wanted, Executed.NO)
        log = fleet.log()
    issues = Counter((e["tags"]["tool"], e["tags"]["code"]) for e in sink.of("event"))
    assert set(issues) == {("tests.fleets.vault:resolve", "credentials")}
    assert len({tuple(event["fingerprint"]) for event in sink.of("event")}) == 1
    (raised,) = sink.of("event")[0]["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("VaultDown", "")
    assert "secret_unresolved name=api-key" in log
    assert "it raised tests.fleets.vault.VaultDown" in log
    secret = vault.value_of("default", "down", "api-key")
    for part in parts_of(secret):
        assert part not in log.encode() + b"".join(sink.bodies)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server", aof=False)
    yield server
    server.close()


async def test_variables_reach_no_tool_and_every_worker_that_is_started_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("toolpool_secret_api_key", "hunter2-from-the-environment")
    settings = Settings(redis_url=server.url, slots_process=1, lease_ttl=1.0)
    environment = environment_of(settings, Path(os.devnull))
    command = [sys.executable, "-m", "toolpool", "worker", "--secrets", "env"]
    command += ["--tools", TOOLS, "--tools", "tests.fleets.curious"]
    supervisor = subprocess.Popen(command, env=environment)
    try:
        with connection.open_sync(settings) as client:
            wait_until(lambda: client.zcard(RedisKeys().workers), "the worker has its lease", 30.0)
        async with Dispatcher.connect(settings=settings) as dispatcher:
            for _ in range(2):
                told = (await dispatcher.dispatch(call("tells_its_end")))[0]
                assert told.data == "ment", told
                for name in ("look_from_the_worker", "look_from_a_child"):
                    asked = call(name, secret="hunter2-from-the-environment")
                    found = (await dispatcher.dispatch(asked))[0].data
                    assert found.get("variables", "") == ""
                    assert found["own environ"] in ("clean", "closed")
                    assert {found[f"{who} cmdline"] for who in ("own", "parent")} == {"clean"}
                assert found["own environ"] == "clean"
                (worker,) = processes.children_of(supervisor.pid)
                os.kill(worker, 9)
                await eventually(
                    lambda gone=worker: processes.children_of(supervisor.pid) not in ([], [gone]),
                    "another is there",
                    20.0,
                )
    finally:
        supervisor.terminate()
        supervisor.wait(30)


async def test_a_fleet_of_its_own_has_them_from_variables_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLPOOL_SECRET_API_KEY", "from the variable: 1234")
    (tmp_path / "api-key").write_text("from the file: 5678\n")
    for source, end in (("env", "1234"), (f"file:{tmp_path}", "5678"), ("", None)):
        with running(TOOLS, "tests.fleets.curious", secrets=source, slots_process=1) as fleet:
            async with connected(fleet) as dispatcher:
                told = (await dispatcher.dispatch(call("tells_its_end")))[0]
                assert told.data == end, told
                asked = call("look_from_a_child", secret="from the variable")
                assert (await dispatcher.dispatch(asked))[0].data["own environ"] == "clean"
            assert ("secrets_from_nowhere" in fleet.log()) is (end is None)
            for pid in _servers_of(fleet):
                assert b"from the variable" not in Path(f"/proc/{pid}/environ").read_bytes()


def _servers_of(fleet: LocalFleet) -> list[int]:
    with connection.open_sync(fleet.settings) as client:
        return [client.info()["process_id"]]


async def test_a_worker_that_stops_gives_a_call_back_that_waits_for_its_secret(
    server: Server, tmp_path: Path
) -> None:
    """Also a write: nothing of it has run. Another worker, whose source answers, runs it."""
    settings = Settings(redis_url=server.url, slots_process=1, lease_ttl=1.0, drain_timeout=0.2)
    notes = tmp_path / "notes"

    def worker(source: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "toolpool", "worker", "--tools", TOOLS]
        environment = environment_of(settings, Path(os.devnull)) | {"TOOLPOOL_HOOK_TIMEOUT": "60"}
        return subprocess.Popen(
            [*command, "--secrets", f"tests.fleets.vault:{source}"], env=environment
        )

    hanging = worker("hangs_politely")
    successor = None
    try:
        async with Dispatcher.connect(settings=settings) as dispatcher:
            asked = asyncio.ensure_future(
                dispatcher.dispatch(call("needs_one", file=str(notes)), context={"user": "u"})
            )
            await eventually(lambda: "RUNNING" in _states(dispatcher), "it is claimed", 30.0)
            hanging.terminate()
            await asyncio.to_thread(hanging.wait, 30)
            successor = worker("resolve")
            result = (await asked)[0]
        assert result.ok, result
        assert notes.read_text().split() == ["ran"]
    finally:
        for process in (hanging, successor):
            if process is not None:
                process.kill()
                process.wait()


def _states(dispatcher: Dispatcher) -> list[str]:
    return [pending.state.value for pending in dispatcher._in_flight.all_open()]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no_such.vault:resolve", "no_such.vault:resolve cannot be loaded"),
        ("tests.fleets.vault:missing", "cannot be loaded: AttributeError"),
        ("file:/not/there", "the folder /not/there, which does not exist"),
        ("vault", "use `env`, `file:DIRECTORY` or `module:callable`"),
    ],
)
def test_a_worker_does_not_start_with_a_source_that_cannot_be_used(
    server: Server, source: str, said: str
) -> None:
    settings = Settings(redis_url=server.url)
    command = [sys.executable, "-m", "toolpool", "worker", "--tools", TOOLS, "--secrets", source]
    ran = subprocess.run(
        command,
        env=environment_of(settings, Path(os.devnull)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_local_fleet_does_not_start_with_an_unusable_secret_source() -> None:
    with pytest.raises(Misconfigured, match="cannot be loaded"):
        LocalFleet([TOOLS], Settings(secrets="no_such.vault:resolve"))


def test_too_many_variables_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_SECRET_LARGE", "x" * 70_000)
    with pytest.raises(Misconfigured, match="put them into files"):
        LocalFleet([TOOLS], Settings(secrets="env"))
