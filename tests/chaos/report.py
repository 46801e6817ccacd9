"""The report: a line a row, then the totals."""

from collections.abc import Sequence

from tests.chaos.book import CONTROL, Figures

_COLUMNS = (
    ("calls", "calls"),
    ("faults", "faults"),
    ("missing", "missing"),
    ("duplicate", "duplicate"),
    ("late", "late"),
    ("double_starts", "double starts"),
    ("false_no", "false no"),
    ("lost_running", "lost running"),
)


def heading() -> str:
    """The table's head."""
    names = " ".join(f"{name:>{max(6, len(name))}}" for _, name in _COLUMNS)
    return f"{'row':<16} {names} {'recovery':>9} {'ok':>6} {'time':>6}"


def line(figures: Figures) -> str:
    """One row of it, and below it what did not hold."""
    numbers = _numbers(figures)
    took = f"{figures.recovery:>7.1f} s {figures.ok:>6} {figures.seconds:>4.0f} s"
    shown = [f"{figures.row:<16} {numbers} {took} {'passed' if figures.holds else 'FAILED'}"]
    if figures.counts:
        shown.append("  = " + ", ".join(f"{what} {n}" for what, n in figures.counts.items()))
    shown += [f"  ! {problem}" for problem in figures.problems]
    shown += [f"  . {note}" for note in figures.notes]
    if figures.problems:
        shown.append(f"  . answers {figures.codes}, machine lag {figures.lag:.2f} s")
    return "\n".join(shown)


def totals(rows: Sequence[Figures]) -> str:
    """The sums, without the control row, which is meant to lose calls."""
    rows = [row for row in rows if row.row != CONTROL]
    total = Figures(row="total", seed=0)
    for name, _ in _COLUMNS:
        setattr(total, name, sum(getattr(row, name) for row in rows))
    total.recovery = max((row.recovery for row in rows), default=0.0)
    total.ok = sum(row.ok for row in rows)
    total.seconds = sum(row.seconds for row in rows)
    latest = max((row.latest for row in rows), default=0.0)
    lag = max((row.lag for row in rows), default=0.0)
    table = line(total).removesuffix(" passed")
    side = "after" if latest > 0 else "before"
    said = [
        table,
        f"latest answer {abs(latest):.3f} s {side} its deadline; machine lag {lag:.3f} s",
    ]
    overdue = sorted(late for row in rows for late in row.overdue)
    if overdue:
        said.append(
            f"{len(overdue)} overdue calls answered {_quantile(overdue, 0.5):+.3f} s from their "
            f"deadline (median), {_quantile(overdue, 0.999):+.3f} s (p99.9)"
        )
    again = sorted(
        seconds for row in rows if row.row == "worker-kill" for seconds in row.second_starts
    )
    if again:
        said.append(
            f"{len(again)} reads of killed workers started again: result "
            f"{_quantile(again, 0.5):.1f} s after the kill (median), {again[-1]:.1f} s (longest)"
        )
    return "\n".join(said)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _numbers(figures: Figures) -> str:
    return " ".join(f"{getattr(figures, name):>{max(6, len(title))}}" for name, title in _COLUMNS)
