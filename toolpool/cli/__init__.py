"""The `toolpool` command: one file per command, with heavy imports deferred."""

import os
import sys
from collections.abc import Sequence

from toolpool.cli.exit_codes import ExitCode
from toolpool.contract.errors import PackageMissing
from toolpool.contract.importing import require_package


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of `sys.argv`; return its exit code. Never raises."""
    _open_what_is_closed()
    try:
        for module in ("typer", "rich", "jsonschema"):
            require_package(module, "the command line")
        from toolpool.cli.app import run_command

        return run_command(argv)
    except PackageMissing as error:
        sys.stderr.write(f"toolpool: {error}\n")
        return ExitCode.USAGE
    except KeyboardInterrupt:  # while the command itself was being imported
        return ExitCode.INTERRUPTED


def _open_what_is_closed() -> None:
    """Open a stderr closed by `2>&-`, before a socket gets its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere == number:
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))
        else:  # it is already in use
            setattr(sys, name, os.fdopen(nowhere, mode))
