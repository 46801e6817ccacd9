"""What the tools wrote themselves: the truth that results are held against."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One start or end of a tool, at `at` on the machine's monotonic clock."""

    word: str
    key: str
    mode: str
    pid: int
    at: float


class Journal:
    """The file that `tests.chaos.tools` append to, read on as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._rest = b""
        self.starts: Counter[str] = Counter()
        self.lines: list[Line] = []
        path.touch()

    def follow(self) -> list[Line]:
        """The lines that came since the last look."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            found = file.read()
        self._read += len(found)
        *whole, self._rest = (self._rest + found).split(b"\n")
        new = [_parsed(line) for line in whole]
        self.lines += new
        self.starts.update(line.key for line in new if line.word == "start")
        return new

    def absorb(self, others: "Iterable[Journal]") -> None:
        """Take in what was written elsewhere, for the verdict."""
        for other in others:
            with self.path.open("ab") as file:
                file.write(other.path.read_bytes())


def _parsed(line: bytes) -> Line:
    word, key, mode, pid, at = line.decode().split()
    return Line(word, key, mode, int(pid), float(at))
