"""R38: the file tools reach nothing outside the workspace root, whatever stands in it."""

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from toolpool.contract.errors import ToolError
from toolpool.workers.tools.configured import settings
from toolpool.workers.tools.files.reading import fs_read
from toolpool.workers.tools.files.search import fs_glob, fs_grep
from toolpool.workers.tools.files.writing import Edit, fs_edit, fs_multi_edit, fs_write

Act = Callable[[str], Any]

EVERY_TOOL: dict[str, Act] = {
    "fs_read": lambda path: fs_read(path=path),
    "fs_grep": lambda path: fs_grep(pattern="secret", path=path),
    "fs_write": lambda path: fs_write(path=path, content="overwritten"),
    "fs_edit": lambda path: fs_edit(path=path, old="secret", new="overwritten"),
    "fs_multi_edit": lambda path: fs_multi_edit(
        path=path, edits=[Edit(old="secret", new="overwritten")]
    ),
}


@pytest.fixture(params=EVERY_TOOL)
def act(request: pytest.FixtureRequest) -> Act:
    return EVERY_TOOL[request.param]


@pytest.fixture
def outside(tmp_path: Path, workspace: Path) -> Iterator[Path]:
    """A file beyond the root that must neither be read nor changed."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file = folder / "file.txt"
    file.write_text("the secret outside\n")
    yield file
    assert file.read_text() == "the secret outside\n"
    assert os.listdir(folder) == ["file.txt"], "something was written beyond the root"


@pytest.mark.parametrize(
    "path",
    [
        "../elsewhere/file.txt",
        "notes/../../elsewhere/file.txt",
        "./../elsewhere/file.txt",
        "notes/./../../elsewhere/file.txt",
    ],
)
def test_dots_do_not_lead_out(act: Act, outside: Path, workspace: Path, path: str) -> None:
    (workspace / "notes").mkdir()
    with pytest.raises(ToolError, match="outside the workspace"):
        act(path)


def test_absolute_paths_do_not_lead_out(act: Act, outside: Path) -> None:
    with pytest.raises(ToolError, match="outside the workspace"):
        act(str(outside))


def test_an_absolute_path_with_dots_after_the_root_does_not_lead_out(
    act: Act, outside: Path, workspace: Path
) -> None:
    with pytest.raises(ToolError, match="outside the workspace"):
        act(f"{workspace}/../elsewhere/file.txt")


def test_a_sibling_whose_name_starts_like_the_root_is_outside(
    act: Act, tmp_path: Path, workspace: Path
) -> None:
    sibling = tmp_path / "workspace-2"
    sibling.mkdir()
    (sibling / "file.txt").write_text("secret")
    with pytest.raises(ToolError, match="outside the workspace"):
        act(str(sibling / "file.txt"))


def test_absolute_paths_inside_are_taken(workspace: Path) -> None:
    (workspace / "a.txt").write_text("inside\n")
    assert fs_read(path=str(workspace / "a.txt")) == "inside"


def test_a_link_to_a_file_is_refused(act: Act, outside: Path, workspace: Path) -> None:
    (workspace / "link.txt").symlink_to(outside)
    with pytest.raises(ToolError, match=r"link\.txt is a symbolic link"):
        act("link.txt")
    assert (workspace / "link.txt").is_symlink()


def test_a_link_to_a_folder_is_refused(act: Act, outside: Path, workspace: Path) -> None:
    (workspace / "folder").symlink_to(outside.parent)
    with pytest.raises(ToolError, match="folder is a symbolic link"):
        act("folder/file.txt")


def test_a_link_deep_in_the_path_is_refused(act: Act, outside: Path, workspace: Path) -> None:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "a/b/c").symlink_to(outside.parent.parent)
    with pytest.raises(ToolError, match="a/b/c is a symbolic link"):
        act("a/b/c/elsewhere/file.txt")


def test_dots_after_a_link_are_taken_by_their_text(
    act: Act, outside: Path, workspace: Path
) -> None:
    """The system would go through the link and then up, to a place beside its target."""
    (workspace / "link").symlink_to(outside.parent)
    (workspace / "file.txt").write_text("the secret inside\n")
    act("link/../file.txt")


def test_a_link_at_nothing_is_not_written_through(outside: Path, workspace: Path) -> None:
    (workspace / "new.txt").symlink_to(outside.parent / "made.txt")
    with pytest.raises(ToolError, match="symbolic link"):
        fs_write(path="new.txt", content="x")


def test_folders_are_not_made_through_a_link(outside: Path, workspace: Path) -> None:
    (workspace / "out").symlink_to(outside.parent)
    with pytest.raises(ToolError, match="symbolic link"):
        fs_write(path="out/deep/er/file.txt", content="x")


def test_walks_do_not_follow_links(outside: Path, workspace: Path) -> None:
    (workspace / "folder").symlink_to(outside.parent)
    (workspace / "file-link").symlink_to(outside)
    (workspace / "own.txt").write_text("a secret of our own\n")
    assert fs_glob(pattern="**/*") == "own.txt\n[1 file]"
    assert fs_grep(pattern="secret") == "own.txt:1:a secret of our own\n[1 match in 1 file]"
    with pytest.raises(ToolError, match="symbolic link"):
        fs_glob(pattern="*", path="folder")


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "a/../../*"])
def test_patterns_do_not_lead_out(workspace: Path, pattern: str) -> None:
    with pytest.raises(ToolError, match="no pattern for paths inside"):
        fs_glob(pattern=pattern)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000, "x/" * 100 + "y"])
def test_unusable_paths_are_refused_in_words(act: Act, workspace: Path, path: str) -> None:
    with pytest.raises(ToolError):
        act(path)


def test_a_pipe_is_refused_at_once(act: Act, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with pytest.raises(ToolError, match="pipe, socket or device"):
        act("pipe")


def test_a_pipe_that_appears_after_the_look_does_not_hang(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look said regular file; the descriptor is asked again, and opening did not wait."""
    os.mkfifo(workspace / "pipe")
    regular = os.stat(__file__)
    monkeypatch.setattr(os, "stat", lambda *_, **__: regular)
    with pytest.raises(ToolError, match="pipe, socket or device"):
        fs_read(path="pipe")


