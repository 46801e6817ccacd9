"""The `toolpool` command: one file a command, and nothing heavy imported before it is needed."""

from collections.abc import Sequence

from toolpool.cli.exits import ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, `sys.argv`'s by default; return its exit code. Never raises."""
    try:
        from toolpool.cli.app import run_command

        return run_command(argv)
    except KeyboardInterrupt:  # while the command itself was still being imported
        return ExitCode.INTERRUPTED
