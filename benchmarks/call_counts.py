"""`make count`: what a call takes, counted and not timed, held against `call_bounds.toml`.

A real dispatcher in this process, a real worker and server beside it. Per call: Python and C
function calls in the dispatcher and in the worker, commands that the server ran (those of scripts
included), bytes that it read and wrote, messages, and memory blocks that the dispatcher keeps. A
count does not depend on the machine's speed, but for the size of batches, which follows the pace
of the calls.
"""

import argparse
import asyncio
import gc
import platform
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import function_counter, observers
from toolpool import Dispatcher, Observer
from toolpool.contract.settings import Settings
from toolpool.fleet_reader import answering
from toolpool.local import LocalFleet

BOUNDS = Path(__file__).with_name("call_bounds.toml")
_LETTERS = "0123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True)
class Shape:
    """One form of load. `calls` are counted, half as many come before as a warm-up."""

    calls: int = 4_000
    in_flight: int = 200
    """Turns that are awaited at once."""
    calls_per_turn: int = 1
    has_session: bool = True
    text_bytes: int = 5
    is_observed: bool = False
    """With events, session record, metrics, and Sentry without traces."""
    tool: str = "echo"


SHAPES = {
    "session": Shape(),
    "no session": Shape(has_session=False),
    "4 KB": Shape(text_bytes=4_096),
    "turn of four": Shape(calls_per_turn=4),
    "everything on": Shape(is_observed=True),
    "one at a time": Shape(calls=400, in_flight=1),
    "child process": Shape(tool="echo_in_child"),
}


def _response(number: int, shape: Shape) -> dict[str, Any]:
    blocks = []
    for index in range(shape.calls_per_turn):
        rest, identity = number * shape.calls_per_turn + index + 1, ""
        for _ in range(22):
            rest, digit = divmod(rest, len(_LETTERS))
            identity += _LETTERS[digit]
        text = "x" * shape.text_bytes
        blocks.append(
            {"type": "tool_use", "id": f"toolu_01{identity}", "name": shape.tool,
             "input": {"text": text}}
        )  # fmt: skip
    return {"type": "message", "id": f"msg_{number}", "content": blocks}


class _Load:
    """Sends turns of a shape, each numbered once."""

    def __init__(self, dispatcher: Dispatcher, shape: Shape) -> None:
        self._dispatcher, self._shape, self._number = dispatcher, shape, 0

    async def send(self, calls: int) -> None:
        """Dispatch so many calls, and wait for their results."""
        shape = self._shape
        numbers = iter(range(self._number, self._number + calls // shape.calls_per_turn))
        self._number += calls // shape.calls_per_turn

        async def ask(session: str | None) -> None:
            for number in numbers:
                turn = await self._dispatcher.dispatch(_response(number, shape), session=session)
                assert turn.ok, turn[0]

        sessions = [f"s{n}" if shape.has_session else None for n in range(shape.in_flight)]
        await asyncio.gather(*(ask(session) for session in sessions))

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """What the worker answers."""
        self._number += 1
        call = {"id": f"ask-{self._number}", "name": tool, "input": arguments}
        turn = await self._dispatcher.dispatch([call])
        assert turn.ok, turn[0]
        return turn[0].data


async def measured(shape: Shape, functions: int = 0) -> dict[str, float]:
    """Figures a call; prints the `functions` that are called most often."""
    with observers.sentry_sink() as dsn, tempfile.TemporaryDirectory() as folder:
        if not shape.is_observed:
            return await _in_a_fleet(shape, functions, Settings(), ())
        settings = Settings(events=True, record=folder)
        with observers.environment({"SENTRY_DSN": dsn}):
            watching = observers.observers_of(("sentry", "metrics"))
            return await _in_a_fleet(shape, functions, settings, watching)


async def _in_a_fleet(
    shape: Shape, functions: int, settings: Settings, watching: Sequence[Observer]
) -> dict[str, float]:
    fleet = await asyncio.to_thread(LocalFleet, ["benchmarks.counted_tools"], settings)
    try:
        async with Dispatcher.connect(settings=fleet.settings, observers=watching) as dispatcher:
            return await _counted(dispatcher, fleet, shape, functions)
    finally:
        await asyncio.to_thread(fleet.close)


async def _counted(
    dispatcher: Dispatcher, fleet: LocalFleet, shape: Shape, functions: int
) -> dict[str, float]:
    load = _Load(dispatcher, shape)
    await load.send(shape.calls // 2)
    if functions:
        await load.ask("functions", most_common=0)
    with answering(fleet.settings) as client:
        worker = await load.ask("function_calls")
        server, blocks = _server_figures(client), _blocks()
        function_counter.clear()
        sys.setprofile(function_counter.profile)
        await load.send(shape.calls)
        sys.setprofile(None)
        totals = _difference("dispatcher, ", function_counter.counts(), {"python": 0, "c": 0})
        totals["dispatcher, blocks kept"] = _blocks() - blocks
        totals |= _difference("server, ", _server_figures(client), server)
        if shape.tool == "echo":  # else it ran in another worker
            totals |= _difference("worker, ", await load.ask("function_calls"), worker)
    if functions:
        _print_functions("dispatcher", function_counter.by_function().most_common(functions), shape)
        _print_functions("worker", await load.ask("functions", most_common=functions), shape)
    return {name: total / shape.calls for name, total in totals.items()}


def _print_functions(side: str, found: Sequence[tuple[str, int]], shape: Shape) -> None:
    for function, count in found:
        print(f"  {side} {count / shape.calls:8.3f} {function}")


def _difference(prefix: str, after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {f"{prefix}{name}": after[name] - before[name] for name in before}


def _server_figures(client: Any) -> dict[str, int]:
    commands: dict[str, Any] = client.info("commandstats")
    stats: dict[str, Any] = client.info("stats")
    return {
        "commands": sum(row["calls"] for row in commands.values()),
        "bytes in": stats["total_net_input_bytes"],
        "bytes out": stats["total_net_output_bytes"],
        "messages": commands.get("cmdstat_lpush", {"calls": 0})["calls"],
    }


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def exceeded(name: str, figures: dict[str, float], bounds: dict[str, float]) -> list[str]:
    """A line for each figure above its bound. Raises `KeyError` if a bound is missing."""
    return [
        f"{name}: {figure:.1f} {kind} a call, at most {bounds[kind]:g} allowed"
        for kind, figure in figures.items()
        if figure > bounds[kind]
    ]


def main() -> int:
    """Print a table; with `--check`, fail if a figure is above its bound."""
    parser = argparse.ArgumentParser(prog="make count")
    parser.add_argument("shapes", nargs="*", choices=[[], *SHAPES], help="all, if none is given")
    parser.add_argument("--check", action="store_true", help="hold the figures against the bounds")
    parser.add_argument("--functions", type=int, default=0, metavar="N",
                        help="list the N functions that are called most often")  # fmt: skip
    options = parser.parse_args()
    document = tomllib.loads(BOUNDS.read_text())
    python = ".".join(platform.python_version_tuple()[:2])
    if options.check and python != document["python"]:
        print(f"Nothing is checked: the bounds are of Python {document['python']}, not {python}.")
        return 0
    failures: list[str] = []
    for name in options.shapes or SHAPES:
        figures = asyncio.run(measured(SHAPES[name], options.functions))
        print(f"{name}: " + "; ".join(f"{kind} {value:.2f}" for kind, value in figures.items()))
        failures += exceeded(name, figures, document["bounds"][name]) if options.check else []
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
