"""A child process: loads the tools, then runs one call after another for its worker.

It is spawned, never forked. It talks to the worker over a separate socket, so that tools and their
programs may use stdout and stderr freely.
"""

import argparse
import contextlib
import contextvars
import os
import signal
import socket
import sys
import threading
import time

from toolpool.contract import logs
from toolpool.contract.errors import Misconfigured
from toolpool.contract.exception_report import tools_imported
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.redaction import NOTHING
from toolpool.contract.telemetry.families import DIRECTORY_PREFIX
from toolpool.workers.context import ProgressThrottle, ToolContext, context_of
from toolpool.workers.lifespan import Resources
from toolpool.workers.running import descendants, forks, frames, process_role
from toolpool.workers.running.entry_flag import EntryFlag
from toolpool.workers.running.invoke import Invocation, invoke
from toolpool.workers.running.outcomes import raised
from toolpool.workers.running.output import Completion
from toolpool.workers.running.process_state import ProcessState
from toolpool.workers.running.run_timeout import BeatThrottle
from toolpool.workers.supervision.lifeline import die_with_parent
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import Catalog


def main() -> int:
    """Serve the worker at the other end of `--socket` until it closes the socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--entry-flag", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--max-result-bytes", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--imported-at", type=float)
    parser.add_argument("--tools", action="append", default=[])
    parser.add_argument("--queue", action="append", default=[])
    options = parser.parse_args()
    die_with_parent(options.parent)
    process_role.mark()
    logs.configure_child(os.environ)
    if DIRECTORY_PREFIX in os.environ.get("PROMETHEUS_MULTIPROC_DIR", ""):
        del os.environ["PROMETHEUS_MULTIPROC_DIR"]  # only worker processes use it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descendants.adopt()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.set_inheritable(options.socket, False)
    worker = _WorkerSocket(socket.socket(fileno=options.socket), EntryFlag(options.entry_flag))
    os.close(options.entry_flag)
    try:
        catalog = Catalog.load(options.tools)
        resources = Resources(catalog.of_processes(options.queue))
        opened = resources.open_in_child()
    except Misconfigured as error:
        worker.send(frames.Failed(pid=worker.pid, error=str(error)))
        return 1
    tools_imported(options.imported_at)
    logs.restore()
    worker.end_strayed_fork()  # a tools module forked: this is not the child
    with opened:
        server = _Server(worker, catalog, resources, options.max_result_bytes, ProcessState())
        worker.send(frames.Ready(pid=worker.pid))
        return server.serve(options.calls)


class _WorkerSocket:
    """The socket to the worker; in a fork it is closed."""

    def __init__(self, connection: socket.socket, entry_flag: EntryFlag) -> None:
        self.pid = os.getpid()
        self._entry_flag = entry_flag
        self._connection = connection
        self._file = os.fstat(connection.fileno()).st_ino
        self._reader = frames.Reader(connection)
        self._lock = threading.Lock()
        self._run = 0
        os.register_at_fork(after_in_child=self._leave)

    def receive(self) -> frames.Frame | None:
        """The worker's next frame; None if the socket was closed."""
        return self._reader.receive()

    def begin(self, run: int) -> None:
        """Begin `run`. Later frames are about this run, and its tool is about to be entered."""
        self._run = run
        self._entry_flag.mark_entered(run)

    def send_for_run(self, frame: frames.Progressed | frames.Beat | frames.Entered) -> None:
        """Send a frame about the run, from any thread; ignored after the run or in a fork."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            if frame.run == self._run:
                self._connection.sendall(frames.pack(frame))

    def end(self, done: frames.Done) -> None:
        """Send the run's last frame."""
        try:
            packed = frames.pack(done)
        except Exception as error:  # noqa: BLE001 - a tool's text may fail to encode
            reason = f"its outcome could not be encoded ({type(error).__name__})"
            details = {"cause": "not encodable"}
            bad = failure(Code.BAD_RESULT, reason, Executed.YES, details=details)
            packed = frames.pack(frames.Done(pid=self.pid, run=done.run, outcome=bad, spent=reason))
        with self._lock:
            self._run = 0
            try:
                self._connection.sendall(packed)
            except OSError:
                os._exit(frames.CUT_OFF)

    def send(self, frame: frames.Ready | frames.Failed) -> None:
        """Send a frame that belongs to no run."""
        if os.getpid() == self.pid:
            self._connection.sendall(frames.pack(frame))

    def end_strayed_fork(self) -> None:
        """End this process at once if it is a fork: it must not serve in the child's place."""
        if os.getpid() != self.pid:
            forks.end("its process")

    def _leave(self) -> None:
        """In a fork: close the socket, or replace its descriptor if a tool reused the number."""
        with contextlib.suppress(OSError):
            if os.fstat(self._connection.fileno()).st_ino == self._file:
                self._connection.close()
        self._connection.detach()


