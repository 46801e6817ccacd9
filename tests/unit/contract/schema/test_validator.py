"""Verdicts and paths on the calls of the Berkeley Function-Calling Leaderboard.

jsonschema is the oracle: what it accepts is accepted, and what it rejects is rejected naming the
path of its best error.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.exceptions import best_match

from toolpool.contract.schema.validator import SchemaValidator

Recorded = dict[str, Any]


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> list[Recorded]:
    with (shared_data / "bfcl_calls.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def _judged(recorded: list[Recorded], *, valid: bool) -> Iterator[tuple[Recorded, Any]]:
    for call in recorded:
        if call["valid"] is valid:
            validator = SchemaValidator(call["tool"]["input_schema"])
            yield call, validator.problems(call["arguments"])


def test_every_valid_call_is_accepted(recorded: list[Recorded]) -> None:
    rejected = [call["id"] for call, problems in _judged(recorded, valid=True) if problems]
    assert sum(call["valid"] for call in recorded) > 1000
    assert rejected == []


def test_every_invalid_call_is_rejected_where_the_oracle_says(recorded: list[Recorded]) -> None:
    """A missing or unknown field is named itself, where the oracle names the object around it."""
    count, elsewhere = 0, []
    for call, problems in _judged(recorded, valid=False):
        count += 1
        schema = call["tool"]["input_schema"]
        best = best_match(jsonschema.Draft202012Validator(schema).iter_errors(call["arguments"]))
        assert best is not None, call["id"]
        path = tuple(best.absolute_path)
        named = best.validator in ("required", "additionalProperties")
        paths = {problem.path[:-1] if named else problem.path for problem in problems}
        if path not in paths:
            elsewhere.append((call["id"], path, paths))
    assert count > 20
    assert elsewhere == []
