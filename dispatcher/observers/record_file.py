"""Session records as files: one for each session in a folder, or one for all sessions.

Whole lines are appended. If a crash or a full disk cut a line off, the next row begins on a new
line, so that a reader loses only the cut one.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolpool.contract.errors import Misconfigured

_OPEN_AT_MOST = 64
_CHECK_SECONDS = 1.0
"""How often to check whether another process rotated an open file."""
_SWEEP_SECONDS = 600.0
"""How often to remove files that are too old or too many."""
_OWN = re.compile(r".+\.jsonl(\.[0-9]+)?")
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_NO_SESSION = "_no-session"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class NotAllWritten(OSError):
    """Raised if only the first `written` lines are in the file."""

    def __init__(self, error: OSError, written: int, path: Path) -> None:
        super().__init__(error.errno, error.strerror, str(path))
        self.written = written
        self.concerns_all = error.errno in _FULL


@dataclass(slots=True)
class _File:
    """An open file; `size` is from our last write, `checked_at` when its path was last checked."""

    number: int
    checked_at: float
    size: int = -1


class RecordFiles:
    """A sink. `path` is a folder that exists, or a file that ends in `.jsonl`.

    A file of `size` bytes is rotated, and the last `files` rotated ones are kept. In a folder, each
    session has a file in one of 256 subfolders. Every ten minutes, files that
    were not written to for `ttl` seconds are removed, and then the oldest until all have at most
    `total` bytes (0: no such limit).
    """

    def __init__(
        self,
        path: Path,
        *,
        sync: Literal["flush", "fsync"],
        size: int = 64 * 1024 * 1024,
        files: int = 5,
        ttl: float = 0.0,
        total: int = 0,
    ) -> None:
        self._path = path
        self._is_folder = path.is_dir()
        self._syncs = sync == "fsync"
        self._size = size
        self._files = files
        self._ttl, self._total = ttl, total
        self._sweep_at = 0.0
        self._open: OrderedDict[Path, _File] = OrderedDict()

    @property
    def is_one_file(self) -> bool:
        """Whether all sessions are written to one file."""
        return not self._is_folder

    def check(self) -> None:
        """Raises `Misconfigured` if rows cannot be written."""
        path = self._path
        failure = f"the session record {path} cannot be written"
        what = "set TOOLPOOL_RECORD to a folder that exists, or to a file that ends in .jsonl"
        if not self._is_folder and path.suffix != ".jsonl":
            raise Misconfigured(f"{failure}: there is no such folder: make it, or {what}")
        try:
            if self._is_folder:
                probe = path / f".toolpool-{os.getpid()}"
                os.close(os.open(probe, _FLAGS, 0o600))
                probe.unlink()
            else:
                self._file(path)
        except OSError as error:
            reason = error.strerror or error
            raise Misconfigured(
                f"{failure} ({reason}): {what}, which this user may write"
            ) from None

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        """Append the lines to the session's file. Raises `NotAllWritten`."""
        path = self._path
        if self._is_folder:
            name = file_name(session)
            path = path / shard(name) / f"{name}.jsonl"
            self._sweep_if_due()
        data, done, is_torn = b"".join(lines), 0, False
        try:
            file = self._file(path)
            if is_torn := _is_torn(file):
                data = b"\n" + data
            try:
                while done < len(data):
                    done += os.write(file.number, data[done:] if done else data)
            except OSError:
                file.size = -1
                raise
            file.size += done
            if self._syncs:
                os.fsync(file.number)
            if file.size >= self._size:
                self._rotate(path, file.number)
        except OSError as error:
            # A line that lacks only its line feed is complete: the next write begins with one.
            written = data.count(b"\n", 0, done + 1) - is_torn
            raise NotAllWritten(error, written, self._path) from error

    def _sweep_if_due(self) -> None:
        if time.monotonic() < self._sweep_at or not (self._ttl or self._total):
            return
        self._sweep_at = time.monotonic() + _SWEEP_SECONDS
        before = time.time() - self._ttl if self._ttl else 0.0
        files = sorted(_files_in(self._path))
        left = sum(size for _, size, _ in files)
        for written_at, size, path in files:
            if written_at >= before and not 0 < self._total < left:
                break
            with suppress(OSError):  # another dispatcher may have removed it
                os.unlink(path)
            left -= size

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1].number)

    def _file(self, path: Path) -> _File:
        """The open file at `path`, opened again if another process rotated it."""
        now = time.monotonic()
        file = self._open.pop(path, None)
        if file is not None and now - file.checked_at >= _CHECK_SECONDS:
            file.checked_at = now
            if not _is_at(path, file.number):
                os.close(file.number)
                file = None
        if file is None:
            if self._is_folder:
                with suppress(FileExistsError):
                    os.mkdir(path.parent, 0o700)
            file = _File(_opened(path), now)
        self._open[path] = file  # the most recently used: closed last
        if len(self._open) > _OPEN_AT_MOST:
            os.close(self._open.popitem(last=False)[1].number)
        return file

    def _rotate(self, path: Path, file: int) -> None:
        """Rename the file to `.1`, unless another process has; the oldest is overwritten."""
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if not _is_at(path, file):
                return
            older = [path.with_name(f"{path.name}.{n}") for n in range(1, self._files + 1)]
            for source, target in reversed(list(zip([path, *older], older, strict=False))):
                with suppress(FileNotFoundError):
                    os.replace(source, target)
        finally:
            del self._open[path]
            os.close(file)


def shard(name: str) -> str:
    """The subfolder for a file of this name: `00` to `ff`."""
    return hashlib.blake2b(name.encode(), digest_size=1).hexdigest()


def _files_in(folder: Path) -> Iterator[tuple[float, int, str]]:
    """The files of the record: time of the last write, size in bytes, and path."""
    for n in range(256):
        with suppress(OSError), os.scandir(folder / f"{n:02x}") as inside:
            for entry in inside:
                with suppress(OSError):
                    if _OWN.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime, found.st_size, entry.path


def file_name(session: str | None) -> str:
    """A file name that is safe in any folder and unique to the session."""
    if session is None:
        return _NO_SESSION
    if _PLAIN.fullmatch(session):
        return session
    digest = hashlib.blake2b(session.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{re.sub('[^a-z0-9_-]', '_', session.lower())[:60]}~{digest}"


def _opened(path: Path) -> int:
    file = os.open(path, _FLAGS, 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if stat.S_IMODE(found.st_mode) & 0o077:
            with suppress(PermissionError):  # another user's file, to which this user may write
                os.fchmod(file, 0o600)
    except BaseException:
        os.close(file)
        raise
    return file


def _is_at(path: Path, file: int) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except OSError:
        return False


def _is_torn(file: _File) -> bool:
    """Whether the last line is cut off.

    Reads the file only if its size has changed since this process last wrote to it.
    """
    size, known = os.fstat(file.number).st_size, file.size
    file.size = size
    return size not in (0, known) and os.pread(file.number, 1, size - 1) != b"\n"