class _Server:
    """Runs one call after another."""

    def __init__(
        self,
        worker: _WorkerSocket,
        catalog: Catalog,
        resources: Resources,
        max_result_bytes: int,
        state: ProcessState,
    ) -> None:
        self._worker = worker
        self._catalog = catalog
        self._resources = resources
        self._max_result_bytes = max_result_bytes
        self._state = state
        self._variables = contextvars.copy_context()

    def serve(self, calls: int) -> int:
        """Run at most this many calls, fewer if a call leaves the process unusable."""
        for _ in range(calls):
            frame = self._worker.receive()
            if not isinstance(frame, frames.Run):
                break
            done = self._run(frame)
            self._worker.end(done)
            if done.spent:
                break
        return 0

    def _run(self, frame: frames.Run) -> frames.Done:
        tool = self._catalog.tools.get(frame.call.tool)
        if tool is None:
            reason = "the tool is not loaded in this process"
            return self._done(frame, Completion(failure(Code.INTERNAL, reason, Executed.NO)))
        if frame.enter_by is not None and time.monotonic() > frame.enter_by:
            return self._done(frame, Completion(failure(Code.EXPIRED, "", Executed.NO)))
        self._worker.begin(frame.run)
        if frame.enter_by is not None:
            self._worker.send_for_run(frames.Entered(pid=self._worker.pid, run=frame.run))
        context = self._context(frame, tool) if tool.signature.injected else None
        redaction = context.redaction if context is not None else NOTHING
        completion, spent = None, ""
        try:
            variables = self._variables.copy()
            completion = variables.run(
                invoke,
                Invocation(
                    tool,
                    frame.call.arguments,
                    context,
                    self._max_result_bytes,
                    frame.call.verdict,
                    frame.switches,
                ),
            )
            self._worker.end_strayed_fork()
            spent = self._tidied(completion.outcome)
        except BaseException as error:  # noqa: BLE001 - a tool's timer may fire only now
            self._worker.end_strayed_fork()
            completion = completion or Completion(raised(error, redaction))
            spent = "a signal handler"
        return self._done(frame, completion, spent)

    def _context(self, frame: frames.Run, tool: Tool) -> ToolContext:
        worker, run = self._worker, frame.run
        return context_of(
            frame.call,
            frame.timeout,
            secrets=frame.secrets or {},
            resources=self._resources.of(tool),
            report_progress=ProgressThrottle(
                lambda done, total, message: worker.send_for_run(
                    frames.Progressed(
                        pid=worker.pid, run=run, done=done, total=total, message=message
                    )
                )
            ),
            beat=BeatThrottle(
                lambda: worker.send_for_run(frames.Beat(pid=worker.pid, run=run)), frame.heartbeat
            ),
        )

    def _tidied(self, outcome: Outcome) -> str:
        """Restore the process to its state before the call.

        Returns the reason if that is impossible.
        """
        spent = "" if descendants.end_own() else "a running process"
        spent = self._state.restore() or spent
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        if (outcome.details or {}).get("exception") == "builtins.MemoryError":
            spent = "too little memory"
        return spent

    def _done(self, frame: frames.Run, completion: Completion, spent: str = "") -> frames.Done:
        return frames.Done(
            pid=self._worker.pid,
            run=frame.run,
            outcome=completion.outcome,
            whole=completion.whole,
            spent=spent,
        )


if __name__ == "__main__":
    sys.exit(main())
