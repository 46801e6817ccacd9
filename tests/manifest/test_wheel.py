"""What is shipped: one package, whole, and nothing else."""

import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.manifest.builds import build

FOLDERS = {
    "toolpool": REPOSITORY / "toolpool",
    "toolpool/contract": REPOSITORY / "contract",
    "toolpool/dispatcher": REPOSITORY / "dispatcher",
    "toolpool/workers": REPOSITORY / "workers",
}
"""What becomes of the folders of the repository."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, "wheel", tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    shipped = {name for name in names(wheel) if ".dist-info/" not in name}
    ours = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == ours, f"missing {sorted(ours - shipped)}, too many {sorted(shipped - ours)}"


def test_it_is_marked_as_typed(wheel: Path) -> None:
    assert "toolpool/py.typed" in names(wheel)


def test_it_installs_one_name(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names(wheel)}
    assert tops == {"toolpool", next(top for top in tops if top.endswith(".dist-info"))}


def test_the_scripts_for_the_server_are_in_it(wheel: Path) -> None:
    scripts = {path.name for path in (REPOSITORY / "contract").rglob("*.lua")}
    assert scripts
    assert scripts == {Path(name).name for name in names(wheel) if name.endswith(".lua")}


def test_licence_and_command_are_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [entry_points] = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        [licence] = [n for n in archive.namelist() if n.endswith("licenses/LICENSE")]
        assert "toolpool = toolpool.cli:main" in archive.read(entry_points).decode()
        assert "Apache License" in archive.read(licence).decode()
