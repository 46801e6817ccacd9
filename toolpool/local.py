"""A whole fleet on this machine: the embedded server and its workers, ended with this process."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import IO

from pydantic import SecretStr

from toolpool.contract.errors import Misconfigured, ToolDeclarationInvalid, ToolsUnimportable
from toolpool.contract.importing import require_package
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server.process_secrets import (
    handed_over,
    secrets_of,
    variables_of,
    without_secrets,
)
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key
from toolpool.contract.spec import RunIn
from toolpool.embedded import EmbeddedServer
from toolpool.fleet_reader import answering
from toolpool.worker_output import Echo
from toolpool.workers.running import process_role
from toolpool.workers.supervision.lifeline import in_lasting_thread, tethered
from toolpool.workers.tool import Tool

_WORKERS: tuple[tuple[RunIn, ...], ...] = ((RunIn.LOOP, RunIn.THREAD), (RunIn.PROCESS,))
"""Child-process tools get their own worker, so that they cannot hold up the others."""

_START_SECONDS = 60.0
_LOG_TAIL_LINES = 15

ToolSource = str | Path | ModuleType | Tool


class LocalFleet:
    """Starts on construction; `close` ends it. Raises `Misconfigured` errors that say what to do.

    One of them concerns a script that starts a fleet when it is imported, and that a worker
    imports.

    Safe to construct in any thread; it blocks until the workers have published their tools. The
    output of tools, and the logs of tools and workers, go to standard error if `is_shown`.
    """

    def __init__(
        self, sources: Sequence[str], settings: Settings, *, is_shown: bool = False
    ) -> None:
        process_role.require_outside()
        require_package("celery", "a worker")
        self._workers: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._echo: Echo | None = None
        self._server = EmbeddedServer()
        self.settings = settings.model_copy(
            update={
                "redis_url": self._server.url,
                "broker_url": None,
                "signing_key": settings.signing_key or SecretStr(generate_key()),
            }
        )
        try:
            for run_in in _WORKERS:
                self._start_worker(sources, run_in)
            self._wait_for_workers()
            if is_shown:
                self._echo = Echo([log for _, log in self._workers])
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> str:
        """Describes the chosen server and the workers."""
        return f"{self._server.description} with {len(self._workers)} workers"

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process, _ in self._workers]

    def log(self) -> str:
        """The workers' log so far."""
        parts = []
        for _, file in self._workers:
            size = os.fstat(file.fileno()).st_size
            parts.append(os.pread(file.fileno(), size, 0).decode(errors="replace"))
        return "".join(parts)

    def close(self) -> None:
        """End the workers, which first finish running calls, and then the server. Idempotent."""
        for process, _ in self._workers:
            process.terminate()
        for process, _ in self._workers:
            try:
                process.wait(self.settings.drain_timeout + 15.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._echo is not None:
            self._echo.close()
            self._echo = None
        for _, log in self._workers:
            log.close()
        self._workers.clear()
        self._server.close()

    def _start_worker(self, sources: Sequence[str], run_in: Sequence[RunIn]) -> None:
        kinds = ",".join(kind.value for kind in run_in)
        command = [sys.executable, "-P", "-m", "toolpool", "worker", "--run-in", kinds]
        if "log_level" not in self.settings.model_fields_set:
            command.append("--quiet")
        command += [word for source in sources for word in ("--tools", source)]
        handed = {**secrets_of(self.settings), **variables_of(os.environ)}
        with open(handed_over(handed), "rb") as secrets:
            log = tempfile.TemporaryFile(prefix="toolpool-worker-")  # noqa: SIM115 - open with it
            command += ["--handed-over", str(secrets.fileno())]
            process = in_lasting_thread(
                lambda: subprocess.Popen(
                    tethered(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                    pass_fds=(secrets.fileno(),),
                    start_new_session=True,  # Ctrl-C is for the foreground process, which ends us
                )
            )
        self._workers.append((process, log))

    def _environment(self) -> dict[str, str]:
        """The settings of this process as environment variables, without secrets."""
        secrets = secrets_of(self.settings)
        environment = without_secrets(os.environ, (*secrets, "broker_url"))
        # An empty path would be the current directory.
        paths = [*sys.path, *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment[process_role.DEPTH] = str(process_role.depth() + 1)
        environment[process_role.SHOWS_TEXTS] = "1" if sys.stderr.isatty() else ""
        # the dispatcher uses the port, and there are two workers
        environment["TOOLPOOL_METRICS_PORT"] = "0"
        for name in self.settings.model_fields_set - {*secrets, "metrics_port"}:
            value = getattr(self.settings, name)
            if value is not None:
                environment[f"TOOLPOOL_{name.upper()}"] = str(value)
        return environment

    def _wait_for_workers(self) -> None:
        names = RedisKeys(self.settings.key_prefix)
        give_up_at = time.monotonic() + _START_SECONDS
        with answering(self.settings) as client:
            while client.zcard(names.workers) < len(self._workers):
                for process, log in self._workers:
                    if process.poll() is not None:
                        raise _worker_ended(process.returncode, log)
                if time.monotonic() > give_up_at:
                    raise Misconfigured(
                        f"the workers did not start in {_START_SECONDS:g} s: "
                        "importing the tools takes too long, or hangs"
                    )
                time.sleep(0.02)


def as_sources(tools: Sequence[ToolSource]) -> list[str]:
    """Module names and files that a worker process can load.

    Raises `ToolDeclarationInvalid` for a tool that only exists inside this process.
    """
    sources: dict[str, None] = {}
    for item in tools:
        if isinstance(item, (str, Path)):
            sources[str(item)] = None
            continue
        name = item.__name__ if isinstance(item, ModuleType) else item.__module__
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name == "__main__" and file is None:
            raise ToolDeclarationInvalid(
                f"{item!r} was made in an interactive session, which workers cannot import: put "
                "it into a file, or use Dispatcher.in_memory"
            )
        sources[str(file) if name == "__main__" else name] = None
    return list(sources)


def _worker_ended(code: int, log: IO[bytes]) -> Misconfigured:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    said = [line.removeprefix("toolpool: ") for line in lines if line.startswith("toolpool: ")]
    if said:
        return ToolsUnimportable(said[-1])
    tail = "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])
    return Misconfigured(f"a worker ended with status {code} while it started:\n{tail}")
