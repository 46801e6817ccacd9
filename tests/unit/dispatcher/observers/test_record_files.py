"""The files of a session record: whole lines, safe names, and nothing lost without a word (R39)."""

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from toolpool import Settings
from toolpool.contract.errors import Misconfigured
from toolpool.dispatcher.observers import record_file
from toolpool.dispatcher.observers.record_file import NotAllWritten, RecordFiles, file_name
from toolpool.dispatcher.observers.session_record import recorder_of


def files(path: Path, **options: Any) -> RecordFiles:
    return RecordFiles(path, **{"sync": "flush", "files": 2, **options})


def test_a_folder_has_a_file_for_each_session(tmp_path: Path) -> None:
    record = files(tmp_path)
    record.write("s-1", [b"1\n", b"2\n"])
    record.write(None, [b"3\n"])
    record.write("s-1", [b"4\n"])
    record.close()
    paths = list(tmp_path.glob("??/*.jsonl"))
    found = {path.name: path.read_text() for path in paths}
    assert found == {"s-1.jsonl": "1\n2\n4\n", "_no-session.jsonl": "3\n"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in paths} == {0o700}


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    (path := tmp_path / "r.jsonl").touch(0o644)
    record = files(path)
    record.write("s", [b"1\n"])
    record.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "session",
    ["..", ".", "/etc/passwd", "../up", "a/b", "CON", "x" * 256, "\u202e", "a\nb", "é", "~", "-"],
)
def test_every_session_stays_in_the_folder(tmp_path: Path, session: str) -> None:
    (folder := tmp_path / "record").mkdir()
    record = files(folder)
    record.write(session, [b"1\n"])
    record.close()
    [written] = folder.glob("??/*")
    assert written.name.isascii() and len(written.name) < 100
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_no_two_sessions_share_a_file() -> None:
    sessions = ["a", "A", "a b", "a_b", "a/b", file_name("a b"), "_no-session", "", None]
    names = [file_name(session) for session in sessions]
    assert len({name.lower() for name in names}) == len(sessions)


