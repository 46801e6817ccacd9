"""Builds what is shipped, as a release does."""

import subprocess
import sys
from pathlib import Path


def build(source: Path, kind: str, folder: Path) -> Path:
    """The wheel or sdist of the project in `source`; `folder` is to hold nothing else."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = folder.iterdir()
    return built
