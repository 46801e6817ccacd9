"""Workers under their supervisors, as processes that can be found and hurt one by one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.chaos import processes
from tests.chaos.journal import Journal
from tests.chaos.tools import JOURNAL
from toolpool.contract.settings import Settings
from toolpool.fleet_reader import read_fleet
from toolpool.workers.supervision.lifeline import in_lasting_thread, tethered

GROUPS = ("loop,thread", "process")
TOOLS = "tests.chaos.tools"
_START_SECONDS = 60.0


class Worker:
    """One `toolpool worker`: a supervisor and the worker that it starts again and again."""

    def __init__(
        self, run_in: str, environment: dict[str, str], log: Path, tools: str = TOOLS
    ) -> None:
        self.run_in = run_in
        self.tools = tools
        self._environment = environment
        self._log = log
        self.start()

    def start(self) -> None:
        """Start the supervisor."""
        command = [sys.executable, "-m", "toolpool", "worker", "--run-in", self.run_in]
        command += ["--tools", self.tools]
        with self._log.open("ab") as log:
            self.supervisor = in_lasting_thread(
                lambda: subprocess.Popen(
                    tethered(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            )

    @property
    def pid(self) -> int | None:
        """The worker process; None while there is none."""
        found = processes.children_of(self.supervisor.pid)
        return found[0] if found else None

    @property
    def tool_pids(self) -> list[int]:
        """Its child processes that run tools."""
        return processes.children_of(self.pid) if self.pid else []

    def kill(self) -> bool:
        """SIGKILL the worker and its group, as an out-of-memory killer would; False: none ran."""
        pid = self.pid
        if pid is None:
            return False
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet
            processes.send([pid], signal.SIGKILL)
        return True

    def kill_with_supervisor(self) -> None:
        """SIGKILL the worker's group and the supervisor, which cannot report it any more."""
        os.kill(self.supervisor.pid, signal.SIGSTOP)
        self.kill()
        self.end()

    def stop(self) -> None:
        """TERM: drain and end. The second one ends it at once."""
        self.supervisor.terminate()

    def end(self) -> None:
        """SIGKILL the supervisor; what hangs on it follows."""
        self.supervisor.kill()
        self.supervisor.wait()


class Fleet:
    """`copies` workers of each of `groups`. Blocks until every one has its lease.

    `name` tells their logs from those of another fleet's; `environment` is added to theirs.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        journal: Journal,
        *,
        copies: int = 1,
        groups: Sequence[str] = GROUPS,
        tools: str = TOOLS,
        name: str = "worker",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.settings = settings
        given = environment_of(settings, journal.path) | dict(environment)
        self.workers = [
            Worker(group, given, directory / f"{name}-{number}-{group[0]}.log", tools)
            for group in groups
            for number in range(copies)
        ]
        try:
            self.wait_for_leases(len(self.workers))
        except BaseException:
            self.close()
            raise

    def of(self, group: str) -> list[Worker]:
        """The workers that run tools this way."""
        return [worker for worker in self.workers if group in worker.run_in]

    def living(self, group: str = "") -> int:
        """How many workers, all or those of a group, have a lease and have not ended."""
        mode = group.partition(",")[0]
        workers = read_fleet(self.settings).workers
        return sum(any(queue.endswith(mode) for queue in lease.slots) for lease in workers)

    def wait_for_leases(self, count: int) -> None:
        """Return when so many workers live."""
        give_up_at = time.monotonic() + _START_SECONDS
        while self.living() < count:
            assert time.monotonic() < give_up_at, "the workers did not start"
            time.sleep(0.05)

    def close(self) -> None:
        """End all at once: nothing that is still to be judged runs any more."""
        for worker in self.workers:
            worker.end()


def environment_of(settings: Settings, journal: Path) -> dict[str, str]:
    """The variables from which another process makes the same settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOOLPOOL_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment[JOURNAL] = str(journal)
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        reveal = getattr(value, "get_secret_value", None)
        if value is not None:
            environment[f"TOOLPOOL_{name.upper()}"] = str(reveal() if reveal else value)
    return environment
