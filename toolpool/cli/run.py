"""`toolpool run`: the main job, from a file or stream of model responses to their tool results."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exits import ExitCode, ReaderGone
from toolpool.cli.options import ToolsOption, load_settings, tool_sources

if TYPE_CHECKING:
    from contract.settings import Settings
    from toolpool.cli.answer import Answer
    from toolpool.cli.lines import LineSource
    from toolpool.cli.sink import Sink
    from toolpool.cli.stream import Stream

_BROKEN_LINES_TOLD = 5
_LOCAL_QUEUE_WAIT = 300.0
"""Seconds. Workers of our own are known to live, and nobody waits for a single answer of a run, so
calls rather wait for a slot than expire."""


def run(
    turns: Annotated[
        str,
        typer.Argument(
            metavar="TURNS.jsonl|-",
            help="One model response or bare call {id, name, input} a line; `-` is standard input.",
        ),
    ] = "-",
    tools: ToolsOption = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where answers go. Default: standard output."),
    ] = None,
    format: Annotated[
        str, typer.Option(help="The provider's format: auto, anthropic, openai_chat or bare.")
    ] = "auto",
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that file tools work on.")
    ] = None,
    workspace_copy: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Let file tools work on a copy, removed at the end."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            help="Name of the one conversation that all turns belong to. A second run of the same "
            "turns in it takes results that are still kept and runs nothing twice."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Turns in flight.")] = 32,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds a call may run. Default: its tool's.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if any call failed.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write the closing table as JSON, to standard error.")
    ] = False,
) -> int:
    """Run the tool calls in model responses and write the messages that answer them.

    Each output line is a JSON array of the provider's messages for the input line in its place.
    Without TOOLPOOL_REDIS_URL a server and workers are started for the run. Exits 0 when every
    call got its result, whatever the result says.
    """
    from toolpool.cli.lines import LineSource
    from toolpool.cli.sink import Sink
    from toolpool.cli.workspace import workspace as prepared

    if workspace is not None and workspace_copy is not None:
        raise typer.BadParameter("give one of --workspace and --workspace-copy", param_hint=None)
    _require_format(format)
    source = LineSource(turns)
    if out is not None and source.is_same_file(out):
        raise typer.BadParameter("it is the input file", param_hint="--out")
    with prepared(workspace, workspace_copy) as directory, Sink(out) as sink:
        settings = load_settings(workspace=directory)
        if settings.redis_url and (tools or directory):
            raise typer.BadParameter(
                "TOOLPOOL_REDIS_URL is set, so the tools and their workspace are those of the "
                "workers there; unset it to run with workers of this command's own",
                param_hint="--tools, --workspace",
            )
        job = Job(settings, source, sink, format=format, session=session, timeout=timeout)
        if source.is_terminal:
            screen.note("reading model responses from the terminal, one a line; Ctrl-D ends")
        try:
            asyncio.run(job.run(tool_sources(tools, settings), concurrency))
        except ReaderGone:
            raise  # quietly
        except BaseException:
            job.report(as_json=json)
            raise
        job.report(as_json=json)
    if job.interrupted_by is not None:
        return 128 + job.interrupted_by
    return ExitCode.FAILED if strict and job.summary.failed else ExitCode.OK


def _require_format(name: str) -> None:
    from dispatcher.formats import FORMATS

    if name != "auto" and name not in FORMATS:
        raise typer.BadParameter(
            f"{name!r} is not one of auto, {', '.join(FORMATS)}", param_hint="--format"
        )


class Job:
    """One run: from its source through a dispatcher to its sink."""

    def __init__(
        self,
        settings: "Settings",
        source: "LineSource",
        sink: "Sink",
        *,
        format: str,
        session: str | None,
        timeout: float | None,
    ) -> None:
        from toolpool.cli.progress import RunProgress
        from toolpool.cli.summary import Summary

        self.summary = Summary()
        self.interrupted_by: int | None = None
        self._settings = settings
        self._source = source
        self._sink = sink
        self._asked: dict[str, Any] = {
            "format": None if format == "auto" else format,
            "session": session,
            "timeout": timeout,
        }
        self._progress = RunProgress(source.size)
        self._began = False
        self._given_up: list[int] = []

    async def run(self, tools: list[str], concurrency: int) -> None:
        """Answer every line, or those that are done when a signal comes."""
        from toolpool.cli.answer import answer_line
        from toolpool.cli.stream import Stream

        with self._progress:
            fleet = connected(self._settings, tools)
            async with fleet as dispatcher:
                self._progress.note(getattr(fleet, "description", ""))
                self._sink.begin()
                self.summary.begin()
                self._progress.begin()
                self._began = True
                stream = Stream(
                    lambda line: answer_line(dispatcher, line, **self._asked),
                    self._deliver,
                    concurrency=concurrency,
                )
                with self._stopped_by_signals(stream):
                    await stream.run(self._source.lines())
                self._given_up = stream.given_up

    async def _deliver(self, answers: "list[Answer]") -> None:
        await self._sink.write(b"".join(answer.text for answer in answers))
        for answer in answers:
            self.summary.add(answer.results, broken=answer.broken is not None)
            if answer.broken is not None and self.summary.broken_lines <= _BROKEN_LINES_TOLD:
                self._progress.complain(
                    f"line {answer.line.number} is no model response ({answer.broken})"
                )
        self._progress.advance(answers[-1].line.read, self.summary)

    @contextmanager
    def _stopped_by_signals(self, stream: "Stream") -> Iterator[None]:
        """The first Ctrl-C or TERM stops the stream, a second one the program."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)

        def stop(received: int) -> None:
            self.interrupted_by = received
            for each in signals:
                loop.remove_signal_handler(each)
            stream.stop()

        for each in signals:
            loop.add_signal_handler(each, stop, each)
        try:
            yield
        finally:
            for each in signals:
                loop.remove_signal_handler(each)

    def report(self, *, as_json: bool) -> None:
        """The closing table on stderr; nothing when the run never began."""
        if not self._began:
            return
        if self._given_up:
            numbers = ", ".join(map(str, self._given_up))
            screen.complain(f"the calls of line {numbers} were cancelled and have no answer")
        console = screen.stderr_console()
        if as_json:
            told = self.summary.as_json() | {
                "interrupted": self.interrupted_by is not None,
                "cancelled_lines": self._given_up,
            }
            console.out(dumps(told), highlight=False)
        else:
            console.print(self.summary.table() if self.summary.calls else self.summary.headline())


def connected(settings: "Settings", tools: list[str]) -> Any:
    """A dispatcher for the Redis URL, or with a server and workers of its own without one."""
    from toolpool import Dispatcher

    if settings.redis_url:
        return Dispatcher.connect(settings=settings)
    if "queue_wait" not in settings.model_fields_set:
        settings = settings.model_copy(update={"queue_wait": _LOCAL_QUEUE_WAIT})
    return Dispatcher.local(tools, settings=settings)
