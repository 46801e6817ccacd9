"""The progress of a run: a bar on stderr if that is a terminal."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from toolpool.cli import screen
from toolpool.cli.running.summary import Summary

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class RunProgress:
    """A bar over the bytes of the input if its size is known, else a count."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        console = screen.stderr_console()
        if console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[told]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._progress.add_task("starting", total=None, told="")
            self._progress.start()
        return self

    def begin(self) -> None:
        """Show that the set-up has ended."""
        self._update(description="running", total=self._size)

    def advance(self, read: int, summary: Summary) -> None:
        """Show that `read` bytes of the input are answered."""
        told = f"{summary.turns:,} turns · {summary.calls:,} calls · {summary.failed:,} failed"
        self._update(completed=read, told=told)

    def print_error(self, message: str) -> None:
        """Call `screen.print_error`, above the bar if there is one."""
        if self._progress is not None:
            self._progress.console.print(f"toolpool: {message}", markup=False, soft_wrap=True)
        else:
            screen.print_error(message)

    def note(self, message: str) -> None:
        """Write a line of information, if stderr is a terminal."""
        if self._progress is not None:
            self._progress.console.print(message, markup=False, soft_wrap=True)

    def _update(self, **fields: object) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, **fields)  # type: ignore[arg-type]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
