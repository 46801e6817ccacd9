"""R38: what the file tools answer, and that they change a file as a whole or not at all."""

import os
import re
import stat
import threading
from pathlib import Path

import pytest

from toolpool.contract.errors import ToolError
from toolpool.contract.spec import Effects, RunIn
from toolpool.workers.tools.files import workspace as confinement, writing
from toolpool.workers.tools.files.reading import fs_read
from toolpool.workers.tools.files.search import fs_glob, fs_grep
from toolpool.workers.tools.files.workspace import TEMPORARY
from toolpool.workers.tools.files.writing import Edit, fs_edit, fs_multi_edit, fs_write


class TestReading:
    def test_gives_the_text_as_it_is(self, workspace: Path) -> None:
        (workspace / "a.txt").write_bytes("one\r\n\ttwo ü\n".encode())
        assert fs_read(path="a.txt") == "one\n\ttwo ü"

    def test_says_how_to_go_on(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 11)))
        assert fs_read(path="a.txt", offset=4, limit=2) == (
            "4\n5\n[lines 4-5 of 10; go on with offset=6]"
        )
        assert fs_read(path="a.txt", offset=9) == "9\n10\n[lines 9-10 of 10]"

    def test_reads_from_the_end(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 11)))
        assert fs_read(path="a.txt", offset=-2) == "9\n10\n[lines 9-10 of 10]"
        assert fs_read(path="a.txt", offset=-99, limit=1) == "1\n[lines 1-1 of 10]"

    def test_names_the_length_when_the_offset_is_past_it(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("one\ntwo\n")
        with pytest.raises(ToolError, match=r"a\.txt has 2 lines"):
            fs_read(path="a.txt", offset=3)

    def test_an_empty_file_is_said_to_be_empty(self, workspace: Path) -> None:
        (workspace / "a.txt").touch()
        assert fs_read(path="a.txt") == fs_read(path="a.txt", offset=-5) == "[the file is empty]"

    def test_binary_is_refused_with_its_size(self, workspace: Path) -> None:
        (workspace / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
        with pytest.raises(ToolError, match=r"binary file \(16 bytes\)"):
            fs_read(path="a.png")

    def test_bytes_that_are_not_utf8_are_replaced(self, workspace: Path) -> None:
        (workspace / "a.txt").write_bytes(b"caf\xe9\n")
        assert fs_read(path="a.txt") == "caf\ufffd"

    def test_a_huge_file_costs_a_bounded_answer(self, workspace: Path) -> None:
        with open(workspace / "huge.log", "wb") as file:
            file.write(b"first line\n" + b"x" * 1_000_000 + b"\n" + b"line\n" * 20_000)
            file.write(b"\n")
            file.truncate(10 * 1024**3)  # sparse
        text = fs_read(path="huge.log")
        assert len(text) < 60_000
        assert text.startswith("first line\nxxx")
        assert "[… 998,000 bytes more in this line]" in text
        assert re.search(r"\[lines 1-\d+; this tool reads the first 67,108,864 bytes only\]$", text)
        with pytest.raises(ToolError, match="does not reach its end"):
            fs_read(path="huge.log", offset=-1)

    def test_a_missing_file_is_named_with_advice(self, workspace: Path) -> None:
        (workspace / "src").mkdir()
        with pytest.raises(ToolError, match=r"No such file or folder: src/a\.py") as raised:
            fs_read(path="src/a.py")
        assert "fs_glob" in raised.value.recommendations[0]

    def test_a_folder_is_named_as_one(self, workspace: Path) -> None:
        (workspace / "src").mkdir()
        with pytest.raises(ToolError, match="src is a folder"):
            fs_read(path="src")
        with pytest.raises(ToolError, match="the workspace folder itself"):
            fs_read(path=".")


class TestGlob:
    @pytest.fixture(autouse=True)
    def _tree(self, workspace: Path) -> None:
        for name in ("a.py", "b.md", "src/c.py", "src/deep/d.py", "src/deep/e.txt", ".git/x.py",
                     "node_modules/y.py", ".hidden/z.py"):  # fmt: skip
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_text(name)

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.py", "a.py"),
            ("**/*.py", ".hidden/z.py a.py src/c.py src/deep/d.py"),
            ("src/**", "src/c.py src/deep/d.py src/deep/e.txt"),
            ("src/*", "src/c.py"),
            ("**/deep/*.{py,txt}", "src/deep/d.py src/deep/e.txt"),
            ("**/**/[de].*", "src/deep/d.py src/deep/e.txt"),
            ("./src/?.py", "src/c.py"),
        ],
    )
    def test_lists_what_matches(self, pattern: str, expected: str) -> None:
        paths = fs_glob(pattern=pattern).split("\n")[:-1]
        assert " ".join(paths) == expected

    def test_patterns_are_relative_to_path(self) -> None:
        assert fs_glob(pattern="*.py", path="src") == "src/c.py\n[1 file]"

    def test_nothing_found_is_an_answer_with_a_hint(self) -> None:
        assert fs_glob(pattern="d.py") == (
            "[no file in . matches 'd.py'; '**/' in front of the pattern looks at any depth]"
        )

    def test_a_missing_folder_is_an_error(self) -> None:
        with pytest.raises(ToolError, match="No such file or folder: lib"):
            fs_glob(pattern="*", path="lib")

    def test_the_list_is_capped_and_says_so(self, workspace: Path) -> None:
        for number in range(1200):
            (workspace / f"{number:04}.csv").touch()
        lines = fs_glob(pattern="*.csv").split("\n")
        assert len(lines) == 1001
        assert lines[-1] == "[1,200 files, the first 1000 shown: use a narrower pattern]"

    def test_many_alternatives_are_refused(self) -> None:
        with pytest.raises(ToolError, match="over 64 alternatives"):
            fs_glob(pattern="{a,b}" * 20)

    def test_names_that_are_not_utf8_can_be_shown(self, workspace: Path) -> None:
        try:
            open(os.fsencode(workspace) + b"/caf\xe9.txt", "w").close()
        except OSError:
            pytest.skip("this file system takes UTF-8 names only")
        assert fs_glob(pattern="*.txt") == "caf\ufffd.txt\n[1 file]"

    def test_a_walk_is_bounded(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(confinement, "_MOST_ENTRIES", 5)
        with pytest.raises(ToolError, match="over 5 files here"):
            fs_glob(pattern="**/*")


class TestGrep:
    def test_shows_path_line_and_text(self, workspace: Path) -> None:
        (workspace / "a.py").write_text("import os\n\ndef run():\n    os.abort()\n")
        (workspace / "b.txt").write_text("nothing\r\nos here\r\n")
        assert fs_grep(pattern=r"\bos\b") == (
            "a.py:1:import os\na.py:4:    os.abort()\nb.txt:2:os here\n[3 matches in 2 files]"
        )

    def test_shows_context_once(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("1\n2x\n3\n4x\n5\n6\n7\n8\n9x\n")
        assert fs_grep(pattern="x", context=1) == (
            "a.txt-1-1\na.txt:2:2x\na.txt-3-3\na.txt:4:4x\na.txt-5-5\n--\n"
            "a.txt-8-8\na.txt:9:9x\n[3 matches in 1 file]"
        )

    def test_filters_by_glob(self, workspace: Path) -> None:
        (workspace / "src").mkdir()
        for name in ("src/a.py", "src/a.md", "b.py"):
            (workspace / name).write_text("x\n")
        assert fs_grep(pattern="x", glob="*.py") == "b.py:1:x\nsrc/a.py:1:x\n[2 matches in 2 files]"
        assert fs_grep(pattern="x", glob="src/*.py") == "src/a.py:1:x\n[1 match in 1 file]"

    def test_takes_literal_text_and_case(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("Total (EUR)\n")
        assert fs_grep(pattern="(eur)", literal=True, ignore_case=True).startswith("a.txt:1:")
        assert fs_grep(pattern="(eur)") == "[no match for '(eur)']"

    def test_a_bad_expression_is_explained(self, workspace: Path) -> None:
        with pytest.raises(ToolError, match=r"no regular expression: .*position 5") as raised:
            fs_grep(pattern="total(")
        assert "literal" in raised.value.recommendations[1]

    def test_passes_over_binary_and_says_what_was_too_large(self, workspace: Path) -> None:
        (workspace / "a.bin").write_bytes(b"x\0x")
        with open(workspace / "big.log", "wb") as file:
            file.truncate(33 * 1024 * 1024)
        assert fs_grep(pattern="x") == (
            "[no match for 'x'; 1 file over 33,554,432 bytes not searched]"
        )

    def test_the_answer_is_bounded(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("x\n" * 5000)
        (workspace / "b.txt").write_text(("y" * 5000 + "x" + "y" * 5000 + "\n") * 2000)
        assert len(fs_grep(pattern="x", path="a.txt", limit=5).split("\n")) == 6
        text = fs_grep(pattern="x", path="b.txt", limit=1000)
        assert len(text.encode()) < 60_000
        assert "there may be more" in text.split("\n")[-1]
        assert "…" in text
        assert "x" in text.split("\n")[0][8:]

    def test_runs_where_a_hopeless_expression_can_be_killed(self) -> None:
        assert fs_grep.spec.run_in is RunIn.PROCESS
        assert fs_glob.spec.run_in is RunIn.PROCESS


class TestWriting:
    def test_makes_files_and_their_folders(self, workspace: Path) -> None:
        assert fs_write(path="notes/new/a.md", content="héllo\n") == {
            "path": "notes/new/a.md",
            "bytes": 7,
            "created": True,
        }
        assert (workspace / "notes/new/a.md").read_bytes() == "héllo\n".encode()

    def test_replaces_and_keeps_the_mode(self, workspace: Path) -> None:
        (workspace / "run.sh").write_text("old")
        (workspace / "run.sh").chmod(0o750)
        assert fs_write(path="run.sh", content="new")["created"] is False
        assert stat.S_IMODE((workspace / "run.sh").stat().st_mode) == 0o750

    def test_a_folder_in_the_way_is_named(self, workspace: Path) -> None:
        (workspace / "notes").mkdir()
        (workspace / "file").touch()
        with pytest.raises(ToolError, match="notes is a folder"):
            fs_write(path="notes", content="x")
        with pytest.raises(ToolError, match="file is not a folder"):
            fs_write(path="file/x", content="x")

    def test_a_surrogate_is_refused(self, workspace: Path) -> None:
        with pytest.raises(ToolError, match="unpaired surrogate"):
            fs_write(path="a.txt", content="\ud800")
        assert os.listdir(workspace) == []

    def test_effects_are_declared(self) -> None:
        tools = (fs_read, fs_glob, fs_grep, fs_write, fs_edit, fs_multi_edit)
        assert [t.spec.effects for t in tools] == [Effects.READ] * 3 + [Effects.WRITE] * 3


class TestEditing:
    def test_replaces_the_one_occurrence(self, workspace: Path) -> None:
        (workspace / "a.toml").write_text("[server]\nport = 80\nworkers = 2\n")
        assert fs_edit(path="a.toml", old="port = 80", new="port = 8080") == {
            "path": "a.toml",
            "replacements": 1,
            "lines": [2],
        }
        assert (workspace / "a.toml").read_text() == "[server]\nport = 8080\nworkers = 2\n"

    def test_several_occurrences_need_replace_all(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("x\ny\nx\n")
        with pytest.raises(ToolError, match=r"occurs 2 times in a\.txt \(lines 1, 3\)"):
            fs_edit(path="a.txt", old="x", new="z")
        assert fs_edit(path="a.txt", old="x", new="z", replace_all=True)["replacements"] == 2
        assert (workspace / "a.txt").read_text() == "z\ny\nz\n"

    def test_text_that_is_not_there_is_said_with_a_hint(self, workspace: Path) -> None:
        (workspace / "a.py").write_text("def a():\n\treturn 1\n")
        with pytest.raises(ToolError, match=r"is not in a\.py; nothing was changed") as raised:
            fs_edit(path="a.py", old="def a():\n    return 1", new="x")
        assert raised.value.recommendations[0].startswith("Line 1 has the same text with other")

    def test_windows_line_ends_are_kept(self, workspace: Path) -> None:
        (workspace / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
        fs_edit(path="a.txt", old="one\ntwo", new="1\n2")
        assert (workspace / "a.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"

    def test_what_is_not_utf8_is_left_alone(self, workspace: Path) -> None:
        for data in (b"caf\xe9 x", b"\0 x"):
            (workspace / "a.txt").write_bytes(data)
            with pytest.raises(ToolError, match="not UTF-8 text"):
                fs_edit(path="a.txt", old="x", new="y")
            assert (workspace / "a.txt").read_bytes() == data

    def test_an_edit_cannot_blow_a_file_up(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("a" * 1_000_000)
        with pytest.raises(ToolError, match="would grow over"):
            fs_edit(path="a.txt", old="a", new="b" * 1_000_000, replace_all=True)

    def test_a_file_over_the_cap_is_not_edited(self, workspace: Path) -> None:
        with open(workspace / "a.txt", "wb") as file:
            file.truncate(1024**4)
        with pytest.raises(ToolError, match="too large to edit"):
            fs_edit(path="a.txt", old="a", new="b")


class TestMultiEdit:
    def test_edits_follow_one_another(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("one two\n")
        edits = [Edit(old="one", new="1\none"), Edit(old="one two", new="2")]
        assert fs_multi_edit(path="a.txt", edits=edits)["lines"] == [1, 2]
        assert (workspace / "a.txt").read_text() == "1\n2\n"

    def test_a_list_of_edits_is_applied_completely_or_not_at_all(self, workspace: Path) -> None:
        (workspace / "a.txt").write_text("one two\n")
        before = (workspace / "a.txt").stat()
        edits = [Edit(old="one", new="1"), Edit(old="three", new="3")]
        with pytest.raises(ToolError, match=r"edits\.1: the text to replace is not in a\.txt"):
            fs_multi_edit(path="a.txt", edits=edits)
        after = (workspace / "a.txt").stat()
        assert (workspace / "a.txt").read_text() == "one two\n"
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)

    def test_a_write_that_fails_half_way_leaves_the_old_file(
        self, workspace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (workspace / "a.txt").write_text("one\n")

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(ToolError, match="No space left on device"):
            fs_multi_edit(path="a.txt", edits=[Edit(old="one", new="two")])
        assert os.listdir(workspace) == ["a.txt"]
        assert (workspace / "a.txt").read_text() == "one\n"

    def test_a_reader_sees_the_old_or_the_new_file(self, workspace: Path) -> None:
        sizes = (400_000, 500_000)
        (workspace / "a.txt").write_text("x" * sizes[0])
        seen: set[int] = set()
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.add(len((workspace / "a.txt").read_bytes()))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(60):
            fs_write(path="a.txt", content="x" * sizes[number % 2])
        stop.set()
        reader.join()
        assert seen <= set(sizes)

    def test_edits_of_several_calls_are_all_kept(self, workspace: Path) -> None:
        names = [f"item{number:02}" for number in range(40)]
        (workspace / "a.txt").write_text("\n".join(names))
        threads = [
            threading.Thread(
                target=fs_edit, kwargs={"path": "a.txt", "old": name, "new": f"done{name[4:]}"}
            )
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (workspace / "a.txt").read_text() == "\n".join(f"done{n[4:]}" for n in names)

    def test_a_held_file_is_waited_for_and_then_said(
        self, workspace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (workspace / "a.txt").write_text("one\n")
        monkeypatch.setattr(confinement, "_LOCK_SECONDS", 0.05)
        space = confinement.Workspace(workspace)
        with space.held(space.place("a.txt")):
            with pytest.raises(ToolError, match="being changed by others") as raised:
                fs_edit(path="a.txt", old="one", new="two")
        assert raised.value.retry_after == 0.05

    def test_unfinished_writes_are_not_listed(self, workspace: Path) -> None:
        (workspace / f"{TEMPORARY}1").write_text("x")
        assert fs_glob(pattern="*").startswith("[no file")

    def test_the_schema_names_the_fields_of_an_edit(self) -> None:
        assert set(Edit.model_fields) == {"old", "new", "replace_all"}
        assert writing.fs_multi_edit.spec.input_schema is not None
