"""The `toolpool` command: one file a command.

Nothing but this package's own light modules is imported before it is known that `contract`,
`dispatcher` and `workers` are ours, and nothing heavy before a command needs it.
"""

import sys
from collections.abc import Sequence

from toolpool.cli.exits import ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, `sys.argv`'s by default; return its exit code. Never raises."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # while the command itself was still being imported
        return ExitCode.INTERRUPTED


def _main(argv: Sequence[str] | None) -> int:
    from toolpool.doctor import shadowed_packages

    shadows = shadowed_packages()
    if shadows:
        for shadow in shadows:
            sys.stderr.write(f"toolpool: {shadow.message}; {shadow.remedy}\n")
        return ExitCode.USAGE
    from toolpool.cli.app import run_command

    return run_command(argv)