def test_a_socket_is_refused(act: Act, workspace: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(workspace)  # the name of a socket has a short limit
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(ToolError, match="pipe, socket or device"):
            act("socket")


def test_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_WORKSPACE", "/dev")
    settings.cache_clear()
    for act in EVERY_TOOL.values():
        with pytest.raises(ToolError, match="pipe, socket or device"):
            act("null")
    settings.cache_clear()


def test_a_missing_root_is_the_operators_to_repair(workspace: Path, act: Act) -> None:
    workspace.rmdir()
    with pytest.raises(ToolError, match="TOOLPOOL_WORKSPACE must name a folder"):
        act("a.txt")


@contextmanager
def flipping(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """Another thread swaps what stands at a path, as fast as it can."""
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            first()
            second()

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _race(path: str) -> None:
    """Every tool, over and over; the `outside` fixture sees what got out."""
    ends = time.monotonic() + 1.5
    while time.monotonic() < ends:
        for name, act in EVERY_TOOL.items():
            with suppress(ToolError):
                assert "outside" not in str(act(path)), f"{name} read beyond the root"
        assert "outside" not in fs_grep(pattern="secret")


def test_a_folder_swapped_for_a_link_during_use_leads_nowhere(
    outside: Path, workspace: Path
) -> None:
    real, spare, link = workspace / "folder", workspace / "spare", workspace / "link"
    real.mkdir()
    (real / "file.txt").write_text("the secret inside\n")
    link.symlink_to(outside.parent)

    def to_link() -> None:
        real.rename(spare)
        while True:
            try:
                link.rename(real)
            except OSError:  # fs_write made the folder anew in between
                shutil.rmtree(real, ignore_errors=True)
            else:
                return

    def to_folder() -> None:
        real.rename(link)
        while True:
            try:
                spare.rename(real)
            except OSError:
                shutil.rmtree(real, ignore_errors=True)
            else:
                return

    with flipping(to_link, to_folder):
        _race("folder/file.txt")


def test_a_file_swapped_for_a_link_during_use_leads_nowhere(outside: Path, workspace: Path) -> None:
    target, spare, link = (workspace / name for name in ("file.txt", "spare", "link"))

    def to_link() -> None:
        link.symlink_to(outside)
        link.replace(target)

    def to_file() -> None:
        spare.write_text("the secret inside\n")
        spare.replace(target)

    with flipping(to_link, to_file):
        _race("file.txt")


WRITES = {name: act for name, act in EVERY_TOOL.items() if name not in ("fs_read", "fs_grep")}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("folder", ["", "package", "lib/inner"])
def test_nothing_is_written_where_the_worker_imports_code(
    write: Act, folder: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run with the worker's rights, in this process or the next."""
    monkeypatch.syspath_prepend(str(workspace / folder.partition("/")[0]))
    (workspace / folder).mkdir(parents=True, exist_ok=True)
    file = workspace / folder / "secrets.py"
    file.write_text("secret\n")
    with pytest.raises(ToolError, match="whose code the worker or git runs"):
        write(f"{folder}/secrets.py".lstrip("/"))
    assert file.read_text() == "secret\n"
    assert "secret" in fs_read(path=f"{folder}/secrets.py".lstrip("/"))


def test_nothing_is_written_beside_a_module_that_is_loaded(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("toolpool_test_tools")
    module.__file__ = str(workspace / "tools" / "shop.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ToolError, match="whose code the worker or git runs"):
        fs_write(path="tools/shop.py", content="import os")
    fs_write(path="notes/shop.py", content="import os")


def test_nothing_is_written_for_git_to_run(workspace: Path) -> None:
    with pytest.raises(ToolError, match="whose code the worker or git runs"):
        fs_write(path="project/.git/hooks/pre-commit", content="#!/bin/sh")
