"""`python -m benchmarks.observers`: what watching costs, all of it on against all of it off.

Each way to watch has a fleet, and a dispatcher in a process of its own, and they take turns:
throughput and the time of a single call as ratios of the pairs, and the processor's time a call on
either side of the queue.
"""

import argparse
import asyncio
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import toolpool_calls
from toolpool import Dispatcher, Metrics, Observer, OpenTelemetry, Sentry
from toolpool.contract.settings import Settings
from toolpool.embedded import EmbeddedServer

_SINK = r"""
import socket, threading
def serve(connection):
    waiting = b""
    while data := connection.recv(1 << 16):
        waiting += data
        while True:
            head, ends, rest = waiting.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0] or 0)
            if not ends or len(rest) < length:
                break
            waiting = rest[length:]
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""
"""A server that costs the machine next to nothing: what is measured is not how it answers."""

_SETTLE_SECONDS = 0.7
"""Pause between rounds: longer than any work that one side may defer into the other's round."""
_ALL = ("sentry", "traces", "otel", "metrics", "events", "record")


@dataclass
class Side:
    """One way to run, and what it took."""

    dispatcher: Dispatcher
    workers: list[int]

    def worker_seconds(self) -> float:
        """Processor time of all workers and what they started."""
        return sum(_seconds_of(pid) for pid in self.workers)


def _seconds_of(pid: int) -> float:
    """As the scheduler counts them, in nanoseconds; the clock of `stat` ticks in hundredths."""
    nanoseconds = 0
    below: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            nanoseconds += int((task / "schedstat").read_text().split()[0])
            below += (task / "children").read_text().split()
    return nanoseconds / 1e9 + sum(_seconds_of(int(child)) for child in below)


