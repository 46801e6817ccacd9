"""Which tools a worker finds, and what it says of a source that it cannot load."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolpool.contract.errors import ToolsUnimportable
from toolpool.workers.tool_loading import Catalog

TOOL = "from toolpool import tool\n@tool\ndef {name}() -> str:\n    '''A tool.'''\n    return ''\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, whose modules are forgotten in the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    for package in file.parents:
        if package != Path():
            (package / "__init__.py").touch()
    file.write_text(text)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("absent_tools.py", "absent_tools"),
        ("absent_tools.py", "./absent_tools.py"),
        ("shop/absent_tools.py", "shop.absent_tools"),
        ("shop/absent_tools.py", "shop"),
        ("absent_tools/orders.py", "absent_tools"),
        ("absent_tools/orders.py", "absent_tools.orders"),
        ("shop/absentee/deep.py", "shop"),
    ],
)
@pytest.mark.parametrize("imported", ["absent", "absent.inner"])
def test_a_module_that_is_missing_is_named_not_the_one_that_imports_it(
    path: str, source: str, imported: str
) -> None:
    """`absent_tools` begins with the name of what it imports."""
    write(path, f"import {imported}\n")
    with pytest.raises(ToolsUnimportable) as raised:
        Catalog.load([source])
    assert " imports 'absent', which is not installed: install it" in str(raised.value)


@pytest.mark.parametrize(
    "source", ["absent_tools", "absent.tools", "shop.absent", "shop.orders.absent", "shop/orders"]
)
def test_a_source_that_is_not_there_is_told_as_such(source: str) -> None:
    write("shop/orders.py", TOOL.format(name="list_orders"))
    with pytest.raises(ToolsUnimportable, match="there is no tools module"):
        Catalog.load([source])


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ToolsUnimportable, match="there is no tools file ./absent.py"):
        Catalog.load(["./absent.py"])


def test_a_module_that_fails_is_reported_with_its_error() -> None:
    write("broken.py", "raise KeyError('COLOUR')\n")
    with pytest.raises(ToolsUnimportable, match="broken failed while it was imported: KeyError"):
        Catalog.load(["broken"])
    write("told.py", "class Told(BaseException): ...\n\nraise Told('hunter2')\n")
    with pytest.raises(ToolsUnimportable) as caught:
        Catalog.load(["told"])
    said = f"told failed while it was imported: Told in {Path('told.py').resolve()}, line 3: import"
    assert str(caught.value).startswith(said)
    assert "hunter2" not in str(caught.value)
    told = (
        f"told failed while it was imported: Told in {Path('told.py').resolve()}, line 3: hunter2"
    )
    assert caught.value.explained == told
    write("names.py", "from json import no_such_name\n")
    with pytest.raises(ToolsUnimportable, match="names failed.*cannot import name"):
        Catalog.load(["names"])


@pytest.mark.parametrize("source", ["shop", "shop.orders", "shop/orders.py"])
def test_modules_packages_and_files_are_found(source: str) -> None:
    write("shop/orders.py", TOOL.format(name="list_orders"))
    assert [*Catalog.load([source]).tools] == ["list_orders"]
