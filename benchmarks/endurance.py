"""`python -m benchmarks.endurance`: whether cost and memory stay flat as calls and sessions grow.

Processor time a call in the dispatcher, the worker and the server, and their memory, after so many
calls; then with so many sessions; then waves of calls that wait. Processor time depends less on the
machine's other load than throughput does.
"""

import argparse
import asyncio
import gc
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks.memory import resident
from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.fleet_reader import answering
from toolpool.local import LocalFleet

_IN_FLIGHT = 500
_MEASURED = 20_000
"""How many calls are measured at each step."""
_WAVE, _WAVES, _WAIT_SECONDS = 5_000, 10, 2.0
_KEPT_SECONDS = 2.0
"""How long records are kept: the server's memory is bounded by rate x retention."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """Another process, by its id."""

    pid: int

    def seconds(self) -> float:
        """Its processor time."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def megabytes(self) -> float:
        """Its resident memory."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE / 1e6


def _processes(name: str) -> list[Process]:
    """Descendants of this process whose command line contains `name`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline") as file:
                line = file.read().replace("\0", " ")
        except OSError:
            continue
        if name in line:
            found.append(Process(int(entry)))
    return found


class Load:
    """Sends calls, each numbered once."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.sent = 0

    async def send(self, calls: int, sessions: int, tool: str = "echo_loop") -> None:
        """Dispatch calls of so many sessions in turn, and wait for their results."""
        given: dict[str, Any] = {"text": "hello"}
        last = self.sent + calls

        async def ask() -> None:
            while self.sent < last:
                self.sent += 1
                number = self.sent
                call = {"type": "tool_use", "id": f"c{number}", "name": tool, "input": given}
                response = {"type": "message", "id": f"msg-{number}", "content": [call]}
                turn = await self._dispatcher.dispatch(response, session=f"s{number % sessions}")
                assert turn.ok, turn[0]

        await asyncio.gather(*(ask() for _ in range(_IN_FLIGHT)))

    async def wave(self) -> None:
        """Dispatch a wave of calls that wait, and wait for their results."""
        calls = [self._dispatcher.call("wait", {"seconds": _WAIT_SECONDS}) for _ in range(_WAVE)]
        assert all(result.ok for result in await asyncio.gather(*calls))


async def _step(load: Load, fleet: LocalFleet, sessions: int, label: str) -> None:
    [worker] = _processes("--run-in loop,thread --quiet --tools benchmarks.tools --boot")
    [server] = _processes(f"unixsocket:{(fleet.settings.redis_url or '').partition('//')[2]}")
    await load.send(_MEASURED // 4, sessions)
    gc.collect()
    before = time.process_time(), worker.seconds(), server.seconds()
    await load.send(_MEASURED, sessions)
    after = time.process_time(), worker.seconds(), server.seconds()
    mine, theirs, servers = (
        (late - early) / _MEASURED * 1e6 for early, late in zip(before, after, strict=True)
    )
    gc.collect()
    with answering(fleet.settings) as client:
        used: int = client.info("memory")["used_memory"]
        keys: int = client.dbsize()
    after = f"{load.sent:,} calls, {label}"
    print(
        f"| {after} | {mine:.0f} | {theirs:.0f} | {servers:.0f} | {resident() / 1e6:.0f} "
        f"| {worker.megabytes():.0f} | {used / 1e6:.0f} | {keys:,} |",
        flush=True,
    )


async def _measure(most: int) -> None:
    settings = Settings(
        slots_loop=_WAVE,
        waiting_per_session=_WAVE,
        waiting_per_dispatcher=2 * _WAVE,
        dedup_ttl=_KEPT_SECONDS,
        background_result_ttl=_KEPT_SECONDS,
        result_ttl=_KEPT_SECONDS,
    )
    fleet = await asyncio.to_thread(LocalFleet, ["benchmarks.tools"], settings)
    try:
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            load = Load(dispatcher)
            print(
                "| after | µs of the dispatcher | of the worker | of the server | MB of the "
                "dispatcher | of the worker | of the server | keys |\n"
                "| --- | --- | --- | --- | --- | --- | --- | --- |"
            )
            reached = 1_000
            while reached <= most:
                await load.send(max(0, reached - load.sent), 200)
                await _step(load, fleet, 200, "200 sessions")
                reached *= 10
            for sessions in (1, 100, 10_000):
                await _step(load, fleet, sessions, f"{sessions:,} sessions")
            began = time.monotonic()
            for _ in range(_WAVES):
                await load.wave()
            seconds, ideal = time.monotonic() - began, _WAVES * _WAIT_SECONDS
            print(
                f"\n{_WAVES} waves of {_WAVE:,} calls that wait {_WAIT_SECONDS:g} s: {seconds:.1f} "
                f"s, {seconds / ideal:.2f} x the ideal"
            )
    finally:
        await asyncio.to_thread(fleet.close)


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance")
    parser.add_argument("--calls", type=int, default=1_000_000, help="how many at most")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("it reads /proc")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(options.calls))


if __name__ == "__main__":
    main()
