"""`toolpool tools check`: what a record shows, unions, and names that providers refuse (R43)."""

from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.conftest import Ran
from tests.unit.dispatcher.test_analytics import RECORD

Run = Callable[..., Ran]


def test_a_record_shows_what_to_improve(toolpool: Run, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text("\n".join(RECORD))
    ran = toolpool("tools", "check", "--from", str(path))
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert "edit: 2 of 4 calls were rejected; 1 of 1 were right at the first retry" in said
    assert "by model: m 1 of 1" in said
    assert "limit (type), 2 times: say in its description which type and form it takes" in said
    assert "3 lines are not valid rows of a record" in said


def test_a_record_that_is_not_there_is_one_line(toolpool: Run) -> None:
    ran = toolpool("tools", "check", "--from", "absent.jsonl")
    assert ran.code == 2
    assert "cannot read the record absent.jsonl" in ran.err
    assert ran.err.count("\n") == 1
