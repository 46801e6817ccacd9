"""The programs of docs/recipes.md, as they stand there, in an environment of their own."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.clients.hosts import PROMPT, client_environment, variables, written
from tests.conftest import REPOSITORY
from tests.waiting import wait_until
from toolpool.local import LocalFleet

PACKAGES = [
    "fastapi==0.118.0",
    "uvicorn==0.37.0",
    "uvicorn-worker==0.4.0",
    "gunicorn==23.0.0",
    "django==5.2.7",
    "pytest==8.4.2",
    "pytest-asyncio==1.2.0",
]
_GUNICORN = ["gunicorn", "app:app", "-k", "uvicorn_worker.UvicornWorker", "-w", "2"]
_DJANGO = ["gunicorn", "shop", "--workers", "2", "--threads", "4"]
SERVERS = {
    "uvicorn": ["uvicorn", "app:app", "--timeout-graceful-shutdown", "3", "--port"],
    "gunicorn": [*_GUNICORN, "-b"],
    "gunicorn, preloaded": [*_GUNICORN, "--preload", "-b"],
    "django": [*_DJANGO, "-b"],
    "django, preloaded": [*_DJANGO, "--preload", "-b"],
}


@pytest.fixture(scope="module")
def programs() -> Path:
    return client_environment("recipes", PACKAGES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written("recipes.md", tmp_path)


@contextmanager
def serving(
    server: str, programs: Path, folder: Path, fleet: LocalFleet
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """A server of the document on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program, *arguments = SERVERS[server]
    where = str(port) if program == "uvicorn" else f"127.0.0.1:{port}"
    process = subprocess.Popen(
        [str(programs / program), *arguments, where],
        cwd=folder,
        env=variables(fleet, TOOLPOOL_EVENTS="on"),
        start_new_session=True,
    )
    try:
        wait_until(lambda: is_open(port), "the server listens")
        yield port, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answered(port: int, number: int, session: str = "s") -> Any:
    """What a right and a wrong call of one response are answered."""
    inputs: list[dict[str, Any]] = [{"a": number, "b": 1}, {"a": f"n{number}"}]
    calls = [
        {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": "add", "input": given}
        for at, given in enumerate(inputs)
    ]
    body = json.dumps({"type": "message", "id": f"msg_{session}_{number}", "content": calls})
    path, headers = f"/sessions/{session}{number}/turns", {"Content-Type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        read = response.read()
    assert response.status == 200, read
    [message] = json.loads(read)
    right, wrong = message["content"]
    return right["content"], json.loads(wrong["content"])["code"]


@PROMPT
@pytest.mark.parametrize("server", SERVERS)
def test_every_process_of_a_server_dispatches(
    server: str, programs: Path, folder: Path, fleet: LocalFleet
) -> None:
    with serving(server, programs, folder, fleet) as (port, process):
        with ThreadPoolExecutor(8) as threads:
            told = list(threads.map(lambda number: answered(port, number, server[:3]), range(40)))
        assert told == [(str(number + 1), "validation.arguments") for number in range(40)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)


@PROMPT
def test_a_page_follows_a_session(programs: Path, folder: Path, fleet: LocalFleet) -> None:
    with serving("uvicorn", programs, folder, fleet) as (port, process):
        kinds: list[str] = []
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            headers = {"Last-Event-ID": "0"}
            connection.request("GET", "/sessions/page1/events", headers=headers)
            with connection.getresponse() as stream:
                assert stream.headers["Content-Type"].startswith("text/event-stream")
                answered(port, 2, "page")
                answered(port, 1, "page")
                while "tool_executed" not in kinds:
                    line = stream.readline().decode()
                    assert line, "the stream has ended"
                    if line.startswith("event: "):
                        kinds.append(line.removeprefix("event: ").strip())
        assert {"tool:start", "tool:end", "tool:error"} & set(kinds)
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@PROMPT
def test_the_fixture_is_one(programs: Path, folder: Path) -> None:
    ran = subprocess.run(
        [str(programs / "python"), "-m", "pytest", "-q", "test_shop.py"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
