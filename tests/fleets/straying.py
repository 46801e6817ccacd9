"""Child-process tools that fork, tamper with their process, and leave things behind."""

import contextvars
import ctypes
import io
import multiprocessing
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from toolpool import ToolContext, tool
from toolpool.contract.outcome import Outcome
from toolpool.workers.running import frames

SECRET = "private data of another session"
_user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
_at_import = threading.Thread(target=threading.Event().wait, daemon=True)
_at_import.start()


@tool(run_in="process")
def echo(text: str) -> str:
    """Give back the text."""
    return text


@tool(run_in="process", effects="write")
def append(path: str, line: str) -> str:
    """Write a line, and say so."""
    with open(path, "a") as file:
        file.write(line + "\n")
    return line


@tool(run_in="process", effects="write")
def write_over_all(path: str, how: str) -> None:
    """Spoil every descriptor that is not its own, and end the process."""
    with open(path, "a") as file:
        file.write("started\n")
    for descriptor in range(3, 64):
        try:
            match how:
                case "truncate":
                    os.ftruncate(descriptor, 0)
                case "zeros":
                    os.pwrite(descriptor, bytes(64), 0)
                case _:
                    os.write(descriptor, b"a line of somebody's log\n")
        except OSError:
            continue
    os._exit(1)


def _fork(how: str) -> int:
    if how == "os":
        return os.fork()
    return int(ctypes.PyDLL(None).fork())


@tool(run_in="process")
def fork_that_climbs_out(how: str, ends: str) -> str:
    """Fork; the fork fails to start its program, and comes back out of the tool."""
    pid = _fork(how)
    if pid == 0:
        if ends == "exec":
            os.execv("/nonexistent/program", ["program"])
        if ends == "exit":
            raise SystemExit(3)
        return SECRET
    _, status = os.waitpid(pid, 0)
    return f"the fork ended with {os.waitstatus_to_exitcode(status)}"


@tool(run_in="process")
def fork_and_end(pid_file: str) -> str:
    """The child goes and leaves the rest to its fork, as a daemon does."""
    if os.fork():
        os._exit(0)
    Path(pid_file).write_text(str(os.getpid()))
    return SECRET


@tool(run_in="process")
def fork_holding_on(seconds: float) -> str:
    """A fork in a session of its own keeps all it inherited; the child dies."""
    if ctypes.PyDLL(None).fork() == 0:
        os.setsid()
        time.sleep(seconds)
        os._exit(0)
    os._exit(4)


def _socket_number() -> int:
    arguments = Path("/proc/self/cmdline").read_bytes().decode().split("\0")
    return next(int(a.partition("=")[2]) for a in arguments if a.startswith("--socket="))


@tool(run_in="process")
def write_to_the_socket(how: str) -> str:
    """Write to the worker what is none of the tool's business."""
    number = _socket_number()
    foreign = frames.Done(pid=os.getpid(), run=1, outcome=Outcome(ok=True, data=SECRET))
    others = frames.Done(pid=1, run=1, outcome=Outcome(ok=True, data=SECRET))
    match how:
        case "garbage":
            os.write(number, b"hello, is anybody there?\n" * 3)
        case "form":
            os.write(number, struct.pack("!I", 5) + b"{'a':")
        case "half":
            os.write(number, struct.pack("!I", 5_000))
        case "another_run":
            os.write(number, frames.pack(foreign))
        case "another_process":
            os.write(number, frames.pack(others))
        case "close":
            os.close(number)
        case "close_all":
            os.closerange(3, 256)
        case "replace":
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        case "shut":
            with socket.socket(fileno=os.dup(number)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
    return "written"


@tool(run_in="process")
def use_multiprocessing(method: str) -> list[int]:
    """Compute in processes of one's own."""
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


@tool(run_in="process")
def run_program(how: str) -> str:
    """Start a program."""
    options: dict[str, Any] = {"preexec_fn": os.getpid} if how == "preexec" else {}
    run = subprocess.run(["/bin/echo", "hi"], capture_output=True, text=True, check=True, **options)
    return run.stdout.strip()


@tool(run_in="process")
def leave(what: str, folder: str = "/") -> str:  # noqa: C901 - a list of misdeeds
    """Leave something behind for the next call in this process."""
    match what:
        case "folder":
            os.chdir(folder)
        case "removed_folder":
            os.mkdir(gone := f"{folder}/gone")
            os.chdir(gone)
            os.rmdir(gone)
        case "variable":
            os.environ["TOKEN"] = SECRET
            del os.environ["PATH"]
        case "environ":
            vars(os)["environ"] = {"TOKEN": SECRET}
        case "time_zone":
            os.environ["TZ"] = "Asia/Kathmandu"
            time.tzset()
        case "umask":
            os.umask(0)
        case "handler":
            signal.signal(signal.SIGUSR1, lambda *_: None)
        case "mask":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        case "alarm":
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        case "limit":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        case "nice":
            os.nice(3)
        case "thread":
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        case "streams":
            sys.stdout = sys.stderr = io.StringIO()
        case "stdout_file":
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        case "closed_stdout":
            sys.stdout.close()
        case "path":
            sys.path.insert(0, folder)
        case "tracer":
            sys.setprofile(lambda *_: None)
        case "timeout":
            socket.setdefaulttimeout(0.001)
        case "context":
            _user.set(SECRET)
        case "process":
            subprocess.Popen(["/bin/sleep", "30"])
        case "daemon":
            subprocess.Popen(["/bin/sleep", "30"], start_new_session=True)
    return what


@tool(run_in="process")
def look_around() -> dict[str, Any]:
    """What a call finds in its process."""
    os.umask(umask := os.umask(0o22))
    return {
        "folder": os.getcwd(),
        "variables": {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        "zone": list(time.tzname),
        "umask": umask,
        "handler": str(signal.getsignal(signal.SIGUSR1)),
        "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
        "limits": [
            list(resource.getrlimit(n)) for n in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)
        ],
        "nice": os.nice(0),
        "threads": threading.active_count(),
        "stdout": [sys.stdout.name, sys.stdout.closed],
        "stdout_file": os.fstat(1).st_ino == os.fstat(2).st_ino,
        "path": sys.path,
        "profile": str(sys.getprofile()),
        "timeout": socket.getdefaulttimeout(),
        "context": _user.get(),
    }


@tool(run_in="process", timeout=0.5)
def sleep_short(seconds: float) -> str:
    """Sleep within a short timeout."""
    time.sleep(seconds)
    return "slept"


@tool(run_in="process")
def end_after(seconds: float, ctx: ToolContext) -> str:
    """Report, then die in a while."""
    ctx.progress(1, 2)
    threading.Timer(seconds, os._exit, (9,)).start()
    return "returned"


@tool(run_in="process")
def report_from_thread(ctx: ToolContext) -> str:
    """A thread goes on reporting after the call."""

    def report() -> None:
        for number in range(200):
            ctx.progress(number, 1000, SECRET)
            ctx.heartbeat()
            time.sleep(0.001)

    threading.Thread(target=report, daemon=True).start()
    return "returned"


@tool(run_in="process")
def nest(levels: int) -> Any:
    """Nest lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@tool(run_in="process", timeout=120)
def run_two_programs(pids: str) -> None:
    """Run a program that starts another, and wait for it."""
    script = f"echo $$ >> {pids}; setsid sleep 100 & echo $! >> {pids}; exec sleep 100"
    subprocess.run(["sh", "-c", script], check=True, env={"PATH": os.environ["PATH"]})
