"""Servers that can be killed and started again at the same address, with the same data."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import redis

from toolpool.embedded import find_program
from toolpool.workers.supervision.lifeline import in_lasting_thread, tethered

_START_SECONDS = 20.0


class Server:
    """A Valkey or Redis with its append-only file on, in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        listen: Literal["socket", "port"] = "socket",
        aof: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._program = find_program().path
        self._aof = aof
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        if listen == "socket":
            path = directory / "s"
            self.port = 0
            self.url = f"unix://{path}"
            self._listen = ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
        else:
            self.port = free_port()
            self.url = f"redis://127.0.0.1:{self.port}/0"
            self._listen = ["--port", str(self.port), "--bind", "127.0.0.1"]
        self.start()

    @property
    def pid(self) -> int:
        """The process of the last start."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, with the data of before, and wait until it answers."""
        command = [str(self._program), *self._listen, "--dir", str(self.directory)]
        command += ["--appendonly", "yes" if self._aof else "no", "--save", ""]
        command += ["--maxmemory-policy", "noeviction", "--protected-mode", "no"]
        command += ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "8mb"]
        with (self.directory / "log").open("ab") as log:
            self._process = in_lasting_thread(
                lambda: subprocess.Popen(
                    tethered(command),
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        give_up_at = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"the server ended: see {self.directory}/log"
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: what is not in its files is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def keep_data(self) -> None:
        """Keep a copy of its append-only file as it is now."""
        shutil.rmtree(self.directory / "kept", ignore_errors=True)
        shutil.copytree(self.directory / "appendonlydir", self.directory / "kept")

    def restore_data(self) -> None:
        """Put the copy in place of the file, while the server is not running."""
        shutil.rmtree(self.directory / "appendonlydir")
        (self.directory / "kept").rename(self.directory / "appendonlydir")

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> "redis.Redis":
        """A client for commands of the row's own."""
        return redis.Redis.from_url(self.url, socket_timeout=5)

    def close(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
