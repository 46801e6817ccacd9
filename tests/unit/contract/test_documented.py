"""What the documents say of settings and results, held against the code."""

import inspect
import re
from pathlib import Path
from typing import Any, get_overloads

import pytest

from tests.conftest import REPOSITORY
from toolpool.contract.outcome import Code, ErrorType
from toolpool.contract.settings import Settings
from toolpool.workers.tool import tool


def document(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines
    ]


def test_every_default_that_is_documented_is_the_one_that_holds() -> None:
    documented = {
        cells[0].strip("`").removeprefix("TOOLPOOL_").lower(): cells[1]
        for cells in rows(document("settings.md"))
        if cells[0].startswith("`TOOLPOOL_")
    }
    assert set(documented) == set(Settings.model_fields)
    wrong = {
        name: (said, Settings.model_fields[name].default)
        for name, said in documented.items()
        if name != "slots_process"  # depends on the machine
        and not _says(said, Settings.model_fields[name].default)
    }
    assert not wrong


def _says(said: str, default: Any) -> bool:
    if default is None or default == "":
        return said == "none"
    if isinstance(default, bool):
        return said == ("on" if default else "off")
    if isinstance(default, (int, float)):
        return float(said.replace(",", "")) == default
    return said == str(default if not isinstance(default, Path) else default.as_posix())


@pytest.mark.parametrize("kind", ErrorType)
def test_every_code_is_documented_with_its_type(kind: ErrorType) -> None:
    (row,) = [cells for cells in rows(document("results.md")) if cells[0].startswith(f"`{kind}`:")]
    said = set(re.findall(r"`(\w+)`", row[2]))
    assert said == {code.value.partition(".")[2] for code in Code if code.error_type is kind}


def test_every_option_of_a_tool_is_documented() -> None:
    signature = inspect.signature(get_overloads(tool)[-1])
    options = set(signature.parameters)
    said = set(re.findall(r"`(\w+)[=`]", document("writing-tools.md")))
    assert not options - said
