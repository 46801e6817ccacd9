"""`make bench-peers`: each side in turn, each round with a fresh server and fresh workers.

Sides are processes of their own; peers run in `.venv-peers`, which `requirements.txt` here
describes. Prints a table of medians and spreads, and keeps every round with `--json`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.loads import LOADS, WAIT_SECONDS
from toolpool.embedded import EmbeddedServer

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_PEERS = _ROOT / ".venv-peers"
_PEERS_PYTHON = _PEERS / "bin" / "python"
_START_SECONDS = 120

Rounds = dict[str, dict[str, list[dict[str, float]]]]
"""By load and side: the figures of each round."""


@dataclass(frozen=True)
class Side:
    """What is measured: a module of this package, and its arguments."""

    module: str
    arguments: tuple[str, ...] = ()
    is_peer: bool = True
    loads: tuple[str, ...] = tuple(LOADS)


_ISOLATING = tuple(name for name in LOADS if name != "2 s of waiting")
_SHARING = tuple(name for name, load in LOADS.items() if not load.is_isolated)
_SHARING_NO_WAIT = tuple(name for name in _SHARING if name in _ISOLATING)
_ECHO = ("no-op", "one at a time")

SIDES = {
    "toolpool": Side("toolpool_side", is_peer=False),
    "Celery, prefork": Side("celery_side", ("prefork",), loads=_ISOLATING),
    "Celery, threads": Side("celery_side", ("threads",), loads=_SHARING),
    "dramatiq": Side("dramatiq_side", loads=_SHARING_NO_WAIT),
    "taskiq": Side("taskiq_side", loads=_SHARING),
    "docket": Side("docket_side", loads=_SHARING),
    "Ray, task": Side("ray_side", ("task",), loads=_ISOLATING),
    "Ray, async actor": Side("ray_side", ("actor",), loads=_SHARING),
    "asyncio.gather": Side("limits_side", ("gather",), is_peer=False, loads=_SHARING),
    "Redis pipeline": Side("limits_side", ("pipeline",), is_peer=False, loads=_ECHO),
    "Redis round trips": Side("limits_side", ("trips",), is_peer=False, loads=("one at a time",)),
}


def set_up() -> None:
    """Make the peers' environment, if `requirements.txt` has changed since it was made."""
    wanted = (_HERE / "requirements.txt").read_text()
    made_of = _PEERS / ".made-of"
    if made_of.is_file() and made_of.read_text() == wanted:
        return
    print("Setting up .venv-peers ...", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(_PEERS)], check=True)
    install = [str(_PEERS_PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*install, "-r", str(_HERE / "requirements.txt")], check=True)
    made_of.write_text(wanted)


def measure(side: Side, names: Iterable[str], seconds: float) -> tuple[dict[str, Any], Any]:
    """One round of a side: the figures by load, and its versions."""
    python = str(_PEERS_PYTHON) if side.is_peer else sys.executable
    command = [python, "-m", f"benchmarks.peers.{side.module}", *side.arguments]
    with EmbeddedServer(listen="port") as server:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, "PEERS_URL": server.url, "RAY_DISABLE_IMPORT_WARNING": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if "PEERS_SHOW" in os.environ else subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        try:
            versions = _read(process)["versions"]
            found = {}
            first = "no-op" if "no-op" in side.loads else names[0]
            for name in (first, *names):  # the first one warms it up
                order = {
                    "load": name,
                    "seconds": seconds if name in found or name != first else 1,
                }
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
                found[name] = _read(process)
            return {name: found[name] for name in names}, versions
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise SystemExit(f"{process.args} ended early; set PEERS_SHOW=1 to see why")


def table(name: str, by_side: dict[str, list[dict[str, float]]]) -> list[str]:
    """Rows of a Markdown table: medians, spreads, and the ratio to toolpool's."""
    is_latency = LOADS[name].in_flight == 1
    is_wave = LOADS[name].is_one_wave
    key, unit = ("p50_ms", "p50") if is_latency else ("calls_per_second", "calls/s")
    if is_wave:
        key, unit = "seconds", f"seconds for {LOADS[name].in_flight:,} calls"
    medians = {side: statistics.median(r[key] for r in rounds) for side, rounds in by_side.items()}
    ours = medians.get("toolpool")
    rows = [f"| {name} | {unit} | spread | toolpool's share |", "| --- | --- | --- | --- |"]
    for side, median in sorted(medians.items(), key=lambda item: item[1]):
        values = [r[key] for r in by_side[side]]
        shown = f"{median:,.2f}" if median < 100 else f"{median:,.0f}"
        if is_latency:
            shown += f" ms, p99 {statistics.median(r['p99_ms'] for r in by_side[side]):.2f} ms"
        spread = f"{min(values):,.4g} to {max(values):,.4g}"
        rows.append(f"| {side} | {shown} | {spread} | {ours / median if ours else 0:.2f} × |")
    if is_wave:
        rows.append(f"| *ideal* | {WAIT_SECONDS:.2f} | | |")
    return rows


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="make bench-peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load, each round")
    parser.add_argument("--sides", default=";".join(SIDES), help="a list: 'toolpool;docket'")
    parser.add_argument("--loads", default=";".join(LOADS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path, help="a folder for SVG files")
    options = parser.parse_args()
    chosen, loads = options.sides.split(";"), options.loads.split(";")
    if unknown := (set(chosen) - SIDES.keys()) | (set(loads) - LOADS.keys()):
        parser.error(f"unknown: {unknown}; there are {list(SIDES)} and {list(LOADS)}")
    set_up()
    rounds: Rounds = {}
    versions: dict[str, str] = {}
    for number in range(options.rounds):
        for name, side in SIDES.items():
            names = [load for load in loads if load in side.loads]
            if name not in chosen or not names:
                continue
            found, said = measure(side, names, options.seconds)
            versions |= said
            for load, figures in found.items():
                rounds.setdefault(load, {}).setdefault(name, []).append(figures)
            shown = ", ".join(
                f"{load} {f['calls_per_second']:,.0f}/s p50 {f['p50_ms']:.2f} ms"
                for load, f in found.items()
            )
            print(f"round {number + 1}: {name}: {shown}", file=sys.stderr, flush=True)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    shown = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    print(f"{machine}, {options.rounds} rounds; {shown}")
    for load, by_side in rounds.items():
        print("\n" + "\n".join(table(load, by_side)))
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "rounds": rounds}, indent=1))
    if options.plots:
        plots = [str(_PEERS_PYTHON), "-m", "benchmarks.peers.plots", str(options.plots)]
        subprocess.run(plots, cwd=_ROOT, input=json.dumps(rounds), text=True, check=True)


if __name__ == "__main__":
    main()
