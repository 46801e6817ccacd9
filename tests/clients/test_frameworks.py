"""Tools and agents of other frameworks with real workers, in an environment that has them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.hosts import HERE, PROJECT, PROMPT, client_environment, written
from tests.conftest import REPOSITORY

PACKAGES = [
    "anthropic==2.14.0",
    "langchain-core==1.7.0",
    "langgraph==1.2.24",
    "openai-agents==0.24.0",
    "pydantic-ai-slim==2.68.0",
]
EXTRAS = PROJECT["optional-dependencies"]
CALLS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "LangChain": ("search_orders", {"customer_id": "C-1", "limit": 1}, ["O-1001"]),
    "a default": ("search_orders", {"customer_id": "C-1"}, ["O-1001", "O-1002"]),
    "a mistake": ("search_orders", {"customer": "C-1"}, ["validation.arguments", "no"]),
    "Pydantic AI": ("weather", {"city": "Oslo"}, "Sunny in Oslo"),
    "ModelRetry": (
        "weather",
        {"city": "Atlantis"},
        ["logical.reported", "yes", "There is no such city: name another one."],
    ),
    "OpenAI Agents": ("look", {"place": "here"}, "seen: here"),
    "a child process": ("halve", {"number": 4}, 2.0),
    "ToolException": ("halve", {"number": 0}, ["logical.reported", "yes", "nothing to halve"]),
    "LangChain's types": ("halve", {"number": 3}, ["validation.arguments", "no"]),
    "an exception": (
        "halve",
        {"number": -2},
        ["runtime.raised", "yes", "Error executing tool 'halve': RuntimeError: on purpose"],
    ),
    "Pydantic AI's types": ("double", {"number": 3}, ["validation.arguments", "no"]),
    "double": ("double", {"number": 4}, 8),
    "no failure function": (
        "fail",
        {"number": 4},
        ["runtime.raised", "yes", "Error executing tool 'fail': RuntimeError: on purpose"],
    ),
}


def run(program: str, folder: Path, given: Any = None) -> Any:
    """What a program of this folder prints, run in the environment of the frameworks."""
    packages = [*PACKAGES, *EXTRAS["worker"], *EXTRAS["cli"], *EXTRAS["local"][1:]]
    programs = client_environment("frameworks", packages)
    shutil.copy(HERE / program, folder)
    ran = subprocess.run(
        [str(programs / "python"), program],
        input=json.dumps(given),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@PROMPT
def test_one_conversation_gives_the_same_results_in_the_agents_of_all(tmp_path: Path) -> None:
    shutil.copy(HERE / "agent_tools.py", tmp_path)
    said, answers = run("agents_of_frameworks.py", tmp_path)
    assert said == ["done"] * 7
    assert len(answers) == 7
    told = {
        name: re.sub(r"[0-9a-f]{32}", "HANDLE", json.dumps(own)) for name, own in answers.items()
    }
    assert len(set(told.values())) == 1, told
    rejected, corrected, started, ended = answers["LangGraph"]
    assert json.loads(rejected)["code"] == "validation.arguments"
    assert corrected == '["O-1001"]'
    assert '"state":"RUNNING"' in started
    assert '"result":"C-1.csv"' in ended


@PROMPT
def test_tools_of_all_run_unchanged_and_are_classified(tmp_path: Path) -> None:
    written("frameworks.md", tmp_path)
    shutil.copy(HERE / "framework_tools.py", tmp_path / "more_tools.py")
    asked = [[name, given] for name, given, _ in CALLS.values()]
    loaded, (*told, refused) = run("frameworks.py", tmp_path, [*asked, ["refused", {}]])
    assert loaded == [], "a dispatcher imports no framework"
    for (case, (*_, wanted)), result in zip(CALLS.items(), told, strict=True):
        is_rejected = isinstance(wanted, list) and wanted[0] == "validation.arguments"
        assert (result[:2] if is_rejected else result) == wanted, case
    reasons = ("inject: state", "is no LangChain tool", "RunContext", "is no FunctionTool")
    for reason, words in zip(refused, reasons, strict=True):
        assert words in reason
