"""`toolpool call`: what it asks for and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import FakeDispatcher, Ran
from toolpool.cli.call import exit_code
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult

Run = Callable[..., Ran]


def test_a_success_prints_what_the_model_would_read(toolpool: Run, fake: FakeDispatcher) -> None:
    ran = toolpool("call", "add", '{"a": 1}')
    assert (ran.code, ran.out, ran.err) == (0, '{"a":1}\n', "")


def test_json_prints_the_payload(toolpool: Run, fake: FakeDispatcher) -> None:
    ran = toolpool("call", "add", '{"a": 1}', "--json")
    assert json.loads(ran.out) == {"id": "call-1", "name": "add", "ok": True, "data": {"a": 1}}


def test_a_failure_prints_its_payload_and_its_code(toolpool: Run, fake: FakeDispatcher) -> None:
    ran = toolpool("call", "fail")
    assert ran.code == 1
    assert json.loads(ran.out)["errorType"] == "logical"
    assert ran.err == "toolpool: logical.reported, executed: yes\n"


def test_arguments_come_from_a_file(toolpool: Run, fake: FakeDispatcher, tmp_path: Path) -> None:
    path = tmp_path / "arguments.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 2}')
    assert toolpool("call", "add", f"@{path}").out == '{"a":2}\n'
    ran = toolpool("call", "add", f"@{tmp_path}/absent")
    assert ran.code == 2
    assert "cannot read the arguments from" in ran.err


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.INVALID_ARGUMENTS, 3),
        (Code.UNKNOWN_TOOL, 3),
        (Code.RAISED, 1),
        (Code.REPORTED, 1),
        (Code.CANCELLED, 1),
        (Code.TIMEOUT, 4),
        (Code.EXPIRED, 4),
        (Code.QUEUE_UNREACHABLE, 5),
        (Code.WORKER_LOST, 1),
    ],
)
def test_the_exit_code_says_how_a_call_ended(code: Code, expected: int) -> None:
    result = ToolResult(call_id="c", name="n", ok=False, code=code, executed=Executed.NO)
    assert exit_code(result) == expected
