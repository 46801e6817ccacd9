"""`toolpool run` with everything real: embedded server, workers, pipes and signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = '''
import asyncio
from toolpool import tool

@tool
async def echo(text: str) -> str:
    """Say it back."""
    return text

@tool(timeout=60)
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"

@tool
def crash() -> None:
    """End the process."""
    import os
    os._exit(3)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A current directory with tools."""
    (tmp_path / "shop_tools.py").write_text(TOOLS)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}


@contextmanager
def started(folder: Path, *argv: str, **more: str) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-m", "toolpool", *argv],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ran(
    folder: Path, *argv: str, stdin: str = "", **more: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "toolpool", *argv],
        cwd=folder,
        env=environment(**more),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=50,
    )


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"id": f"{name}-1", "name": name, "input": arguments}) + "\n"


def test_a_file_is_answered_on_workers_of_its_own(folder: Path) -> None:
    lines = [
        json.dumps(
            {
                "type": "message",
                "content": [
                    {"type": "tool_use", "id": "t1", "name": "echo", "input": {"text": "hi"}},
                    {"type": "tool_use", "id": "t2", "name": "echo", "input": {}},
                ],
            }
        ),
        "no json",
        call("crash").strip(),
        call("nap", seconds="long").strip(),
    ]
    (folder / "turns.jsonl").write_text("\n".join(lines))
    done = ran(
        folder, "run", "turns.jsonl", "--tools", "shop_tools.py", "--out", "out.jsonl", "--json"
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [block["is_error"] for block in answers[0][0]["content"]] == [False, True]
    assert answers[0][0]["content"][0]["content"] == "hi"
    assert answers[1][0]["errorType"] == "validation"
    assert answers[2][0]["code"] == "runtime.crashed"
    assert answers[3][0]["code"] == "validation.arguments"
    summary = json.loads(done.stderr.splitlines()[-1])
    assert (summary["turns"], summary["total"]["calls"]) == (4, 4)
    assert ran(folder, "run", "turns.jsonl", "--tools", "shop_tools", "--strict").returncode == 1


def test_a_pipe_is_answered_while_it_is_open_and_ctrl_c_keeps_what_is_done(folder: Path) -> None:
    with started(folder, "run", "--tools", "shop_tools.py", "--json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for text in ("one", "two"):
            process.stdin.write(call("echo", text=text))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())[0]["data"] == text
        process.stdin.write(call("nap", seconds=50) + call("echo", text="three"))
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        rest = [json.loads(line) for line in process.stdout.read().splitlines()]
        assert [messages[0]["data"] for messages in rest] == ["three"]
        told = process.stderr.read().splitlines()
        summary = json.loads(told[-1])
        assert (summary["turns"], summary["interrupted"]) == (3, True)
        assert summary["cancelled_lines"] == [3]
        assert told[0] == "toolpool: the calls of line 3 were cancelled and have no answer"


def test_a_reader_that_ends_ends_the_run_quietly(folder: Path) -> None:
    (folder / "many.jsonl").write_text(call("echo", text="x") * 2_000)
    script = (
        f"{sys.executable} -m toolpool run many.jsonl --tools shop_tools.py | head -n 1; "
        'echo "${PIPESTATUS[0]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
    )
    line, code = done.stdout.splitlines()
    assert json.loads(line)[0]["data"] == "x"
    assert (code, done.stderr) == ("141", "")


def test_tools_that_cannot_be_loaded_are_one_line(folder: Path) -> None:
    (folder / "broken_tools.py").write_text("import nothing_of_this_name\n")
    done = ran(folder, "run", "--tools", "broken_tools.py", stdin=call("echo", text="x"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("toolpool: ")
    assert "nothing_of_this_name" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.timeout(200)  # three runs, with a fleet each
def test_file_tools_work_on_a_copy_or_the_folder_itself(folder: Path) -> None:
    workspace = folder / "my workspace"
    workspace.mkdir()
    write = call("fs_write", path="note.txt", content="hello")
    for _ in range(2):
        done = ran(folder, "run", "--workspace-copy", str(workspace), stdin=write)
        assert json.loads(done.stdout)[0]["ok"] is True, done.stdout
        assert list(workspace.iterdir()) == []
    done = ran(folder, "run", "--workspace", str(workspace), stdin=write)
    assert json.loads(done.stdout)[0]["ok"] is True, done.stdout
    assert (workspace / "note.txt").read_text().strip() == "hello"


def test_every_recorded_response_is_answered_call_by_call_in_order(
    folder: Path, shared_data: Path
) -> None:
    rows = [
        json.loads(line)
        for line in (shared_data / "provider_responses.jsonl").read_text().splitlines()
    ]
    rows = [row for row in rows if row["format"] in ("anthropic", "openai_chat")]
    schemas = {t["name"]: t["input_schema"] for row in rows for t in row["tools"]}
    (folder / "recorded_tools.py").write_text(
        "import json\nfrom toolpool import tool\n"
        "async def answer(arguments: dict) -> str:\n    return 'done'\n"
        f"for name, schema in json.loads({json.dumps(json.dumps(schemas))}).items():\n"
        "    globals()['tool_' + name] = tool(name=name, description=name, "
        "input_schema=schema)(answer)\n"
    )
    (folder / "turns.jsonl").write_text("".join(json.dumps(r["response"]) + "\n" for r in rows))
    done = ran(folder, "run", "turns.jsonl", "--tools", "recorded_tools.py", "--json")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(rows)
    for row, messages in zip(rows, answers, strict=True):
        assert _answered(messages) == _asked(row), row["response"]


def _asked(row: dict[str, Any]) -> list[str]:
    response = row["response"]
    if row["format"] == "anthropic":
        return [block["id"] for block in response["content"] if block["type"] == "tool_use"]
    return [call["id"] for call in response["choices"][0]["message"].get("tool_calls") or ()]


def _answered(messages: list[dict[str, Any]]) -> list[str]:
    return [
        block["tool_use_id"] if message["role"] == "user" else message["tool_call_id"]
        for message in messages
        for block in (message["content"] if message["role"] == "user" else [message])
    ]


@pytest.mark.long
def test_a_second_run_of_a_session_runs_nothing_twice(folder: Path, redis_url: str) -> None:
    counted = folder / "counted.txt"
    (folder / "shop_tools.py").write_text(
        "from toolpool import tool\n"
        "@tool\nasync def count() -> int:\n"
        f"    with open({str(counted)!r}, 'a') as file:\n        file.write('x')\n"
        "    return 1\n"
    )
    with started(folder, "worker", "--tools", "shop_tools.py", TOOLPOOL_REDIS_URL=redis_url):
        wait_until(
            lambda: ran(folder, "status", TOOLPOOL_REDIS_URL=redis_url).returncode == 0,
            "the worker shows in the status",
            30,
        )
        for _ in range(2):
            done = ran(
                folder,
                "run",
                "--session",
                "s",
                stdin=call("count") * 3,
                TOOLPOOL_REDIS_URL=redis_url,
            )
            assert [json.loads(line)[0]["data"] for line in done.stdout.splitlines()] == [1] * 3
    assert counted.read_text() == "xxx"
