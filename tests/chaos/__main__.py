"""`python -m tests.chaos [--row NAME]… [--short|--long] [--seed N]`: the report, row by row.

Each row plays in a process of its own: what one leaves behind does not touch the next, and one
that hangs is ended.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tests.chaos import report
from tests.chaos.book import Figures
from tests.chaos.rows import ROWS, load_rows
from tests.chaos.scene import Scene, Skipped

_ROW_SECONDS = {"short": 120.0, "long": 3600.0}
_CLOSING_SECONDS = 20.0
_LOG_TAIL = 15

log = logging.getLogger("toolpool.chaos")


def main() -> int:
    """Play the rows; 0 when all of them hold."""
    load_rows()
    options = _options()
    if options.figures:
        asyncio.run(_play(options))
        return 0
    names = options.row or list(ROWS)
    print(f"seed {options.seed}, {options.form} form, {len(names)} rows", flush=True)
    print(report.heading(), flush=True)
    rows = asyncio.run(_play_all(names, options))
    print(report.totals(rows))
    failed = [row.row for row in rows if not row.holds]
    if failed:
        print(
            f"again: python -m tests.chaos --{options.form} --seed {options.seed} "
            + " ".join(f"--row {name}" for name in failed)
        )
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only this one")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", dest="form", action="store_const", const="short")
    form.add_argument("--long", dest="form", action="store_const", const="long")
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))
    parser.add_argument("--faults", type=int, help="in place of the form's own number")
    parser.add_argument("--hooks", action="store_true", help="with a policy on every call")
    parser.add_argument("--jobs", type=int, default=1, help="rows that play at once")
    parser.add_argument("--logs", type=Path, help="keep what the processes of a row wrote here")
    parser.add_argument("--figures", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(form="short")
    return parser.parse_args()


async def _play_all(names: list[str], options: argparse.Namespace) -> list[Figures]:
    turns = asyncio.Semaphore(options.jobs)

    async def play(name: str) -> Figures:
        async with turns:
            figures = await _play_apart(name, options)
        print(report.line(figures), flush=True)
        return figures

    return list(await asyncio.gather(*(play(name) for name in names)))


async def _play_apart(name: str, options: argparse.Namespace) -> Figures:
    """One row in its own process group, which is ended with it."""
    command = [sys.executable, "-m", "tests.chaos", "--row", name, f"--{options.form}"]
    command += ["--seed", str(options.seed)]
    if options.faults:
        command += ["--faults", str(options.faults)]
    if options.logs:
        command += ["--logs", str(options.logs)]
    if options.hooks:
        command.append("--hooks")
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        found, said_file = Path(directory, "figures"), Path(directory, "log")
        with said_file.open("wb") as output:  # noqa: ASYNC230 - nothing else runs here
            process = await asyncio.create_subprocess_exec(
                *command,
                f"--figures={found}",
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        said = "ended with status {}"
        try:
            async with asyncio.timeout(_ROW_SECONDS[options.form]):
                await process.wait()
        except TimeoutError:
            said = "did not end in time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = await process.wait()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(said_file, options.logs / f"{name}.log")
        if found.exists():
            return Figures(**json.loads(found.read_text()))
        tail = said_file.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        return Figures(row=name, seed=options.seed, problems=[said.format(code), *tail])


async def _play(options: argparse.Namespace) -> None:
    """Play one row in this process and leave its figures where `--figures` says."""
    row = ROWS[options.row[0]]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    faults = options.faults or getattr(row, options.form)
    scene = Scene(
        row.name,
        faults=faults,
        long=options.form == "long",
        seed=options.seed,
        logs=options.logs,
        with_hooks=options.hooks,
    )
    async with scene:
        try:
            async with asyncio.timeout(_ROW_SECONDS[options.form] - _CLOSING_SECONDS):
                await row.play(scene)
        except Skipped as why:
            is_bound = os.environ.get("CI") == "true"  # there every row is played
            (scene.figures.problems if is_bound else scene.figures.notes).append(f"skipped: {why}")
        except Exception as error:
            log.exception("row_ended row=%s", row.name)  # a timeout's says where it was
            scene.figures.problems.append(f"ended early: {type(error).__name__}: {error}")
    options.figures.write_text(json.dumps(asdict(scene.figures)))


if __name__ == "__main__":
    sys.exit(main())
