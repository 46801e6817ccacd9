"""A wall clock that a row can set, for a server or a worker: `shim.c`, compiled when it is used."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from tests.chaos.scene import Skipped


class WallClock:
    """`environment` gives a process this clock; `offset` (seconds) may change while it runs.

    Raises `Skipped` where there is no way to move a clock.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.clock"
        self.offset = 0.0
        library = _compiled(directory)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}

    @property
    def offset(self) -> float:
        """How far ahead of the machine's it is, in seconds."""
        return self._offset

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._offset = seconds
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:  # in place: processes have it mapped
            os.pwrite(descriptor, struct.pack("=q", round(seconds * 1e6)), 0)
        finally:
            os.close(descriptor)


def _compiled(directory: Path) -> Path:
    library = directory / "shim.so"
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        raise Skipped("it takes Linux and a C compiler (cc) to move a process's clock")
    if not library.exists():
        source = Path(__file__).with_name("shim.c")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
    return library
