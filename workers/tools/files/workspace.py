"""Opens files below the workspace root, one path component at a time, never through a link.

Each component is opened relative to the descriptor of the one before it (`openat`, O_NOFOLLOW), and
everything after that uses descriptors. So the checked file is the used file, even if others rename
or link files meanwhile. Links are refused even if they point inside. Not covered: hard links and
mounts that already exist in the workspace; they look like any file.
"""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from toolpool.contract.errors import ToolError
from toolpool.workers.tools.configured import settings
from toolpool.workers.tools.files.code_folders import holds_code

TEMPORARY = ".toolpool-tmp-"
LONGEST_PATH = 4096
_DEEPEST = 64
_MOST_ENTRIES = 200_000
_LOCK_SECONDS = 5.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# NONBLOCK: opening a FIFO that appeared after the check must not block. NOCTTY: a terminal must not
# become ours.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_PASSED_OVER = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Place:
    """Components below the root, none of them `..`. The model reads its text."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        # Names that are not UTF-8 contain surrogates, which JSON cannot encode.
        return os.fsencode("/".join(self.parts) or ".").decode("utf-8", "replace")

    def __truediv__(self, name: str) -> "Place":
        return Place((*self.parts, name))


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file found by a walk; `folder` is open only until the next step."""

    folder: int
    place: Place


class Held:
    """A file's entry in its folder, locked against other calls' edits while it is held."""

    def __init__(self, folder: int, place: Place) -> None:
        self._folder = folder
        self._name = place.parts[-1]
        self._place = place

    def read(self, limit: int) -> bytes:
        """The whole file. Raises ToolError if it is missing, not regular, or over `limit`."""
        with open_regular(self._folder, self._place) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ToolError(
                f"{self._place} is over {limit:,} bytes, which is too large to edit here."
            )
        return data

    def replace(self, data: bytes) -> bool:
        """Replace the file with `data` atomically; True if the file is new."""
        with _explained(self._place):
            mode = self._mode()
            temporary = TEMPORARY + secrets.token_hex(8)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(temporary, flags, 0o666, dir_fd=self._folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                    if mode is not None:
                        os.fchmod(descriptor, mode)
                # A rename never writes through a link at the name, even a new one.
                os.replace(temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self._folder)
                raise
        return mode is None

    def _mode(self) -> int | None:
        try:
            found = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        _require_regular(found, self._place)
        return stat.S_IMODE(found.st_mode)


class Workspace:
    """The folder that file tools are confined to."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)

    @classmethod
    def current(cls) -> "Workspace":
        """The workspace that `TOOLPOOL_WORKSPACE` names."""
        return cls(settings().workspace)

    def place(self, path: str) -> Place:
        """Resolve `path` lexically. Raises ToolError if it leads outside."""
        if "\0" in path or len(path) > LONGEST_PATH or not _encodable(path):
            raise ToolError(
                "The path is not usable: it holds a NUL or unpaired surrogate, or is far too long."
            )
        pure = PurePosixPath(path)
        if pure.is_absolute():
            pure = self._below_root(pure)
        parts: list[str] = []
        for part in pure.parts:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()  # lexically exact, since no component may be a link
            else:
                raise _outside(path)
        return Place(tuple(parts))

    def file_place(self, path: str) -> Place:
        """Like `place`, but for a file: the root itself is refused."""
        place = self.place(path)
        if not place.parts:
            raise ToolError(f"{path!r} is the workspace folder itself; give the path of a file.")
        return place

    @contextmanager
    def folder(self, place: Place, *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder at `place`. Raises ToolError if it does not exist."""
        if len(place.parts) > _DEEPEST:
            raise ToolError(f"The path has over {_DEEPEST} folders; use a shallower one.")
        descriptor = self._open_root()
        try:
            for depth, name in enumerate(place.parts, 1):
                below = _open_folder(descriptor, name, Place(place.parts[:depth]), create=create)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def file(self, place: Place) -> Iterator[BinaryIO]:
        """The regular file at `place`, open for reading. Raises ToolError if it does not exist."""
        with (
            self.folder(Place(place.parts[:-1])) as folder,
            open_regular(folder, place) as file,
        ):
            yield file

    @contextmanager
    def held(self, place: Place, *, create: bool = False) -> Iterator[Held]:
        """The file at `place`, locked for reading and replacing it.

        `create` makes the folders above it. Raises ToolError if the lock is unavailable, and in a
        folder whose code the worker or `git` runs.
        """
        self._refuse_code(place)
        with self.folder(Place(place.parts[:-1]), create=create) as folder:
            _lock(folder, place)  # closing the descriptor unlocks it
            yield Held(folder, place)

    def _refuse_code(self, place: Place) -> None:
        """Raise ToolError for a file that would run as code with the worker's rights."""
        is_of_git = any(part.casefold().endswith(".git") for part in place.parts[:-1])
        if not is_of_git and not holds_code(self._root, place.parts[:-1]):
            return
        raise ToolError(
            f"{place} is in a folder whose code the worker or git runs, so the file tools do not "
            "write there. This is the operator's to change: TOOLPOOL_WORKSPACE should be a folder "
            "of its own, from which no worker imports tools.",
            recommendations=("Do not retry; write to another folder, or tell the user.",),
        )

    def is_folder(self, place: Place) -> bool:
        """Whether `place` is a folder. Raises ToolError if it cannot be reached."""
        if not place.parts:
            return True
        with self.folder(Place(place.parts[:-1])) as folder, _explained(place):
            found = os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)
        return stat.S_ISDIR(found.st_mode)

    def walk(self, place: Place) -> Iterator[Found]:
        """Regular files below `place`, by name; links and `.git`-like folders are skipped.

        Raises ToolError after 200,000 entries, because the result would be incomplete.
        """
        budget = [_MOST_ENTRIES]
        with self.folder(place) as folder:
            yield from _walk(folder, place, budget)

    def _below_root(self, path: PurePosixPath) -> PurePosixPath:
        for root in (self._root, os.path.realpath(self._root)):
            with suppress(ValueError):
                return path.relative_to(root)
        raise _outside(str(path))

    def _open_root(self) -> int:
        try:
            # The root is the operator's own choice, so a link is followed here.
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ToolError(
                f"The workspace cannot be opened: {error.strerror}. This is the operator's to "
                "repair: TOOLPOOL_WORKSPACE must name a folder that exists on the worker.",
                recommendations=("Do not retry; tell the user that the workspace is missing.",),
            ) from None


