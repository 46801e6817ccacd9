"""`toolpool find`: where a call is, and why it is not finished."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode
from toolpool.cli.options import JsonOption, load_settings

if TYPE_CHECKING:
    from toolpool.call_search import Finder

TargetArgument = Annotated[
    str,
    typer.Argument(metavar="CALL|HANDLE|SESSION", help="A call's id, a handle, or a conversation."),
]


def find(target: TargetArgument, json: JsonOption = False) -> int:
    """Say where a call is and why it is not finished.

    Asks every running dispatcher, and reads what the server keeps of background calls and events.
    Exits 1 when nothing is known of it.
    """
    from toolpool.call_search import Finder

    finder = Finder(load_settings())
    found = finder.find(target)
    if json:
        screen.write_json({"calls": found, "more": finder.more, "silent": _silent(finder)})
    else:
        _show(found, finder)
    return ExitCode.OK if found else ExitCode.FAILED


def _silent(finder: "Finder") -> list[str]:
    return [f"{report.id} on {report.host}" for report in finder.silent]


def _show(found: list[dict[str, Any]], finder: "Finder") -> None:
    for row in found:
        session = f", session {row['session']}" if row["session"] else ""
        heading = screen.escaped(f"{row['call']} ({row['tool']}{session}): {row['state']}")
        screen.write(heading.replace("\n", "?"))
        screen.write(screen.escaped(f"  {row['why']}"))
        for line in _details(row):
            screen.write(screen.escaped(f"  {line}"))
    if finder.more:
        screen.write(f"and {finder.more} more")
    if not found:
        screen.print_error(
            f"nothing is known of it: none of {len(finder.fleet.dispatchers)} running dispatchers "
            "has it open, no handle of it is kept and no event of it is published "
            "(TOOLPOOL_EVENTS). An ended call is in the session record, if there is one"
        )
    for id_ in finder.fleet.foreign_dispatchers:
        screen.print_error(f"dispatcher {id_} signs with another key, and is not asked")
    for named in _silent(finder):
        screen.print_error(f"dispatcher {named} did not answer: its open calls are unknown")


def _details(row: dict[str, Any]) -> list[str]:
    lines = []
    if row.get("age") is not None:
        times = [f"accepted {row['age']:g} s ago"]
        if row.get("start_within") is not None:
            times.append(f"to be started within {row['start_within']:g} s")
        if row.get("deadline_in") is not None and row["state"] not in ("COMPLETED", "FAILED"):
            times.append(f"answered in {row['deadline_in']:g} s at the latest")
        lines.append(", ".join(times))
    if row.get("attempt", 1) > 1 or row.get("retry"):
        lines.append(f"attempt {row['attempt']}, retry {row['retry']}")
    if row["dispatcher"]:
        background = " in the background" if row["background"] else ""
        lines.append(f"dispatcher {row['dispatcher']} on {row['host']}{background}")
    if row.get("handle"):
        lines.append(f"handle {row['handle']}")
    return lines
