"""The documents: what they name is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import DATA_VARIABLE, REPOSITORY
from toolpool.contract.setting_files import IN_FILES
from toolpool.contract.settings import Settings

DOCUMENTS = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").rglob("*.md"),
    ]
)
DEPLOYMENT = sorted(path for path in (REPOSITORY / "deploy").rglob("*") if path.is_file())
SOURCES = sorted(
    path
    for package in ("contract", "dispatcher", "workers", "toolpool")
    for path in (REPOSITORY / package).rglob("*.py")
)
SETTINGS = {f"TOOLPOOL_{name.upper()}" for name in Settings.model_fields}
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)|[`*]", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_there_is_a_readme_and_a_change_log() -> None:
    assert {"README.md", "CHANGELOG.md"} <= {of(path) for path in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=of)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\(<?([^)\s>]+)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or not target.is_relative_to(REPOSITORY):
            broken.append(link)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{link} (no such heading)")
    assert not broken


def test_the_readme_s_line_installs_the_checkout_that_its_reader_stands_in() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    folders = re.findall(r"pip install (\.\S*?)`", text)
    assert folders
    for folder in folders:
        assert (REPOSITORY / folder / "pyproject.toml").is_file(), folder


@pytest.mark.parametrize("path", SOURCES, ids=of)
def test_no_message_names_a_document_that_is_not_installed(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    named = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"\bdocs/\w", node.value)
        and id(node) not in docstrings
    ]
    assert not named


@cache
def variables() -> set[str]:
    """Every variable that something reads: the settings, and what a constant in the code names."""
    constants = (
        re.findall(r'^_?[A-Z_]+ = "(TOOLPOOL_[A-Z_]+)"', path.read_text(encoding="utf-8"), re.M)
        for path in SOURCES
    )
    in_files = {f"TOOLPOOL_{name.upper()}_FILE" for name in IN_FILES}
    return SETTINGS.union(*constants, in_files, {DATA_VARIABLE})


@pytest.mark.parametrize("path", [*DOCUMENTS, *DEPLOYMENT, *SOURCES], ids=of)
def test_every_variable_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"\bTOOLPOOL_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    assert named <= variables(), sorted(named - variables())


def test_every_setting_is_explained() -> None:
    explained = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    missing = [name for name in sorted(SETTINGS) if not re.search(rf"\b{name}\b", explained)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=of)
def test_every_make_target_that_is_named_exists(document: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(
        re.findall(r"(?:`|^\$? *)make ([a-z-]+)", document.read_text(encoding="utf-8"), re.M)
    )
    assert named <= targets, sorted(named - targets)