def test_after_a_torn_line_the_next_begins_on_its_own(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"whole": 1}\n{"torn')
    record = files(path)
    record.write("s", [b'{"next": 2}\n'])
    record.close()
    assert path.read_bytes() == b'{"whole": 1}\n{"torn\n{"next": 2}\n'


def test_a_disk_that_is_full_in_mid_line_costs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written whole is not written again; the torn one is, on a line of its own."""
    path = tmp_path / "r.jsonl"
    record = files(path)
    left = [5]
    write = os.write

    def full(file: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(file, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(record_file.os, "write", full)
    lines = [b"111\n", b"222\n", b"333\n"]
    with pytest.raises(NotAllWritten) as caught:
        record.write("s", lines)
    assert (caught.value.written, caught.value.concerns_all) == (1, True)
    left[0] = 1_000
    record.write("s", lines[1:])
    record.close()
    assert path.read_bytes() == b"111\n2\n222\n333\n"


def test_files_are_put_away_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    record = files(tmp_path / "r.jsonl", size=10)
    for number in range(5):
        record.write("s", [b"%d-------\n" % number, b"%d+++++++\n" % number])
    record.close()
    found = {path.name: path.read_text()[0] for path in tmp_path.iterdir()}
    assert found == {"r.jsonl.1": "4", "r.jsonl.2": "3"}


def test_a_file_that_was_moved_away_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another dispatcher, or by logrotate."""
    monkeypatch.setattr(record_file, "_CHECK_SECONDS", 0.0)
    record = files(path := tmp_path / "r.jsonl")
    record.write("s", [b"1\n"])
    path.rename(tmp_path / "old")
    record.write("s", [b"2\n"])
    record.close()
    assert path.read_text() == "2\n"


def test_two_dispatchers_write_whole_lines_to_one_file(tmp_path: Path) -> None:
    one, two = (files(tmp_path / "r.jsonl", size=200, files=99) for _ in range(2))
    for number in range(50):
        one.write("s", [json.dumps({"one": number}).encode() + b"\n"])
        two.write("s", [json.dumps({"two": number}).encode() + b"\n"])
    one.close()
    two.close()
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert len({line for line in lines if json.loads(line)}) == 100


def test_many_sessions_keep_few_files_open(tmp_path: Path) -> None:
    record = files(tmp_path)
    for number in range(200):
        record.write(f"s{number}", [b"1\n"])
    assert len(record._open) <= 64
    record.close()
    assert len(list(tmp_path.glob("??/*.jsonl"))) == 200
    assert len(list(tmp_path.iterdir())) > 50, "in many folders"


def test_fsync_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(record_file.os, "fsync", synced.append)
    for sync, count in (("flush", 0), ("fsync", 1)):
        record = files(tmp_path / "r.jsonl", sync=sync)
        record.write("s", [b"1\n"])
        record.close()
        assert len(synced) == count


@pytest.mark.parametrize("name", ["missing", "missing/r.jsonl", "plain.txt"])
def test_an_unwritable_path_is_reported_at_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain.txt").touch()
    with pytest.raises(Misconfigured, match="set TOOLPOOL_RECORD to a folder that exists, or"):
        files(tmp_path / name).check()


def test_a_path_that_is_not_a_file_is_reported_at_start(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("link.jsonl", "pipe.jsonl"):
        with pytest.raises(Misconfigured, match="cannot be written"):
            files(tmp_path / name).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported_at_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(Misconfigured, match="Permission denied"):
        files(tmp_path).check()


def test_an_empty_path_is_no_folder() -> None:
    with pytest.raises(Misconfigured, match="empty path"):
        recorder_of("", Settings())
    assert recorder_of(None, Settings(record="")) is None


@pytest.mark.parametrize(
    ("before", "room", "written"),
    [(b"", 6, 1), (b"", 7, 2), (b"t", 7, 1), (b"t", 8, 2), (b"t", 1, 0), (b"t", 0, 0)],
)
def test_of_several_lines_in_one_those_that_were_written_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes, room: int, written: int
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(before)
    record = files(path)
    write, left = os.write, [room]

    def full(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(file, data[: min(left[0], 5)])
        left[0] -= done
        return done

    monkeypatch.setattr(record_file.os, "write", full)
    blocks = [b"111\n222\n", b"333\n"]
    with pytest.raises(NotAllWritten) as caught:
        record.write("s", blocks)
    assert caught.value.written == written
    assert str(path) in str(caught.value)
    whole = (before and before + b"\n") + b"".join(blocks)
    assert path.read_bytes() == whole[: len(before) + room]
    left[0] = 1_000
    record.write("s", b"".join(blocks).splitlines(keepends=True)[written:])
    record.close()
    found = path.read_bytes().splitlines()
    assert [line for line in found if len(line) == 3] == [b"111", b"222", b"333"], found


def aged(record: RecordFiles, folder: Path, session: str, age: float, size: int = 2) -> Path:
    """The file of a session, last written so many seconds ago."""
    record.write(session, [b"x" * (size - 1) + b"\n"])
    [path] = folder.glob(f"??/{session}.jsonl")
    at = time.time() - age
    os.utime(path, (at, at))
    return path


def test_files_of_a_folder_that_are_too_old_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_SWEEP_SECONDS", 0.0)
    record = files(tmp_path, ttl=3600.0)
    old = aged(record, tmp_path, "old", 7200.0)
    new = aged(record, tmp_path, "new", 1800.0)
    (old.parent / "notes.txt").write_text("a host's own")
    os.utime(old.parent / "notes.txt", (0, 0))
    (tmp_path / "mine.jsonl").touch()
    os.utime(tmp_path / "mine.jsonl", (0, 0))
    record.write("another", [b"1\n"])
    record.close()
    assert not old.exists() and new.exists()
    assert (old.parent / "notes.txt").exists() and (tmp_path / "mine.jsonl").exists()


def test_the_oldest_files_of_a_folder_give_way_where_all_take_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_SWEEP_SECONDS", 0.0)
    record = files(tmp_path, total=250)
    paths = [aged(record, tmp_path, f"s-{n}", 1000.0 - n, 100) for n in range(5)]
    record.write("s-4", [b"1\n"])
    record.close()
    assert [path.exists() for path in paths] == [False, False, False, True, True]


def test_a_folder_without_limits_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_SWEEP_SECONDS", 0.0)
    record = files(tmp_path)
    old = aged(record, tmp_path, "old", 1e9)
    record.write("another", [b"1\n"])
    record.close()
    assert old.exists()
