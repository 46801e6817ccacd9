"""The exit codes of commands, and the exceptions that end them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes; scripts may rely on them."""

    OK = 0
    FAILED = 1  # a call failed, a check found something broken
    USAGE = 2  # the command or the set-up is wrong
    REJECTED = 3  # the call was refused before anything ran
    TIMED_OUT = 4
    UNREACHABLE = 5  # no Redis or broker answers
    INTERRUPTED = 130  # Ctrl-C
    READER_GONE = 141  # the reader of our output has ended, as in `| head`
    TERMINATED = 143


class ReaderGone(Exception):
    """Raised when the reader of the output has ended; the command then ends silently."""


class ExitNow(Exception):
    """Raised to end a command with `code` after one line that says why."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
