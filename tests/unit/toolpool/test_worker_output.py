"""What workers of this process write is shown as they do."""

import io
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until
from toolpool.worker_output import Echo


def shown_from_now_on(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error; pytest puts its own in place as the body of a test begins."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_whole_lines_are_shown_as_they_come_and_the_rest_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_from_now_on(monkeypatch)
    with (tmp_path / "log").open("w+b", buffering=0) as file:
        echo = Echo([file])
        file.write("first\nsecond, begun ä".encode()[:-1])
        wait_until(lambda: shown.getvalue() == "first\n", "the whole line is shown")
        file.write("ä".encode()[-1:] + b", ended\nthird")
        wait_until(lambda: shown.getvalue().endswith("ended\n"), "the second is")
        echo.close()
    assert shown.getvalue() == "first\nsecond, begun ä, ended\nthird\n"


def test_several_files_do_not_mix_within_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_from_now_on(monkeypatch)
    with (
        (tmp_path / "a").open("w+b", buffering=0) as one,
        (tmp_path / "b").open("w+b", buffering=0) as other,
    ):
        echo = Echo([one, other])
        one.write(b"from a, ")
        other.write(b"from b\n")
        one.write(b"too\n")
        echo.close()
    assert sorted(shown.getvalue().splitlines()) == ["from a, too", "from b"]


@pytest.mark.parametrize("broken", [None, "closed"])
def test_where_nothing_can_be_shown_nothing_is_harmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if broken else None)
    with (tmp_path / "log").open("w+b", buffering=0) as file:
        echo = Echo([file])
        file.write(b"a line\n")
        echo.close()


def test_a_file_that_is_closed_first_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_from_now_on(monkeypatch)
    with (tmp_path / "log").open("w+b", buffering=0) as file:
        file.write(b"a line\n")
        echo = Echo([file])
        wait_until(shown.getvalue, "it is shown")
    echo.close()
    assert shown.getvalue() == "a line\n"
