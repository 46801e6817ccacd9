"""`toolpool run`: the main job, from a file or stream of model responses to their tool results."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode
from toolpool.cli.options import (
    ToolsOption,
    configure_logging,
    load_settings,
    require_own_workers,
    require_session,
    tool_sources,
)
from toolpool.contract.errors import Misconfigured

Turns = Annotated[
    str,
    typer.Argument(
        metavar="TURNS.jsonl|-",
        help="One model response or bare call {id, name, input} a line; `-` is standard input.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Where answers go. Default: standard output."),
]
Format = Annotated[
    str,
    typer.Option(
        help="The provider's format: auto, anthropic, openai_chat (or openai), openai_responses, "
        "openai_realtime, openai_agents, anthropic_agents, gemini, gemini_interactions, "
        "gemini_live, bedrock, cohere, ollama, langchain, pydantic_ai, mcp or bare."
    ),
]
Workspace = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder that file tools work on.")
]
WorkspaceCopy = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Let file tools work on a copy, removed at the end."),
]
Session = Annotated[
    str | None,
    typer.Option(
        help="Name of the one conversation that all turns belong to. A second run of the same "
        "turns in it takes results that are still kept and runs nothing twice."
    ),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Turns in flight.")]
Timeout = Annotated[
    float | None, typer.Option(min=0.001, help="Seconds a call may run. Default: its tool's.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if any call failed, or a line was no response.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Write the closing table as JSON, to standard error.")
]


def run(
    turns: Turns = "-",
    tools: ToolsOption = None,
    out: Out = None,
    format: Format = "auto",
    workspace: Workspace = None,
    workspace_copy: WorkspaceCopy = None,
    session: Session = None,
    concurrency: Concurrency = 32,
    timeout: Timeout = None,
    strict: Strict = False,
    json: Json = False,
) -> int:
    """Run the tool calls in model responses and write the messages that answer them.

    Each output line is a JSON array of the provider's messages for the input line in its place.
    Without TOOLPOOL_REDIS_URL a server and workers are started for the run. Exits 0 when every
    call got its result, whatever the result says.
    """
    from toolpool.cli.running.command import workspace as prepared
    from toolpool.cli.running.job import Job
    from toolpool.cli.running.lines import LineSource
    from toolpool.cli.running.sink import Sink
    from toolpool.contract import event_loop

    if workspace is not None and workspace_copy is not None:
        raise typer.BadParameter("give one of --workspace and --workspace-copy", param_hint=None)
    _require_format(format)
    require_session(session)
    source = LineSource(turns)
    if out is not None and source.is_same_file(out):
        raise typer.BadParameter("it is the input file", param_hint="--out")
    with prepared(workspace, workspace_copy) as directory, Sink(out) as sink:
        settings = load_settings(workspace=directory)
        if tools or directory:
            require_own_workers(settings)
        configure_logging(settings, quiet="log_level" not in settings.model_fields_set)
        job = Job(settings, source, sink, format=format, session=session, timeout=timeout)
        if source.is_terminal:
            screen.note("reading model responses from the terminal, one a line; Ctrl-D ends")
        try:
            event_loop.run(job.run(tool_sources(tools, settings), concurrency))
        finally:
            job.report(as_json=json)
    if job.interrupted_by is not None:
        return 128 + job.interrupted_by
    failed = job.summary.failed or job.summary.broken_lines
    return ExitCode.FAILED if strict and failed else ExitCode.OK


def _require_format(name: str) -> None:
    from toolpool.dispatcher.formats import named

    try:
        if name != "auto":
            named(name)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or auto", param_hint="--format") from None


@contextmanager
def workspace(directory: Path | None, copy_of: Path | None) -> Iterator[Path | None]:
    """`directory` itself, or a copy of `copy_of` that is removed at the end, or None for neither.

    Raises `Misconfigured` if there is no such folder or it cannot be copied.
    """
    if copy_of is None:
        yield _existing(directory) if directory is not None else None
        return
    with tempfile.TemporaryDirectory(
        prefix="toolpool-workspace-", ignore_cleanup_errors=True
    ) as parent:
        copy = Path(parent, "workspace")
        try:
            shutil.copytree(_existing(copy_of), copy, symlinks=True)
        except OSError as error:
            raise Misconfigured(
                f"cannot copy the workspace {copy_of} ({error.strerror or 'some of its files'}): "
                "make its files readable, or work on it directly with --workspace"
            ) from None
        yield copy


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise Misconfigured(f"there is no folder {directory} to work on: make it, or name another")
    return directory.resolve()
