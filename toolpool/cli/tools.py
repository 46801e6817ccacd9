"""`toolpool tools`: the offered tools, from the live catalog or directly from their modules."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode, ExitNow
from toolpool.cli.options import JsonOption, ToolsOption, kinds_of, load_settings, tool_sources
from toolpool.cli.status import unserved_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolpool.contract.settings import Settings
    from toolpool.contract.spec import ToolSpec
    from toolpool.fleet_reader import Fleet

CATALOG_FILE_VERSION = 1

_FOR_PROVIDERS = ("strict", "defer_loading", "allowed_callers", "input_examples")

app = typer.Typer(
    help="List, show, export, check and remove tools. They come from the live catalog where "
    "TOOLPOOL_REDIS_URL is set, else from the modules of --tools.",
    no_args_is_help=True,
)


@app.command("list")
def list_tools(tools: ToolsOption = None, json: JsonOption = False) -> None:
    """List the tools on offer."""
    settings, unserved, withheld = load_settings(), {}, set()
    if settings.redis_url and not tools:
        fleet = _live(settings)
        specs, unserved, withheld = fleet.specs(), fleet.unserved(), fleet.withheld()
    else:
        specs = specs_of(tools)
    if json:
        told = {
            name: {"unserved_seconds": seconds, "withheld": name in withheld}
            for name, seconds in unserved.items()
        }
        screen.write_json([_plain(spec) | told.get(spec.name, {}) for spec in specs])
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("tool", "queue", "effects", "timeout", "description", box=box.SIMPLE)
    for spec in specs:
        effects = spec.effects.value if spec.effects is not None else "-"
        first_line = spec.description.partition("\n")[0]
        table.add_row(
            Text(spec.name, overflow="fold"),
            Text(f"{spec.queue}.{spec.run_in.value}", overflow="fold"),
            effects,
            f"{spec.timeout:g} s",
            Text(first_line),
        )
    screen.show(table)
    for name, seconds in unserved.items():
        line = f"{name}: {unserved_for(seconds, is_withheld=name in withheld)}"
        screen.show(Text(line, style="yellow"))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    tools: ToolsOption = None,
    json: JsonOption = False,
) -> None:
    """Show one tool: its description, schema and how it runs."""
    spec = _one(specs_of(tools), name)
    if json:
        screen.write_json(_plain(spec))
        return
    from rich.syntax import Syntax
    from rich.text import Text

    plain = _plain(spec)
    title = f" ({plain['title']})" if "title" in plain else ""
    screen.show(Text(f"{spec.name}{title}", style="bold"))
    if spec.description:
        screen.show(Text(spec.description))
    screen.show(Text("\n" + "\n".join(_behaviour(spec)) + f"\ndigest: {spec.digest}\n"))
    told = [f"{name}: {_compact(plain[name])}" for name in _FOR_PROVIDERS if name in plain]
    if told:
        screen.show(Text("\n".join(told) + "\n"))
    screen.show(Syntax(_pretty(spec.input_schema), "json", background_color="default"))
    if "output_schema" in plain:
        screen.show(Text("\nreturns:"))
        screen.show(Syntax(_pretty(plain["output_schema"]), "json", background_color="default"))


@app.command()
def export(
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write. Default: standard output.")
    ] = None,
    tools: ToolsOption = None,
    json: JsonOption = False,
) -> None:
    """Write the tools as a catalog file, for `Dispatcher.connect(catalog=FILE)`."""
    specs = specs_of(tools)
    text = _pretty({"version": CATALOG_FILE_VERSION, "tools": [_plain(spec) for spec in specs]})
    if out is None:
        screen.write(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ExitNow(
            f"cannot write {out} ({error.strerror}): name a file that this user can write",
            ExitCode.USAGE,
        ) from None
    if json:
        screen.write_json({"out": str(out), "tools": len(specs)})
    else:
        screen.note(f"{len(specs)} tools written to {out}")


@app.command()
def check(
    tools: ToolsOption = None,
    record: Annotated[
        Path | None,
        typer.Option("--from", help="A session record: also report on its rejected calls."),
    ] = None,
    run_in: Annotated[
        str | None,
        typer.Option(
            metavar="loop,thread,process",
            help="The --run-in of your workers; tools that such workers do not serve are reported.",
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Load tools modules and report every problem that can be found without running a tool.

    Exits 1 when something is broken; hints alone do not count.
    """
    from toolpool.cli.checking.declarations import check_sources
    from toolpool.cli.checking.record_report import check_record

    settings = load_settings()
    found = check_record(record) if record is not None else []
    kinds = kinds_of(run_in) if run_in is not None else None
    report = check_sources(tool_sources(tools, settings), kinds)
    report.problems += found
    if json:
        screen.write_json(report.as_json())
    else:
        _show_report(report)
    return ExitCode.FAILED if report.broken else ExitCode.OK


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The tool's name.")], json: JsonOption = False
) -> None:
    """Take a tool out of the live catalog, so that calls for it are answered as unknown.

    A worker that still offers the tool publishes it again when it starts, and not before.
    """
    from toolpool.fleet_reader import read_fleet, remove_tool

    settings = load_settings()
    if not remove_tool(settings, name):
        _one(read_fleet(settings).specs(), name)
        return
    if json:
        screen.write_json({"removed": name})
    else:
        screen.write(f"{name} is out of the catalog")


