"""Assembles the commands, and turns their exceptions into one line and an exit code."""

import os
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from toolpool.cli import (
    approvals,
    call,
    cancel,
    doctor,
    find,
    keygen,
    replay,
    screen,
    status,
    switch,
    tail,
    tools,
    worker,
)
from toolpool.cli.exit_codes import ExitCode, ExitNow, ReaderGone
from toolpool.cli.running import command

_DEBUG_VARIABLE = "TOOLPOOL_TRACEBACK"

app = typer.Typer(
    name="toolpool",
    help="Runs the tool calls of LLM agents and answers every one with a classified result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(command.run)
app.command("call")(call.call)
app.command("worker")(worker.worker)
app.add_typer(tools.app, name="tools")
app.add_typer(approvals.app, name="approvals")
app.add_typer(switch.app, name="switch")
app.command("find")(find.find)
app.command("cancel")(cancel.cancel)
app.command("tail")(tail.tail)
app.command("replay")(replay.replay)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("keygen")(keygen.keygen)


def _show_version(wanted: bool) -> None:
    if wanted:
        from toolpool.contract.version import VERSION

        screen.write(f"toolpool {VERSION}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Any exception becomes one line on stderr."""
    try:
        code = app(args=argv, prog_name="toolpool", standalone_mode=False)
        screen.flush()
    except ReaderGone:
        return ExitCode.READER_GONE
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a user gets a line, not a traceback
        return _explain(error)
    return code if isinstance(code, int) else ExitCode.OK


def _explain(error: Exception) -> int:
    if os.environ.get(_DEBUG_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, ExitNow):
        screen.print_error(str(error))
        return error.code
    format_usage = getattr(error, "format_message", None)
    if format_usage is not None:  # typer's own, whose class depends on typer's version
        return _explain_usage(error, format_usage())
    if isinstance(error, OSError):
        screen.print_error(str(error))
        return ExitCode.FAILED
    from toolpool.contract.errors import BrokerUnreachable, Misconfigured, ServerError

    if isinstance(error, ServerError) or type(error).__module__ == "redis.exceptions":
        screen.print_error(
            f"the Redis server did not answer: {error}; `toolpool doctor` looks at it"
        )
        return ExitCode.UNREACHABLE

    if isinstance(error, Misconfigured):
        screen.print_error(getattr(error, "explained", str(error)))
        unreachable = isinstance(error, BrokerUnreachable)
        return ExitCode.UNREACHABLE if unreachable else ExitCode.USAGE
    screen.print_error(
        f"a fault of toolpool's own: {type(error).__name__}: {error}; please report it, with the "
        f"output of the same command under {_DEBUG_VARIABLE}=1"
    )
    return ExitCode.FAILED


def _explain_usage(error: Exception, message: str) -> int:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "toolpool")
    # empty for a group without a command, which printed its help
    if text := message.strip().rstrip("."):
        screen.print_error(f"{text[0].lower()}{text[1:]}; see `{path} --help`")
    return ExitCode.USAGE
