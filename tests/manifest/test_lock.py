"""The lock file: whole, hashed, and the same wherever it was made."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.conftest import REPOSITORY
from toolpool.contract import importing

LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
# Each with all that belongs to it: its markers, its hashes, and who wants it, on indented lines.
REQUIREMENTS = re.findall(r"^([\w.-]+)(?:\[[\w,.-]+\])?==(\S+)(.*(?:\n .*)*)", LOCK, re.MULTILINE)


EXTRAS = PROJECT["project"]["optional-dependencies"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared_in(requirements: list[str]) -> set[str]:
    """The normal names of required packages."""
    return {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


# Imported by name, though another declared package brings it and is what it belongs to.
BROUGHT_BY = {"pydantic_core": "pydantic"}


def imported(folder: Path) -> Iterator[tuple[str, Path]]:
    """The top-level module of every import, at any depth, with the file that imports it."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0], path


def test_every_package_that_the_code_imports_is_declared() -> None:
    ours = ("toolpool",)
    declared = declared_in(PROJECT["project"]["dependencies"]).union(
        *(declared_in(wanted) for extra, wanted in EXTRAS.items() if extra != "dev")
    )
    provided_by = packages_distributions()
    undeclared = {
        f"{module} in {path.relative_to(REPOSITORY)}"
        for package in ours
        for module, path in imported(REPOSITORY / package)
        if module not in sys.stdlib_module_names
        and module not in ours
        and not declared.intersection(
            map(normal, [*provided_by.get(module, ()), BROUGHT_BY.get(module, "")])
        )
    }
    assert not undeclared


def test_the_extra_that_a_message_names_brings_the_package() -> None:
    provided_by = packages_distributions()
    for module, extra in importing._EXTRAS.items():
        [package] = {normal(name) for name in provided_by[module]} & declared_in(EXTRAS[extra])
        assert package


def test_nothing_in_it_tells_where_it_was_made() -> None:
    found = [line for line in LOCK.splitlines() if re.search(r"://|^-|@ |(^|\s)/\w", line)]
    assert not found


def test_every_package_in_it_is_held_to_its_hashes() -> None:
    assert len(REQUIREMENTS) > 20
    assert not [name for name, _, rest in REQUIREMENTS if "--hash=sha256:" not in rest]


def test_it_has_every_dependency_of_the_project() -> None:
    project = PROJECT["project"]
    names = declared_in(project["dependencies"]).union(*map(declared_in, EXTRAS.values()))
    missing = names - {"toolpool"} - {normal(name) for name, _, _ in REQUIREMENTS}
    assert not missing, f"run `make lock`: {sorted(missing)}"


def test_the_build_backend_is_the_one_that_is_installed() -> None:
    [backend] = PROJECT["build-system"]["requires"]
    assert backend in PROJECT["project"]["optional-dependencies"]["dev"]
    assert backend in {f"{name}=={version}" for name, version, _ in REQUIREMENTS}


def test_it_is_the_only_lock() -> None:
    assert not (REPOSITORY / "uv.lock").exists()
