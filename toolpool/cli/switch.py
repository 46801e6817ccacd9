"""`toolpool switch`: lists the tools denied to the whole fleet, and changes them."""

import json as json_
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode, ExitNow
from toolpool.cli.options import JsonOption, load_settings

if TYPE_CHECKING:
    from toolpool.contract.envelope import Switch
    from toolpool.contract.spec import ToolSpec
    from toolpool.fleet_reader import Fleet

app = typer.Typer(
    help="List the kill switches, deny a tool to the whole fleet, and allow it again.",
    no_args_is_help=True,
)

ToolArgument = Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")]
ArgumentOption = Annotated[
    str | None, typer.Option("--argument", help="Only calls where this argument has --value.")
]
ValueOption = Annotated[
    str | None, typer.Option("--value", metavar="JSON", help="That value; other text is a string.")
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="Only calls of this tenant; else of all.")
]

_FOREIGN = (
    "the workers sign with another key, so they follow no switch of this one, and theirs are not "
    "shown: set their TOOLPOOL_SIGNING_KEY"
)


@app.command("list")
def list_(json: JsonOption = False) -> int:
    """List the tools that are denied, and why."""
    from toolpool.fleet_reader import read_fleet
    from toolpool.fleet_state import switches

    fleet = read_fleet(load_settings())
    if _is_foreign(fleet):
        screen.print_error(_FOREIGN)
    if json:
        screen.write_json(switches(fleet))
    else:
        show(fleet.switches)
    return ExitCode.OK


@app.command("deny")
def deny(
    tool: ToolArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; the model reads it.")],
    argument: ArgumentOption = None,
    value: ValueOption = None,
    tenant: TenantOption = None,
    json: JsonOption = False,
) -> int:
    """Answer calls of a tool `aborted.denied`: no worker starts one any more.

    Calls that already run go on; `toolpool cancel` ends them.
    """
    return _turn(tool, argument, value, reason, on=True, tenant=tenant, json=json)


@app.command("allow")
def allow(
    tool: ToolArgument,
    argument: ArgumentOption = None,
    value: ValueOption = None,
    tenant: TenantOption = None,
    json: JsonOption = False,
) -> int:
    """Take a `deny` with the same tool, argument, value and tenant back."""
    return _turn(tool, argument, value, "", on=False, tenant=tenant, json=json)


def _turn(
    tool: str,
    argument: str | None,
    value: str | None,
    reason: str,
    *,
    on: bool,
    tenant: str | None,
    json: bool,
) -> int:
    from toolpool.fleet_reader import read_fleet, set_switch
    from toolpool.fleet_state import switches

    settings = load_settings()
    if (argument is None) != (value is None):
        raise ExitNow("--argument and --value go together", ExitCode.USAGE)
    fleet = read_fleet(settings)  # can fail only before anything has changed
    if _is_foreign(fleet):
        raise ExitNow(_FOREIGN, ExitCode.USAGE)
    parsed = _parsed(value)
    if tool not in fleet.entries:
        if on:
            screen.print_error(
                f"no worker offers a tool called {tool!r} now: the switch is set for later"
            )
    elif argument is not None:
        parsed, why = _fitting(fleet.entries[tool].spec, argument, parsed, value)
        if why and on:
            raise ExitNow(why, ExitCode.USAGE)
    try:
        was_on = set_switch(settings, tool, argument, parsed, reason, on=on, tenant=tenant)
    except ValueError as error:
        raise ExitNow(str(error), ExitCode.USAGE) from None
    fleet = read_fleet(settings)
    if not on and not was_on:
        raise ExitNow(f"{tool} was not denied like that: see `toolpool switch list`")
    asked = (tool, argument, parsed, tenant)
    if on and asked not in [(s.tool, s.argument, s.value, s.tenant) for s in fleet.switches]:
        raise ExitNow(
            f"{tool} is not denied: the switch was deleted from Redis at once. Find out who writes "
            "there, and deny it again"
        )
    if json:
        screen.write_json(switches(fleet))
    else:
        show(fleet.switches)
    return ExitCode.OK


def _parsed(value: str | None) -> Any:
    if value is None:
        return None
    try:
        return json_.loads(value)
    except ValueError:
        return value


def _fitting(
    spec: "ToolSpec", argument: str, parsed: Any, text: str | None
) -> tuple[Any, str | None]:
    """The value in the form that the schema accepts; or why no valid call has it."""
    from toolpool.contract.kill_switches import why_never_matched
    from toolpool.contract.schema.validator import SchemaCache

    validator = SchemaCache().validator(spec)
    why = why_never_matched(spec, validator, argument, parsed)
    if why and not why_never_matched(spec, validator, argument, text):
        return text, None
    return parsed, why


def _is_foreign(fleet: "Fleet") -> bool:
    return bool(fleet.foreign_workers) and not fleet.workers


def show(switches: "list[Switch]") -> None:
    """Write a line for each tool that is denied."""
    from rich.text import Text

    if not switches:
        screen.show(Text("no tool is denied"))
    for switch in switches:
        where = f" where {switch.argument} = {json_.dumps(switch.value)}" if switch.argument else ""
        where += f" for tenant {switch.tenant}" if switch.tenant is not None else ""
        since = datetime.fromtimestamp(switch.set_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        told = f"{switch.tool}{where} is denied since {since}: {switch.reason}"
        screen.show(Text(screen.escaped(told), style="yellow"))
