"""Bars of the medians, one SVG file for each load.

`python -m benchmarks.peers.plots FOLDER < rounds.json`
"""

import json
import re
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
# The same figures make the same file.
matplotlib.rcParams |= {"svg.hashsalt": "toolpool", "svg.fonttype": "none"}
from matplotlib import pyplot  # noqa: E402

_OURS, _LIMIT, _PEER = "#1f77b4", "#bbbbbb", "#ff9f4a"
_LIMITS = ("asyncio.gather", "Redis pipeline")


def main() -> None:
    """Draw what stands on standard input."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for load, by_side in json.load(sys.stdin).items():
        is_latency = load == "one at a time"
        key = "p50_ms" if is_latency else "seconds" if "waiting" in load else "calls_per_second"
        medians = {s: statistics.median(r[key] for r in rounds) for s, rounds in by_side.items()}
        sides = sorted(medians, key=lambda side: medians[side])
        figure, axes = pyplot.subplots(figsize=(7, 0.4 * len(sides) + 1))
        colours = [_OURS if s == "toolpool" else _LIMIT if s in _LIMITS else _PEER for s in sides]
        bars = axes.barh(sides, [medians[side] for side in sides], color=colours)
        axes.bar_label(bars, fmt="{:,.4g}", padding=3)
        axes.set_xscale("log")
        axes.set_title(f"{load}: {'p50 in ms' if is_latency else key.replace('_', ' ')}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.15)
        figure.tight_layout()
        name = re.sub(r"\W+", "-", load.lower()).strip("-")
        figure.savefig(folder / f"peers-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
