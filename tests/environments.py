"""Environments of their own, for packages that must not meet the project's or are needed once."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_HOME = Path(__file__).parents[1] / ".run"


def environment(name: str, packages: Sequence[str]) -> Path:
    """The folder of an environment's programs; made once, and again where `packages` change.

    Only wheels are installed.
    """
    home = _HOME / name
    wanted, done = "\n".join(packages), home / "done"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--only-binary", ":all:", *packages], check=True, timeout=280)
        done.write_text(wanted)
    return home / "bin"
