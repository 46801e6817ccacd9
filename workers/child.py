"""A child process: loads the tools, then runs one call after another for its worker.

Started fresh, never forked. Its protocol has a socket of its own, so that a tool, or a program a
tool starts, may write what it likes to stdout and stderr.
"""

import argparse
import os
import signal
import socket
import sys
import threading
import time

from contract.errors import Misconfigured
from contract.lifeline import die_with_parent
from contract.outcome import Code, Executed, failure
from workers import descendants, frames, inside
from workers.catalog import Catalog
from workers.context import ProgressGate, ToolContext
from workers.heartbeat import BeatGate
from workers.invoke import Limits, invoke


def main() -> int:
    """Serve the worker on the other end of `--socket` until it closes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--max-result", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--tools", action="append", default=[])
    options = parser.parse_args()
    die_with_parent(options.parent)
    inside.mark()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descendants.adopt()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    connection = socket.socket(fileno=options.socket)
    os.set_inheritable(options.socket, False)
    try:
        catalog = Catalog.load(options.tools)
    except Misconfigured as error:
        connection.sendall(frames.pack(frames.Failed(error=str(error))))
        return 1
    connection.sendall(frames.pack(frames.Ready()))
    limits = Limits(options.max_result)
    for _ in range(options.calls):
        frame = frames.receive(connection)
        if not isinstance(frame, frames.Run):
            break
        done = _run(catalog, frame, limits, connection)
        connection.sendall(frames.pack(done))
        if done.spent:
            break
    return 0


class _Wire:
    """What one call's threads write to the worker, a frame at a time; after `close`, nothing."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()

    def send(self, frame: frames.Frame) -> None:
        if os.getpid() != self._process:
            return  # a fork of the tool's: the connection is not its own
        with self._lock:
            if not self._closed:
                self._connection.sendall(frames.pack(frame))

    def close(self) -> None:
        with self._lock:
            self._closed = True


def _run(
    catalog: Catalog, frame: frames.Run, limits: Limits, connection: socket.socket
) -> frames.Done:
    tool = catalog.tools.get(frame.tool)
    if tool is None:
        return frames.Done(
            outcome=failure(Code.INTERNAL, "the tool is not loaded in this process", Executed.NO)
        )
    wire = _Wire(connection)
    context = ToolContext(
        call_id=frame.call_id,
        tool=frame.tool,
        session=frame.session,
        attempt=frame.attempt,
        context=frame.context or {},
        ends_at=time.monotonic() + frame.timeout,
        report_progress=ProgressGate(
            lambda done, total, message: wire.send(
                frames.Progressed(done=done, total=total, message=message)
            )
        ),
        beat=BeatGate(lambda: wire.send(frames.Beat()), frame.heartbeat),
    )
    ending = invoke(tool, frame.arguments, context, limits)
    wire.close()  # a thread that the tool left behind must not write into the next call's frames
    sys.stdout.flush()
    exception = (ending.outcome.details or {}).get("exception", "")
    spent = not descendants.end_own() or exception == "builtins.MemoryError"
    return frames.Done(outcome=ending.outcome, whole=ending.whole, spent=spent)


if __name__ == "__main__":
    sys.exit(main())
