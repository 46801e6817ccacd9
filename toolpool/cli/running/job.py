"""One run of the main job: from its source through a dispatcher to its sink."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from typing import Any

from toolpool.cli import connect, screen
from toolpool.cli.exit_codes import ReaderGone
from toolpool.cli.running.answer import AnsweredLine, answer_line
from toolpool.cli.running.lines import LineSource
from toolpool.cli.running.progress import RunProgress
from toolpool.cli.running.sink import Sink
from toolpool.cli.running.stream import Stream
from toolpool.cli.running.summary import Summary
from toolpool.contract.settings import Settings

_BROKEN_LINES_TOLD = 5


class Job:
    """One run: from its source through a dispatcher to its sink."""

    def __init__(
        self,
        settings: Settings,
        source: LineSource,
        sink: Sink,
        *,
        format: str,
        session: str | None,
        timeout: float | None,
    ) -> None:
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
        self._began = self._reader_gone = False
        self._given_up: list[int] = []

    async def run(self, tools: list[str], concurrency: int) -> None:
        """Answer every line. After a signal, only the lines that are already done."""
        with self._progress:
            fleet = connect.connected(self._settings, tools)
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

    async def _deliver(self, answers: list[AnsweredLine]) -> None:
        try:
            await self._sink.write(b"".join(answer.text for answer in answers))
        except ReaderGone:
            self._reader_gone = True
            raise
        for answer in answers:
            self.summary.add(answer.results, broken=answer.broken is not None)
            if answer.broken is not None and self.summary.broken_lines <= _BROKEN_LINES_TOLD:
                self._progress.print_error(
                    f"line {answer.line.number} is not a model response ({answer.broken})"
                )
        self._progress.advance(answers[-1].line.read, self.summary)

    @contextmanager
    def _stopped_by_signals(self, stream: Stream) -> Iterator[None]:
        """Let the first Ctrl-C or TERM stop the stream, a second one the program.

        A Ctrl-C that was ignored from the start stays ignored, because it is meant for the
        foreground job.
        """
        loop = asyncio.get_running_loop()
        signals = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signals.append(signal.SIGINT)

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
        """Write the closing table to stderr, unless the run never began or its reader has ended."""
        if not self._began or self._reader_gone:
            return
        if self._given_up:
            numbers = ", ".join(map(str, self._given_up))
            screen.print_error(f"the calls of line {numbers} were cancelled and have no answer")
        console = screen.stderr_console()
        if as_json:
            told = self.summary.as_json() | {
                "interrupted": self.interrupted_by is not None,
                "cancelled_lines": self._given_up,
            }
            console.out(dumps(told), highlight=False)
        else:
            if self.summary.calls:
                console.print(self.summary.table())
            console.print(self.summary.headline(), soft_wrap=True)