def specs_of(tools: list[str] | None) -> "list[ToolSpec]":
    """The tools of the live catalog, or of modules, by name."""
    settings = load_settings()
    if settings.redis_url and not tools:
        return _live(settings).specs()
    from toolpool.workers.tool_loading import Catalog

    loaded = Catalog.load(tool_sources(tools, settings)).tools
    return [loaded[name].spec for name in sorted(loaded)]


def _live(settings: "Settings") -> "Fleet":
    from toolpool.contract.errors import CatalogEmpty
    from toolpool.fleet_reader import read_fleet

    fleet = read_fleet(settings)
    if not fleet.entries:
        foreign = f" ({len(fleet.foreign_tools)} signed with another key)"
        raise CatalogEmpty(
            f"the catalog is empty{foreign if fleet.foreign_tools else ''}: start a worker with "
            "`toolpool worker`, or name modules with --tools"
        )
    return fleet


def _one(specs: "list[ToolSpec]", name: str) -> "ToolSpec":
    for spec in specs:
        if spec.name == name:
            return spec
    from toolpool.contract.schema.suggestions import closest

    near = closest(name, [spec.name for spec in specs])
    hint = f"did you mean {near}?" if near else "`toolpool tools list` names them all"
    raise ExitNow(f"there is no tool {name!r}; {hint}")


def _plain(spec: "ToolSpec") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(spec)
    return plain


def _behaviour(spec: "ToolSpec") -> "Iterator[str]":
    """How it runs, and what it waits for or needs first."""
    effects = f"{spec.effects.value}s" if spec.effects is not None else "undeclared effects"
    again = "may be run again" if spec.rerunnable else "is never run again on its own"
    kind = " in the background" if spec.background else ""
    yield (
        f"runs in: {spec.run_in.value}, queue {spec.queue}, timeout {spec.timeout:g} s{kind}, "
        f"{effects}, {again}"
    )
    if spec.approval is True:
        yield "approval: a person has to approve each call"
    if spec.limit is not None:
        rate, per = spec.limit
        yield f"rate: {rate} for each {per.value}" if per != "fleet" else f"rate: {rate}"
    if spec.concurrency is not None:
        scope = "the fleet" if spec.at_once is not None else "each dispatcher"
        yield f"concurrency: {spec.concurrency} at once in {scope}"
    if spec.secrets:
        yield f"secrets: {', '.join(spec.secrets)}"
    if spec.retries:
        used = "" if spec.rerunnable else ", not used: it is neither a read nor idempotent"
        yield f"retries: {spec.retries}{used}"


def _pretty(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=2)


def _compact(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _show_report(report: Any) -> None:
    from rich.text import Text

    styles = {"broken": "bold red", "warning": "yellow", "hint": "dim"}
    for problem in report.problems:
        where = f"{problem.where}: " if problem.where else ""
        line = Text(f"{problem.level.value}  ", style=styles[problem.level.value])
        screen.show(line.append(f"{where}{problem.message}", style="default"))
    broken, rest = len(report.broken), len(report.problems) - len(report.broken)
    tools = "1 tool" if report.tools == 1 else f"{report.tools} tools"
    screen.show(Text(f"{tools}, {broken} broken, {rest} more to look at"))
