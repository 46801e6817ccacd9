"""Installed beside a project that has packages of the names of our folders, both work."""

import json
import os
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.manifest.builds import build

THEIRS = ("contract", "dispatcher", "workers")
TOOLS = """
import contract, dispatcher, workers
from toolpool import tool

@tool
async def greet(name: str) -> str:
    "Greet somebody."
    return contract.WORDS + name

@tool(run_in="process")
def part(name: str) -> str:
    "Say goodbye."
    return workers.WORDS + name
"""
CALLS = [
    {"id": "1", "name": "greet", "input": {"name": "Ann"}},
    {"id": "2", "name": "part", "input": {"name": "Bob"}},
]


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with nothing but toolpool, as built this way, and what it needs."""
    folder = tmp_path_factory.mktemp(request.param)
    built = build(REPOSITORY, request.param, folder / "built")
    if request.param == "sdist":
        with tarfile.open(built) as archive:
            archive.extractall(folder, filter="data")
        built = build(folder / built.name.removesuffix(".tar.gz"), "wheel", folder / "from_sdist")
    venv.create(folder / "venv", symlinks=True)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages)
    # Its .pth files are not read again: the checkout of an editable install is not found this way.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


def test_it_runs_beside_packages_of_the_same_names(python: Path, tmp_path: Path) -> None:
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"WORDS = 'the {name} of theirs: '\n")
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "calls.jsonl").write_text(json.dumps(CALLS) + "\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), "-m", "toolpool", "run", "calls.jsonl", "--out", "out", "--tools", "tools"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "out").read_text()
    assert "the contract of theirs: Ann" in said
    assert "the workers of theirs: Bob" in said


def test_nothing_of_ours_is_at_the_top(python: Path, tmp_path: Path) -> None:
    script = f"import importlib.util as u; print(*map(u.find_spec, {THEIRS}))"
    done = subprocess.run(
        [str(python), "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["None"] * 3
