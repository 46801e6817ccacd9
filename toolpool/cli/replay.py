"""`toolpool replay`: what recorded calls would result in with today's tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode
from toolpool.cli.options import (
    JsonOption,
    ToolsOption,
    load_settings,
    require_own_workers,
    tool_sources,
)

if TYPE_CHECKING:
    from toolpool.cli.replaying.recorded_calls import Recorded
    from toolpool.cli.replaying.replay_results import Report
    from toolpool.contract.settings import Settings

_AT_ONCE = 32


def replay(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD…", help="Session records: files or folders.")
    ],
    tools: ToolsOption = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also run the reads and idempotent calls again.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --run: run every call again, writes as well.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Judge recorded calls by today's schemas, and show what differs.

    The tools are those of the live catalog if TOOLPOOL_REDIS_URL is set, else of --tools. Exits
    0 where everything is the same, 1 where something differs.
    """
    import asyncio

    from toolpool.cli.replaying import recorded_calls, replay_results
    from toolpool.cli.tools import specs_of

    if everything and not run:
        raise typer.BadParameter("it needs --run: give both", param_hint="--all")
    settings = load_settings()
    if run and tools:
        require_own_workers(settings)
    found = recorded_calls.read(records)
    report = replay_results.Report(unread=found.unread)
    judge = replay_results.Judge(specs_of(tools), settings)
    accepted = judge.judge(found.calls, report)
    if run:
        chosen = [call for call in accepted if judge.may_run(call, everything=everything)]
        asyncio.run(_run(chosen, report, settings, tool_sources(tools, settings)))
    if json:
        screen.write_json(report.as_json())
    else:
        _show(report, ran=run)
    return ExitCode.FAILED if report.differences else ExitCode.OK


async def _run(
    calls: "list[Recorded]", report: "Report", settings: "Settings", sources: list[str]
) -> None:
    """Run each call without a session, so that it does not attach to the recorded call."""
    import asyncio

    from toolpool.cli import connect
    from toolpool.cli.replaying.replay_results import compared_run

    left = iter(calls)
    # Replayed calls are not part of the record, nor of the fleet's events.
    settings = settings.model_copy(update={"record": None, "events": False})
    async with connect.connected(settings, sources) as dispatcher:

        async def work() -> None:
            for call in left:
                asked = {"id": call.row, "name": call.tool, "input": call.input}
                turn = await dispatcher.dispatch([asked], format="bare")
                report.run += 1
                if (difference := compared_run(call, turn[0])) is not None:
                    report.differences.append(difference)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


def _show(report: "Report", *, ran: bool) -> None:
    from rich.text import Text

    for each in report.differences:
        heading = screen.escaped(f"{each.tool} {each.row}: {each.what}").replace("\n", "?")
        screen.show(Text(heading, style="yellow"))
        for name, text in (("before", each.before), ("now", each.now)):
            if text:
                screen.show(Text(f"  {name}: {screen.escaped(text)}"))
    told = [f"{report.calls} calls", f"{report.judged} judged"]
    told += [f"{report.run} run again"] if ran else []
    told += [f"{len(report.differences)} differ"]
    told += [f"{report.unread} lines are not valid rows"] if report.unread else []
    screen.show(Text(", ".join(told)))
