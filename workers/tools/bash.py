"""`bash`: one shell command, off unless `TOOLPOOL_BASH` is set.

A command runs with the rights of the worker's user: it is not confined to the workspace, and may
use the network. It cannot read the worker's environment, open files and, unless that user is root,
memory (`contract/server/process_secrets.py`); and the processes that it leaves behind are killed
(see `command_runner`).
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field

from toolpool.contract.errors import ToolError
from toolpool.workers.context import ToolContext
from toolpool.workers.tool import tool
from toolpool.workers.tools import command_runner
from toolpool.workers.tools.configured import settings

_LONGEST_RUN = 600
_LONGEST_COMMAND = 100_000  # Linux allows 128 KiB for one argument
_HEAD = _TAIL = 12 * 1024
_AFTERWARDS = 4.0  # the warden's sweep and a little


@tool(timeout=_LONGEST_RUN + 20, effects="write")
async def bash(
    command: Annotated[
        str,
        Field(
            min_length=1, max_length=_LONGEST_COMMAND, description="What to run, as for `bash -c`."
        ),
    ],
    timeout: Annotated[
        float,
        Field(gt=0, le=_LONGEST_RUN, description="Seconds until the command is killed."),
    ] = 60,
    context: ToolContext | None = None,
) -> dict[str, Any]:
    """Run a shell command in the workspace folder and return its exit code and output.

    The result is `exit_code`, `stdout` and `stderr`; a command that fails is a result like any
    other, so look at `exit_code` (0 is success, 128 + n means killed by signal n). Nothing can be
    typed in: standard input is empty. Of a long output the start and the end are kept. When the
    command ends, processes that it left in the background are killed, so start and use a server in
    one command. Each command starts afresh: a changed directory or variable does not last.
    """
    if not settings().bash:
        raise ToolError(
            "Shell commands are switched off here. The operator of the workers can allow them "
            "with TOOLPOOL_BASH=true.",
            recommendations=(
                "Use the fs_ tools to read, search and change files.",
                "If a command is needed, tell the user which and why; do not retry.",
            ),
        )
    if "\0" in command or len(command.encode(errors="replace")) > _LONGEST_COMMAND:
        raise ToolError(
            f"The command holds a NUL or is over {_LONGEST_COMMAND:,} bytes.",
            recommendations=("Write a script with fs_write and run that.",),
        )
    # So that the model gets the output rather than the pool's bare timeout.
    seconds = min(timeout, max(context.remaining - _AFTERWARDS, 0.1)) if context else timeout
    run = await _Run.start(command, settings().workspace)
    return await run.finish(seconds)


class _Output:
    """The start and the end of a stream, and its total size."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    async def collect(self, stream: asyncio.StreamReader) -> None:
        """Read to the end of the stream."""
        while data := await stream.read(65_536):
            self._total += len(data)
            room = _HEAD - len(self._head)
            self._head += data[:room] if room > 0 else b""
            self._tail += data[room:] if room > 0 else data
            del self._tail[:-_TAIL]

    def __str__(self) -> str:
        left_out = self._total - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n[… {left_out:,} of {self._total:,} bytes left out …]\n{tail}"


class _Run:
    """A warden with its command, and the three streams from them."""

    def __init__(self, process: Process, status: asyncio.StreamReader) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._status = status
        self._control = process.stdin
        self._stdout, self._stderr = _Output(), _Output()
        self._group: int | None = None
        self._code: int | None = None
        self._reading = asyncio.gather(
            self._stdout.collect(process.stdout), self._stderr.collect(process.stderr)
        )

    @classmethod
    async def start(cls, command: str, folder: Path) -> "_Run":
        """Start a command. Raises ToolError if the workspace is missing."""
        starting = asyncio.ensure_future(cls._start(command, folder))
        try:
            # Shielded: if cancelled, asyncio would kill the warden and leave its command.
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.shield(_cut_short(starting))
            raise
        except OSError as error:
            raise ToolError(
                f"The command cannot be started in the workspace: {error.strerror}. This is the "
                "operator's to repair.",
                recommendations=("Do not retry; tell the user.",),
            ) from None

    @classmethod
    async def _start(cls, command: str, folder: Path) -> "_Run":
        shell = shutil.which("bash") or "/bin/sh"
        reader, writer = _pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", command_runner.__file__, str(writer)),
                *(shell, "-c", command),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env=_environment(folder),
                pass_fds=(writer,),
                start_new_session=True,
            )
        except BaseException:
            reader.close()
            raise
        finally:
            os.close(writer)
        status = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(status), reader
        )
        return cls(process, status)

    async def finish(self, seconds: float) -> dict[str, Any]:
        """Wait for the result; nothing of the command is left afterwards."""
        try:
            async with asyncio.timeout(seconds):
                await self._watch()
        except TimeoutError:
            await asyncio.shield(self.end())
            raise self._timed_out(seconds) from None
        except asyncio.CancelledError:
            await asyncio.shield(self.end())
            raise
        await asyncio.shield(self.end())
        if self._code is None:
            raise ToolError(
                "The command killed the process that watches over it, so its end was not seen.",
                recommendations=("Kill only processes that the command itself started.",),
            )
        exit_code = self._code if self._code >= 0 else 128 - self._code
        return {"exit_code": exit_code, "stdout": str(self._stdout), "stderr": str(self._stderr)}

    async def end(self) -> None:
        """Stop the command if it runs, and wait until nothing of it is left."""
        self._control.close()  # the warden then ends, even if nothing waits for it
        with suppress(TimeoutError):
            async with asyncio.timeout(_AFTERWARDS):
                await self._watch()
        if self._code is None:  # the warden is stuck, or was killed
            with suppress(ProcessLookupError, PermissionError):
                self._process.kill()
            if self._group is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._group, signal.SIGKILL)
        # Only a process that escaped could still hold the streams open.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reading, 1.0)
            await asyncio.wait_for(self._process.wait(), 1.0)

    async def _watch(self) -> None:
        """Wait until the warden reports how the command ended, or exits."""
        if self._group is None:
            self._group = _number(await self._status.readline())
        if self._code is None:
            self._code = _number(await self._status.readline())

    def _timed_out(self, seconds: float) -> ToolError:
        shown = "".join(
            f"\n{name} until then:\n{text[-2000:]}"
            for name, text in (("stdout", str(self._stdout)), ("stderr", str(self._stderr)))
            if text
        )
        return ToolError(
            f"The command timed out after {seconds:g} s and was killed with everything it had "
            f"started.{shown}",
            recommendations=(
                f"Give it a longer timeout (at most {_LONGEST_RUN} s), or less to do.",
                "Check what it has already done before running it again.",
            ),
        )


def _environment(folder: Path) -> dict[str, str]:
    """A minimal environment: the worker's own holds keys and passwords."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.path.abspath(folder),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


async def _cut_short(starting: "asyncio.Future[_Run]") -> None:
    with suppress(OSError):
        await (await starting).end()


def _pipe() -> tuple[BinaryIO, int]:
    reader, writer = os.pipe()
    return open(reader, "rb", buffering=0), writer


def _number(line: bytes) -> int | None:
    return int(line) if line.endswith(b"\n") else None
