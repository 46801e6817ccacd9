"""`toolpool call`: one call from the command line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode, ExitNow
from toolpool.cli.options import (
    JsonOption,
    ToolsOption,
    configure_logging,
    load_settings,
    require_own_workers,
    require_session,
    tool_sources,
)

if TYPE_CHECKING:
    from toolpool.contract.result import ToolResult
    from toolpool.contract.settings import Settings
    from toolpool.dispatcher.policy.verdict_types import Preview


def call(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        str,
        typer.Argument(
            metavar="JSON",
            help="Its arguments as an object; `-` reads standard input, `@FILE` a file.",
        ),
    ] = "{}",
    tools: ToolsOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what would happen to the call, and who decides."),
    ] = False,
    context: Annotated[
        str | None, typer.Option(metavar="JSON", help="The host's context, for tools and policy.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="The conversation it belongs to.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds it may run. Default: the tool's.")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that file tools work on.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Run one tool call and print what the model would read.

    Exits 0 when it succeeded, 1 failed, 3 rejected before it ran, 4 timed out, 5 when the broker
    cannot be reached.
    """
    import asyncio

    from toolpool.cli import connect
    from toolpool.dispatcher.policy.verdict_types import Preview

    bare = {"id": "call-1", "name": name, "input": _text(arguments)}
    require_session(session)
    settings = load_settings(workspace=workspace)
    if tools or workspace:
        require_own_workers(settings)
    sources = tool_sources(tools, settings)

    configure_logging(settings, quiet="log_level" not in settings.model_fields_set)

    given = _context(context)

    async def ask() -> "ToolResult | Preview":
        async with connect.connected(settings, sources) as dispatcher:
            if dry_run:
                previews = await dispatcher.preview(bare, session=session, context=given)
                preview: Preview = previews[0]
                return preview.rejection or preview
            turn = await dispatcher.dispatch(bare, session=session, timeout=timeout, context=given)
            result: ToolResult = turn[0]
            return result

    try:
        result = asyncio.run(ask())
    except ValueError as error:  # from the user's context
        raise ExitNow(str(error), ExitCode.USAGE) from None
    if isinstance(result, Preview):
        _preview(name, result, _hindrances(settings, name), json=json)
        return ExitCode.REJECTED if result.decision == "deny" else ExitCode.OK
    _show(result, json=json)
    return exit_code(result)


def exit_code(result: "ToolResult") -> ExitCode:
    """The code that tells a script how a call ended."""
    from toolpool.contract.outcome import Code, ErrorType

    if result.ok:
        return ExitCode.OK
    if result.error_type is ErrorType.VALIDATION:
        return ExitCode.REJECTED
    if result.code in (Code.TIMEOUT, Code.EXPIRED):
        return ExitCode.TIMED_OUT
    if result.code is Code.QUEUE_UNREACHABLE:
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED


def _text(arguments: str) -> str:
    """The arguments' text, which the dispatcher parses like a model's."""
    try:
        if arguments == "-":
            return sys.stdin.buffer.read().decode("utf-8-sig")
        if arguments.startswith("@"):
            return Path(arguments[1:]).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        name = "standard input" if arguments == "-" else arguments[1:]
        raise ExitNow(f"cannot read the arguments from {name} ({reason})", ExitCode.USAGE) from None
    return arguments


def _context(text: str | None) -> "dict[str, Any] | None":
    if text is None:
        return None
    from toolpool.contract import encoding

    try:
        value = encoding.decode(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ExitNow("--context must be one JSON object", ExitCode.USAGE)
    return value


def _hindrances(settings: "Settings", name: str) -> list[str]:
    """What would delay the call at the fleet's dispatchers. This command's own workers are free."""
    if not settings.redis_url:
        return []
    from toolpool import fleet_state
    from toolpool.fleet_reader import read_fleet

    return fleet_state.hindrances(settings, read_fleet(settings), name)


def _preview(name: str, preview: "Preview", warnings: list[str], *, json: bool) -> None:
    if json:
        told = {"decision": preview.decision, "by": preview.by, "reason": preview.reason}
        changed = {"arguments": preview.arguments} if preview.by else {}
        held = {"warnings": warnings}
        named = {key: value for key, value in (told | changed | held).items() if value}
        screen.write_json({"accepted": preview.decision != "deny", **named})
        return
    why = f", by {preview.by}" if preview.by else ""
    because = f": {preview.reason}" if preview.reason else ""
    if preview.decision == "deny":
        screen.write(f"denied{why}{because}")
    elif preview.decision == "ask":
        screen.write(f"accepted: the call would wait for a person{why}{because}")
    else:
        screen.write(f"accepted: the call would be queued for {name}{why}")
    for warning in warnings if preview.decision != "deny" else ():
        screen.write(f"but {warning}")


def _show(result: "ToolResult", *, json: bool) -> None:
    if json:
        screen.write_json({"id": result.call_id, "name": result.name, **result.payload()})
        return
    from toolpool.dispatcher.formats.result_text import as_text

    screen.write(as_text(result))
    if not result.ok and result.code is not None:
        screen.print_error(f"{result.code.value}, executed: {result.executed.value}")
