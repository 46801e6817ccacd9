"""A dispatcher works beside the packages that a host has, and needs few of its own.

Each environment has what `pip install toolpool` brings, at other versions than the workers'.
"""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.clients.hosts import HERE, PROMPT, client_environment, variables
from toolpool.contract.server.connection import broker_url
from toolpool.local import LocalFleet

OLDEST = ["redis==5.0.8", "pydantic==2.7.4", "pydantic-settings==2.6.0", "msgspec==0.19.0"]
WITHOUT_CELERY = {
    "oldest": OLDEST,
    "redis-5": ["redis==5.3.1"],
    "redis-6": ["redis==6.4.0"],
    "redis-7": ["redis==7.4.0"],
    "redis-8": ["redis==8.1.0"],
}
# Later releases of kombu do not run with the redis-py that Celery before 5.5 asks for.
BESIDE_CELERY = {
    "celery-5.3": ["celery[redis]==5.3.6", "kombu==5.3.7"],
    "celery-5.4": ["celery[redis]==5.4.0", "kombu==5.4.2"],
    "celery-5.5": ["celery[redis]==5.5.3"],
    "celery-5.6": ["celery[redis]==5.6.2"],
}


def run(command: list[str], env: dict[str, str]) -> Any:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@PROMPT
@pytest.mark.parametrize("name", [*WITHOUT_CELERY, *BESIDE_CELERY])
def test_it_dispatches_with_the_packages_of_the_host(name: str, fleet: LocalFleet) -> None:
    packages = WITHOUT_CELERY.get(name) or BESIDE_CELERY[name]
    programs = client_environment(name, packages)
    told = run([str(programs / "python"), str(HERE / "client.py"), name], variables(fleet))
    versions = told.pop("versions")
    assert told == {
        "right": 3,
        "mistyped": ["validation.arguments", "no"],
        "failed": ["runtime.raised", "yes"],
        "many": True,
        "after_cut_0": [0, 1, 2],
        "after_cut_1": [1, 2, 3],
        "state": "RUNNING",
        "cancelled": 1,
        "sync": 42,
        "loaded": [],
    }
    for package in packages:
        package, _, version = package.partition("==")
        assert versions.get(package, version) == version


@PROMPT
@pytest.mark.parametrize("name", BESIDE_CELERY)
def test_a_task_of_the_hosts_own_celery_dispatches(name: str, fleet: LocalFleet) -> None:
    programs = client_environment(name, BESIDE_CELERY[name])
    broker = broker_url(fleet.settings)
    env = variables(fleet, BROKER=broker, BACKEND=broker)
    worker = subprocess.Popen(
        [str(programs / "celery"), "-A", "celery_project", "worker", "-Q", "project", "-c", "2",
         "--loglevel", "WARNING", "--without-gossip", "--without-mingle"],
        env={**env, "C_FORCE_ROOT": "1"},
        cwd=HERE,
    )  # fmt: skip
    try:
        told = run([str(programs / "python"), str(HERE / "celery_client.py"), "6"], env)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    assert f"celery[redis]=={told.pop('celery')}" in BESIDE_CELERY[name]
    right = [[n + 1, "validation.arguments"] for n in range(6)]
    assert told == {"agent_step": right, "agent_step_of_process": right}


@PROMPT
def test_it_brings_few_packages() -> None:
    programs = client_environment("redis-8", WITHOUT_CELERY["redis-8"])
    listed = [str(programs / "python"), "-m", "pip", "list", "--format", "json"]
    names = {each["name"] for each in run(listed, dict(os.environ))} - {"pip", "setuptools"}
    assert len(names) <= 12, names


NEEDS = {
    "toolpool": ("-m toolpool status", "the command line needs the package typer", "cli"),
    "local": ("from toolpool import Dispatcher; import asyncio; "
     "asyncio.run(Dispatcher.local().__aenter__())", "a worker needs the package celery", "worker"),
    "sentry": ("from toolpool import Sentry", "toolpool.Sentry needs", "sentry"),
    "metrics": ("import toolpool; toolpool.Metrics", "toolpool.Metrics needs", "metrics"),
    "otel": ("from toolpool import OpenTelemetry", "toolpool.OpenTelemetry needs", "otel"),
    "broker": ("from toolpool import Dispatcher, Settings; Dispatcher.connect("
     "settings=Settings(broker_url='amqp://guest:guest@localhost'))",
     "TOOLPOOL_BROKER_URL needs the package kombu", "rabbitmq"),
}  # fmt: skip


@PROMPT
@pytest.mark.parametrize(("script", "words", "extra"), NEEDS.values(), ids=list(NEEDS))
def test_a_missing_package_is_said_with_the_line_that_installs_it(
    script: str, words: str, extra: str, fleet: LocalFleet
) -> None:
    programs = client_environment("redis-8", WITHOUT_CELERY["redis-8"])
    given = script.split() if script.startswith("-m") else ["-c", script]
    ran = subprocess.run(
        [str(programs / "python"), *given],
        env=variables(fleet),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert words in last
    assert last.endswith(f"pip install 'toolpool[{extra}]'")
