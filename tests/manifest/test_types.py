"""The types that users get: an application under mypy --strict, without plugins of ours."""

import subprocess
import sys
from pathlib import Path

import pytest

APPLICATION = Path(__file__).parents[1] / "typing" / "application.py"

WRONG = '''
from toolpool import Settings, SyncDispatcher, tool

@tool
def add(first: int, second: int) -> int:
    """Add."""
    return first + second

add("1", second=2)
Settings(queue_timeout="long")
SyncDispatcher.connect(nothing=1)
'''


def checked(path: Path, cache: Path) -> "subprocess.CompletedProcess[str]":
    """Outside of this project, so that its settings do not count."""
    options = ["--strict", "--config-file", "/dev/null", "--cache-dir", str(cache)]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)],
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.timeout(300)
def test_an_application_is_well_typed(tmp_path: Path) -> None:
    ran = checked(APPLICATION, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.timeout(300)
def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    ran = checked(wrong, tmp_path)
    for line in ("wrong.py:9: error", "wrong.py:10: error", "wrong.py:11: error"):
        assert line in ran.stdout, ran.stdout
    assert "Found 3 errors" in ran.stdout
