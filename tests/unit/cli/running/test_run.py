"""`toolpool run` without a server: options, exit codes, and what goes where."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import FakeDispatcher, Ran

Run = Callable[..., Ran]


@pytest.fixture
def turns(tmp_path: Path) -> Callable[..., str]:
    """Writes an input file."""

    def write(*lines: object) -> str:
        path = tmp_path / "turns.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts))
        return str(path)

    return write


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"id": "c", "name": name, "input": arguments}


def test_every_line_is_answered_in_order(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher
) -> None:
    path = turns(call("slow", seconds=0.05), "broken", "", call("quick"), [], call("fail"))
    ran = toolpool("run", path)
    answers = [json.loads(line) for line in ran.out.splitlines()]
    assert [[m.get("name") for m in answer] for answer in answers] == [
        ["slow"],
        [None],
        ["quick"],
        [],
        ["fail"],
    ]
    assert ran.code == 0
    assert "toolpool: line 2 is not a model response" in ran.err
    assert "5 turns, 3 calls" in ran.err
    assert "1 line was no model response" in ran.err
    assert "\x1b" not in ran.err


def test_strict_exits_1_when_a_call_failed(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher
) -> None:
    assert toolpool("run", turns(call("quick")), "--strict").code == 0
    assert toolpool("run", turns(call("quick"), call("fail")), "--strict").code == 1
    assert toolpool("run", turns(call("fail"))).code == 0


def test_strict_exits_1_where_a_line_was_no_response(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher
) -> None:
    """Though every call that there was succeeded."""
    ran = toolpool("run", turns("garbage", "more garbage"), "--strict")
    assert ran.code == 1
    assert "2 lines were no model response" in ran.err
    assert toolpool("run", turns(call("quick"), "garbage"), "--strict").code == 1
    ran = toolpool("run", turns("garbage"), "--strict", "--json")
    assert (ran.code, json.loads(ran.err.splitlines()[-1])["broken_lines"]) == (1, 1)
    assert toolpool("run", turns("garbage")).code == 0
    assert toolpool("run", turns(), "--strict").code == 0


def test_out_gets_the_answers_and_stdout_stays_empty(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("an earlier run, which was longer\n" * 9)
    ran = toolpool("run", turns(call("quick")), "--out", str(out))
    assert ran.out == ""
    assert [message["name"] for message in json.loads(out.read_text())] == ["quick"]


def test_json_makes_the_closing_table_json(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher
) -> None:
    lines = [call("quick"), call("fail"), call("fail", code="aborted.timeout")]
    ran = toolpool("run", turns(*lines), "--json")
    summary = json.loads(ran.err)
    assert summary["turns"] == 3
    assert summary["total"]["ok"] == 1
    assert summary["tools"]["fail"]["logical"] == 1
    assert summary["tools"]["fail"]["aborted"] == 1
    assert summary["interrupted"] is False


def test_timeout_session_and_format_reach_the_dispatcher(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher
) -> None:
    ran = toolpool(
        "run", turns(call("quick")), "--timeout", "7", "--session", "s", "--format", "bare"
    )
    assert ran.code == 0
    assert fake.asked == [{"session": "s", "turn": "line-1", "timeout": 7.0}]


def test_concurrency_bounds_turns_in_flight(
    toolpool: Run, turns: Callable[..., str], fake: FakeDispatcher
) -> None:
    path = turns(*(call("slow", seconds=0.01) for _ in range(20)))
    toolpool("run", path, "--concurrency", "3")
    assert fake.most_running == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent.jsonl"], "cannot read absent.jsonl (No such file or directory): name"),
        (["."], "cannot read . (it is a directory)"),
        (["in", "--out", "absent/out"], "cannot write absent/out (No such file or directory)"),
        (["in", "--out", "in"], "it is the input file"),
        (["in", "--format", "gpt"], "unknown format 'gpt': use one of anthropic_agents, "),
        (["in", "--workspace", "absent"], "there is no folder absent"),
        (["in", "--workspace-copy", "absent"], "there is no folder absent"),
        (["in", "--workspace", ".", "--workspace-copy", "."], "give one of"),
        (["in", "--concurrency", "0"], "'--concurrency'"),
        (["in", "--session", "x" * 300], "it has 300 characters, at most 256"),
        (["in", "--session", ""], "it must not be empty"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_work(
    toolpool: Run,
    fake: FakeDispatcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text('{"name": "quick"}\n')
    ran = toolpool("run", *arguments)
    assert ran.code == 2
    assert ran.err.startswith("toolpool: ")
    assert ran.err.count("\n") == 1
    assert complaint in ran.err
    assert ran.out == ""
    assert fake.asked == []
    assert Path("in").read_text() == '{"name": "quick"}\n'


def test_tools_and_workspace_are_the_workers_own_where_a_url_is_set(
    toolpool: Run, turns: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", "unix:///nowhere")
    for option in (["--tools", "x"], ["--workspace", str(tmp_path)]):
        ran = toolpool("run", turns(call("quick")), *option)
        assert ran.code == 2
        assert "unset it to run with workers of this command's own" in ran.err


def test_no_server_at_the_url_exits_5(
    toolpool: Run, turns: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", f"unix://{tmp_path}/none.sock")
    out = tmp_path / "out"
    out.write_text("an earlier run\n")
    ran = toolpool("run", turns(call("quick")), "--out", str(out))
    assert ran.code == 5
    assert ran.err.startswith("toolpool: cannot reach Redis at unix://")
    assert ran.err.count("\n") == 1
    assert out.read_text() == "an earlier run\n"


def test_the_copy_of_a_workspace_is_whole_and_goes_away(
    toolpool: Run,
    turns: Callable[..., str],
    fake: FakeDispatcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = tmp_path / "workspace"
    (original / "deep").mkdir(parents=True)
    (original / "deep" / "file").write_text("text")
    (original / "link").symlink_to("deep/file")
    seen: list[Path] = []

    def look(settings: object, tools: object) -> FakeDispatcher:
        copy = settings.workspace  # type: ignore[attr-defined]
        assert (copy / "deep" / "file").read_text() == "text"
        assert (copy / "link").is_symlink()
        assert stat.S_IMODE(os.stat(copy.parent).st_mode) == 0o700
        (copy / "deep" / "file").write_text("changed")
        seen.append(copy)
        return fake

    monkeypatch.setattr("toolpool.cli.connect.connected", look)
    assert toolpool("run", turns(call("quick")), "--workspace-copy", str(original)).code == 0
    assert not seen[0].parent.exists()
    assert (original / "deep" / "file").read_text() == "text"
