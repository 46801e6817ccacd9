"""Writing whole lines."""

import errno
import os
from pathlib import Path

import pytest

from toolpool.cli.exit_codes import ExitNow, ReaderGone
from toolpool.cli.running.sink import Sink
from toolpool.contract.errors import Misconfigured


async def test_a_file_keeps_what_it_held_until_the_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("an earlier run\n")
    with Sink(str(path)):
        pass
    assert path.read_text() == "an earlier run\n"
    with Sink(str(path)) as sink:
        sink.begin()
        await sink.write(b"a\nb\n")
        assert path.read_text() == "a\nb\n"


async def test_a_full_disk_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    write, room = os.write, 10

    def until_full(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, bytes(data[:room]))
        room -= written
        return written

    with Sink(str(path)) as sink:
        sink.begin()
        await sink.write(b"1\n")
        room = 10
        monkeypatch.setattr(os, "write", until_full)
        with pytest.raises(ExitNow, match="No space left"):
            await sink.write(b"2345\n789012\n")
        monkeypatch.undo()
    assert path.read_bytes() == b"1\n2345\n"


async def test_a_reader_that_ends_is_no_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with Sink(str(path)) as sink:
        sink.begin()
        await sink.write(b"a\n")
        os.close(reader)
        with pytest.raises(ReaderGone):
            await sink.write(b"b\n")


@pytest.mark.parametrize("name", ["absent/out", "."])
def test_what_cannot_be_written_says_so_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misconfigured, match="cannot write .*: name a file"):
        Sink(str(tmp_path / name))
