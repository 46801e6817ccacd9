"""The lock file: whole, hashed, and the same wherever it was made."""

import re
import tomllib

from tests.conftest import REPOSITORY

LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
# Each with all that belongs to it: its markers, its hashes, and who wants it, on indented lines.
REQUIREMENTS = re.findall(r"^([\w.-]+)==(\S+)(.*(?:\n .*)*)", LOCK, re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_nothing_in_it_tells_where_it_was_made() -> None:
    found = [line for line in LOCK.splitlines() if re.search(r"://|^-|@ |(^|\s)/\w", line)]
    assert not found


def test_every_package_in_it_is_held_to_its_hashes() -> None:
    assert len(REQUIREMENTS) > 20
    assert not [name for name, _, rest in REQUIREMENTS if "--hash=sha256:" not in rest]


def test_it_has_every_dependency_of_the_project() -> None:
    project = PROJECT["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in wanted}
    missing = names - {normal(name) for name, _, _ in REQUIREMENTS}
    assert not missing, f"run `make lock`: {sorted(missing)}"


def test_the_build_backend_is_the_one_that_is_installed() -> None:
    [backend] = PROJECT["build-system"]["requires"]
    assert backend in PROJECT["project"]["optional-dependencies"]["dev"]
    assert backend in {f"{name}=={version}" for name, version, _ in REQUIREMENTS}


def test_it_is_the_only_lock() -> None:
    assert not (REPOSITORY / "uv.lock").exists()
