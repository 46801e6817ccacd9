"""A worker of a peer, ended with its side."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """While a command runs; its output is not shown."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