@contextmanager
def sentry_sink() -> Iterator[str]:
    """The DSN of a server that takes everything."""
    with subprocess.Popen(
        [sys.executable, "-c", _SINK], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://public@127.0.0.1:{process.stdout.readline().strip()}/1"
        finally:
            process.kill()


@asynccontextmanager
async def _side(wanted: tuple[str, ...], dsn: str) -> AsyncIterator[Side]:
    """A server and a worker that is watched in the `wanted` ways, and a dispatcher of them."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-record-") as folder,
        EmbeddedServer() as server,
    ):
        watched = {"SENTRY_DSN": dsn} if "sentry" in wanted else {}
        if "traces" in wanted:
            watched["SENTRY_TRACES_SAMPLE_RATE"] = "0.01"
        variables = {**os.environ, "TOOLPOOL_REDIS_URL": server.url, **watched}
        if "metrics" in wanted:
            variables["TOOLPOOL_METRICS_PORT"] = str(_free_port())
        command = [sys.executable, "-m", "toolpool", "worker", "--tools", "benchmarks.tools"]
        with subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [*command, "--run-in", "loop"],
            env=variables,
            stdout=subprocess.DEVNULL,  # else it holds that of a side that was killed
        ) as worker:
            settings = Settings(
                redis_url=server.url,
                events="events" in wanted,
                record=folder if "record" in wanted else None,
            )
            try:
                with environment(watched):
                    observers = observers_of(wanted)
                async with Dispatcher.connect(settings=settings, observers=observers) as dispatcher:
                    yield Side(dispatcher, [worker.pid])
            finally:
                worker.terminate()


def observers_of(wanted: tuple[str, ...]) -> list[Observer]:
    """The dispatcher's observers of these names."""
    observers: list[Observer] = []
    if "sentry" in wanted:
        observers.append(Sentry("bench"))
    if "otel" in wanted:
        observers.append(OpenTelemetry("bench"))
    if "metrics" in wanted:
        observers.append(Metrics(port=_free_port()))
    return observers


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and remove them at the end."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Round:
    """What one side did in one round."""

    rate: float
    p50_ms: float
    dispatcher_us: float
    worker_us: float


async def _round(side: Side, calls: int, in_flight: int, singles: int) -> Round:
    """Counted in the middle of a load: what watching puts off is then done meanwhile.

    What rounds before have left is collected first. Calls are timed one by one when what the load
    has put off is done: it is not theirs.
    """
    gc.collect()
    await toolpool_calls.throughput(side.dispatcher, "echo_loop", calls // 2, in_flight)
    own, theirs = time.process_time(), side.worker_seconds()
    rate = await toolpool_calls.throughput(side.dispatcher, "echo_loop", calls, in_flight)
    own, theirs = time.process_time() - own, side.worker_seconds() - theirs
    await asyncio.sleep(_SETTLE_SECONDS)
    found = await toolpool_calls.latencies(side.dispatcher, "echo_loop", singles)
    p50_ms = statistics.median(found) * 1000
    return Round(rate, p50_ms, own / calls * 1e6, theirs / calls * 1e6)


async def _take_turns(way: tuple[str, ...], dsn: str, options: argparse.Namespace) -> None:
    """Be one side: a round for each line that is read, and a line of JSON for each round."""
    async with _side(way, dsn) as side:
        await toolpool_calls.throughput(side.dispatcher, "echo_loop", 2_000, 100)
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            done = await _round(side, options.calls, options.in_flight, options.singles)
            print(json.dumps(asdict(done)), flush=True)


@contextmanager
def _another_process(
    way: tuple[str, ...], dsn: str, options: argparse.Namespace
) -> Iterator[Callable[[], Round]]:
    """What has a side in a process of its own do its next round."""
    command = [sys.executable, "-m", "benchmarks.observers", "+".join(way), "--dsn", dsn]
    for name in ("calls", "in_flight", "singles"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def said() -> str:
            if not (line := answers.readline()):
                raise SystemExit(f"the side {'+'.join(way) or 'nothing'} ended: why is above")
            return line

        def turn() -> Round:
            with suppress(BrokenPipeError):  # it has ended: then it says nothing either
                requests.write("\n")
                requests.flush()
            return Round(**json.loads(said()))

        said()  # that it is ready
        yield turn
        requests.close()


def _compare(
    ways: Sequence[tuple[str, ...]], dsn: str, options: argparse.Namespace
) -> list[list[Round]]:
    """Rounds in turns of fleets that are watched in these ways."""
    rounds = []
    with ExitStack() as stack:
        turns = [stack.enter_context(_another_process(way, dsn, options)) for way in ways]
        for number in range(options.rounds):
            order = [(first + number) % len(ways) for first in range(len(ways))]
            done = {which: turns[which]() for which in order}
            rounds.append([done[which] for which in range(len(ways))])
    return rounds


def measure(wanted: Sequence[tuple[str, ...]], options: argparse.Namespace) -> None:
    """Compare each set of observers with a fleet that has none, in alternating rounds.

    Rounds are short because the speed of a shared machine changes within seconds. Several fleets
    are used because one of two identical fleets is often faster for as long as it runs.
    """
    rounds: list[list[Round]] = []
    with sentry_sink() as dsn:
        for number in range(1, options.fleets + 1):
            print(
                f"  set {number} of {options.fleets}: {len(wanted) + 1} fleets in turn, "
                f"{options.rounds} rounds",
                file=sys.stderr,
            )
            rounds += _compare([(), *wanted], dsn, options)
    pace = statistics.median(done[0].rate for done in rounds)
    print(f"{len(rounds)} rounds; not watched at all: {pace:,.0f} calls a second")
    for number, way in enumerate(wanted, 1):
        _print(way, [(done[0], done[number]) for done in rounds])


def _print(way: tuple[str, ...], pairs: list[tuple[Round, Round]]) -> None:
    """The medians of the pairs, with quartiles of the throughput's."""
    ratios = sorted(on.rate / off.rate for off, on in pairs)
    quarter = len(ratios) // 4
    slower = [on.p50_ms - off.p50_ms for off, on in pairs]
    ours = [on.dispatcher_us - off.dispatcher_us for off, on in pairs]
    theirs = [on.worker_us - off.worker_us for off, on in pairs]
    print(
        f"{'+'.join(way) or 'nothing':36} throughput {statistics.median(ratios):.3f} "
        f"({ratios[quarter]:.2f}-{ratios[-1 - quarter]:.2f})  "
        f"p50 {statistics.median(slower):+.3f} ms  "
        f"cpu a call: dispatcher {statistics.median(ours):+.1f} us, "
        f"workers {statistics.median(theirs):+.1f} us"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def main() -> None:
    """Measure what is named, or each by itself and all together; and nothing, to see the noise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observers")
    parser.add_argument("wanted", nargs="*", help=f"some of {', '.join(_ALL)}; several with a +")
    parser.add_argument(
        "--fleets", type=_count, default=4, help="of each kind, one after the other"
    )
    parser.add_argument("--rounds", type=_count, default=12, help="of each set of fleets")
    parser.add_argument("--calls", type=_count, default=4_000)
    parser.add_argument("--in-flight", type=_count, default=500)
    parser.add_argument("--singles", type=_count, default=50)
    parser.add_argument("--dsn", help="be one side, with this Sentry; for its own use")
    options = parser.parse_args()
    wanted = [tuple(filter(None, word.split("+"))) for word in options.wanted]
    if unknown := {name for way in wanted for name in way} - set(_ALL):
        parser.error(f"there is no {', '.join(sorted(unknown))}: name some of {', '.join(_ALL)}")
    if options.dsn:
        asyncio.run(_take_turns(wanted[0], options.dsn, options))
    else:
        measure(wanted or [(), *((one,) for one in _ALL), _ALL], options)


if __name__ == "__main__":
    main()
