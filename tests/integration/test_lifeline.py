"""Nothing outlives its parent: real processes, killed for real."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.processes import is_running, kill_hard, python, read_line
from tests.waiting import wait_until
from toolpool.workers.supervision.lifeline import in_lasting_thread, tethered

STARTS_TETHERED = """
import subprocess, sys, time
from toolpool.workers.supervision.lifeline import tethered
child = subprocess.Popen(tethered(["sleep", "600"]))
print(child.pid, flush=True)
time.sleep(600)
"""

STARTS_PYTHON_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(600)
"""

DIES_WITH_PARENT = """
import sys, time
from toolpool.workers.supervision.lifeline import die_with_parent
die_with_parent(int(sys.argv[1]))
time.sleep(600)
"""

WATCHES_PARENT = """
import sys, threading, time
from toolpool.workers.supervision.lifeline import _watch_parent
threading.Thread(target=_watch_parent, args=(int(sys.argv[1]),), daemon=True).start()
time.sleep(600)
"""


def test_a_tethered_program_dies_with_its_killed_parent() -> None:
    with python(STARTS_TETHERED) as parent:
        program = int(read_line(parent))
        assert is_running(program)
        kill_hard(parent)
        wait_until(lambda: not is_running(program), "the program to die with its parent")


@pytest.mark.parametrize(
    "child_script",
    [DIES_WITH_PARENT, WATCHES_PARENT],
    ids=["as on this platform", "where the kernel does not help"],
)
def test_a_python_child_dies_with_its_killed_parent(child_script: str) -> None:
    with python(STARTS_PYTHON_CHILD, child_script) as parent:
        child = int(read_line(parent))
        assert is_running(child)
        kill_hard(parent)
        wait_until(lambda: not is_running(child), "the child to die with its parent")


def test_a_tethered_program_has_the_pid_arguments_and_status_of_its_own() -> None:
    awkward = ["two words", "-I", "quo'te", "é"]
    script = 'echo "$$"; printf "%s\\n" "$@"; exit 7'
    process = subprocess.Popen(
        tethered(["sh", "-c", script, "sh", *awkward]), stdout=subprocess.PIPE, text=True
    )
    output, _ = process.communicate(timeout=10)
    assert output.splitlines() == [str(process.pid), *awkward]
    assert process.returncode == 7


def test_a_tethered_program_is_signalled_like_any_other() -> None:
    process = subprocess.Popen(tethered(["sleep", "600"]))
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM


def test_a_tethered_program_does_not_inherit_what_python_ignores() -> None:
    reader_leaves_early = "yes | head -n 1 >/dev/null; kill -s PIPE $$; echo still here"
    done = subprocess.run(
        tethered(["sh", "-c", reader_leaves_early]), capture_output=True, text=True, timeout=10
    )
    assert done.returncode == -signal.SIGPIPE
    assert done.stdout == ""


def test_a_program_that_cannot_be_run_says_so() -> None:
    done = subprocess.run(
        tethered(["/no/such/program"]), capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 127
    assert done.stderr == "cannot run /no/such/program: No such file or directory\n"


def test_a_program_whose_parent_is_already_gone_never_runs() -> None:
    *python_script, _our_pid, shell, flag, command = tethered(["sh", "-c", "echo ran"])
    not_the_parent = str(os.getppid())
    done = subprocess.run(
        [*python_script, not_the_parent, shell, flag, command], capture_output=True, timeout=10
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


def start_in_a_short_lived_thread(lasting: bool) -> subprocess.Popen[bytes]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        def popen() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                tethered(["sh", "-c", "echo up; exec sleep 600"]), stdout=subprocess.PIPE
            )

        process = in_lasting_thread(popen) if lasting else popen()
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.stdout.close()
        started.append(process)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return started[0]


def test_a_program_started_in_a_lasting_thread_outlives_the_thread_that_asked() -> None:
    process = start_in_a_short_lived_thread(lasting=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    assert process.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to a thread")
def test_without_it_the_program_dies_with_the_thread() -> None:
    process = start_in_a_short_lived_thread(lasting=False)
    assert process.wait(10) == -signal.SIGKILL


def test_a_fork_has_a_lasting_thread_of_its_own() -> None:
    script = """
import os, threading
from toolpool.workers.supervision.lifeline import in_lasting_thread

def ask():
    thread = threading.Thread(target=lambda: print(in_lasting_thread(os.getpid), flush=True))
    thread.start()
    thread.join()

ask()
child = os.fork()
if child == 0:
    ask()
    os._exit(0)
os.waitpid(child, 0)
print(child, flush=True)
"""
    with python(script, PYTHONWARNINGS="ignore::DeprecationWarning") as process:
        first, in_child, child = (int(read_line(process)) for _ in range(3))
    assert first == process.pid
    assert in_child == child
