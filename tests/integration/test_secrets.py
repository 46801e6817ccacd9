"""Keys and passwords are in no environment and no command line that a tool can read."""

import os
import shutil
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
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.processes import is_running
from tests.waiting import eventually, wait_until
from toolpool import Dispatcher
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

NOBODY = 65534
PASSWORD = "p4ssw0rd-of-the-server"
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
ANOTHER_USER = [*WITHOUT_RIGHTS, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
USERS = [WITHOUT_RIGHTS, ANOTHER_USER] if os.getuid() == 0 else [[]]
"""Root may look into anything, unless its rights were taken from it, as in many containers."""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    server = Server(tmp_path / "server", listen="port", aof=False)
    with server.client() as client:
        client.config_set("requirepass", PASSWORD)
    url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
    yield Settings(redis_url=url, signing_key=SecretStr(generate_key()), slots_process=1)
    server.close()


@contextmanager
def worker(settings: Settings, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with its secrets in its environment, as most deployments start it."""
    command = [*before, sys.executable, "-m", "toolpool", "worker"]
    environment = environment_of(settings, Path(os.devnull))
    environment["toolpool_signing_key"] = environment["TOOLPOOL_SIGNING_KEY"]
    process = subprocess.Popen([*command, "--tools", "tests.fleets.curious"], env=environment)
    try:
        with connection.open_sync(settings) as client:
            wait_until(lambda: client.zcard(RedisKeys().workers), "the worker has its lease", 30.0)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def can_run(user: list[str]) -> bool:
    if shutil.which(user[0]) is None:
        return False
    script = "import sys, redis.asyncio; print(sys.version)"
    command = [*user, sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() == sys.version


def secrets_of(settings: Settings) -> list[str]:
    assert settings.signing_key is not None
    return [settings.signing_key.get_secret_value(), PASSWORD]


async def looks(settings: Settings) -> list[dict[str, Any]]:
    found = []
    async with Dispatcher.connect(settings=settings) as dispatcher:
        for name in ("look_from_the_worker", "look_from_a_child"):
            for secret in secrets_of(settings):
                result = (await dispatcher.dispatch(call(name, secret=secret)))[0]
                assert result.ok, result
                found.append(result.data)
    return found


async def test_a_worker_and_its_children_get_no_secret_in_their_environment(
    settings: Settings,
) -> None:
    with worker(settings):
        found = await looks(settings)
    for place in ("own environ", "own cmdline", "parent cmdline", "grandparent cmdline"):
        assert {each[place] for each in found} == {"clean"}, place
    assert {each["parent environ"] for each in found[2:]} == {"clean"}, "a child's is the worker"
    assert {each["variables"] for each in found[:2]} == {""}


@pytest.mark.parametrize("user", USERS, ids=len)
async def test_what_holds_secrets_is_closed_to_its_own_user(
    settings: Settings, user: list[str]
) -> None:
    """Neither the worker nor its supervisor, whose first environment had them, lets a tool look."""
    if user and not can_run(user):
        pytest.skip("that user cannot run this Python")
    with worker(settings, *user) as supervisor:
        found = await looks(settings)
        for each in found[2:]:
            assert each["parent environ"] == each["grandparent environ"] == "closed"
            assert each["own environ"] == "clean"
        children = _below(supervisor.pid)
        assert len(children) >= 2
        supervisor.kill()
        await eventually(
            lambda: not any(is_running(pid) for pid in children), "all that it started ends", 10.0
        )


def _below(pid: int) -> list[int]:
    from toolpool.workers.running.descendants import _below

    return _below(pid)


async def test_a_local_fleet_hands_its_key_over_unseen() -> None:
    key = generate_key()
    options = {"signing_key": SecretStr(key), "slots_process": 1}
    with fleets.running("tests.fleets.curious", **options) as fleet:
        async with fleets.connected(fleet) as dispatcher:
            result = (await dispatcher.dispatch(call("look_from_a_child", secret=key)))[0]
    assert set(result.data.values()) == {"clean"}
