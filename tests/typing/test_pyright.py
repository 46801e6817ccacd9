"""The types that users get, as pyright sees them.

It is large and nothing else needs it, so it lives in an environment of its own, made here once.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import environment
from tests.manifest.test_types import APPLICATION, WRONG

VERSION = "basedpyright==1.40.2"
"""Pyright with its own Node.js, in wheels alone."""


@pytest.fixture(scope="module")
def pyright() -> str:
    return str(environment("pyright", [VERSION]) / "basedpyright")


def errors_in(pyright: str, path: Path, directory: Path) -> list[str]:
    """The rules that a file breaks in pyright's strict mode."""
    config = {"typeCheckingMode": "strict", "include": [str(path)], "pythonVersion": "3.11"}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    ran = subprocess.run(
        [pyright, "--outputjson", "-p", str(directory), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    report = json.loads(ran.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [str(each["rule"]) for each in report["generalDiagnostics"]]


@pytest.mark.timeout(300)
def test_an_application_is_well_typed(pyright: str, tmp_path: Path) -> None:
    assert errors_in(pyright, APPLICATION, tmp_path) == []


@pytest.mark.timeout(300)
def test_what_is_wrong_is_found(pyright: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    found = errors_in(pyright, wrong, tmp_path)
    assert found == ["reportArgumentType", "reportArgumentType", "reportCallIssue"]
