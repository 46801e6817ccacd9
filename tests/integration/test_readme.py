"""The README does what it says: its tool, program and rejected call are run as they stand."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from toolpool import Dispatcher

TEXT = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def shop(tmp_path: Path) -> ModuleType:
    """The README's tools module."""
    (source,) = [block for block in blocks("python") if block.startswith("# shop.py")]
    file = tmp_path / "shop.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("shop", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_rejected_call_gets_the_answer_that_is_shown(shop: ModuleType) -> None:
    call, answer, *_ = (json.loads(block) for block in blocks("json"))
    async with Dispatcher.in_memory([shop]) as dispatcher:
        turn = await dispatcher.dispatch({"type": "message", "content": [call]})
        (message,) = turn.messages()
        (result,) = message["content"]
        assert result["tool_use_id"] == call["id"]
        assert json.loads(result["content"]) == answer
        corrected: dict[str, Any] = json.loads(_corrected())
        again = await dispatcher.dispatch([{"id": "2", "name": call["name"], "input": corrected}])
        assert again[0].ok


def _corrected() -> str:
    found = re.search(r"The model tries again with `(.*?)`", TEXT)
    assert found is not None
    return found[1]


def test_the_program_runs_as_it_stands(shop: ModuleType, tmp_path: Path) -> None:
    """On a server and workers of its own, from a folder with nothing but the tools module."""
    (program,) = [block for block in blocks("python") if "Dispatcher.local" in block]
    (tmp_path / "agent.py").write_text(program)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    answer = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert answer.returncode == 0, answer.stderr
    assert "O-1001" in answer.stdout
    assert "'is_error': False" in answer.stdout