@contextmanager
def open_regular(folder: int, place: Place) -> Iterator[BinaryIO]:
    """The regular file at `place`, in the open `folder`. Raises ToolError for anything else."""
    name = place.parts[-1]
    with _explained(place):
        # Checked first, because merely opening a device can have effects.
        _require_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), place)
        descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            _require_regular(os.fstat(descriptor), place)
        except BaseException:
            os.close(descriptor)
            raise
    with open(descriptor, "rb") as file:
        yield file


def _open_folder(parent: int, name: str, place: Place, *, create: bool) -> int:
    with _explained(place):
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
        try:
            return os.open(name, _FOLDER, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    raise _link(place) from None
            raise


def _walk(folder: int, place: Place, budget: list[int]) -> Iterator[Found]:
    if len(place.parts) > _DEEPEST:
        return
    with os.scandir(folder) as entries:
        listed = []
        for entry in entries:
            budget[0] -= 1
            if budget[0] < 0:
                raise ToolError(
                    f"There are over {_MOST_ENTRIES:,} files here; give a deeper folder as path."
                )
            listed.append((entry.name, _kind(entry)))
    for name, kind in sorted(listed):
        if kind == "file" and not name.startswith(TEMPORARY):
            yield Found(folder, place / name)
        elif kind == "folder" and name not in _PASSED_OVER:
            try:
                below = os.open(name, _FOLDER, dir_fd=folder)
            except OSError:
                continue  # gone, unreadable or replaced by a link since it was listed
            try:
                yield from _walk(below, place / name, budget)
            finally:
                os.close(below)


def _kind(entry: "os.DirEntry[str]") -> str:
    try:
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:
        return "other"


def _lock(folder: int, place: Place) -> None:
    ends = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > ends:
                raise ToolError(
                    f"{place} is being changed by others all the time; nothing was written.",
                    retry_after=_LOCK_SECONDS,
                ) from None
            time.sleep(0.01)
        except OSError:
            return  # a file system without locks: replacing stays atomic, edits may interleave


def _require_regular(found: os.stat_result, place: Place) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISLNK(mode):
        raise _link(place)
    if stat.S_ISDIR(mode):
        raise ToolError(
            f"{place} is a folder, not a file.",
            recommendations=(f"List what is in it with fs_glob, path {str(place)!r}.",),
        )
    raise ToolError(
        f"{place} is a pipe, socket or device; the file tools take regular files only.",
        recommendations=("Work with another file.",),
    )


@contextmanager
def _explained(place: Place) -> Iterator[None]:
    """Converts the system's errors to ones that a model can act on."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError(
            f"No such file or folder: {place}",
            recommendations=(
                "Find the right path with fs_glob, for example pattern '**/*.py'.",
                "Paths are relative to the workspace root.",
            ),
        ) from None
    except NotADirectoryError:
        raise ToolError(f"{place} is not a folder, so there is nothing below it.") from None
    except PermissionError:
        raise ToolError(
            f"Permission denied: {place}",
            recommendations=("Work with another file, or tell the user what is not permitted.",),
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(place) from None
        raise ToolError(f"{place}: {error.strerror or error}") from None


def _outside(path: str) -> ToolError:
    return ToolError(
        f"{path[:200]!r} is outside the workspace, and the file tools reach nothing outside it.",
        recommendations=(
            "Use a path relative to the workspace root, such as 'src/app.py'.",
            "List what the workspace holds with fs_glob, pattern '**/*'.",
        ),
    )


def _link(place: Place) -> ToolError:
    return ToolError(
        f"{place} is a symbolic link, and the file tools follow no links.",
        recommendations=("Use the path of the file or folder that it points to.",),
    )


def _encodable(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
