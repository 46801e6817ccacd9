"""Drafts 4 to 2020-12, held to the JSON-Schema-Test-Suite's required tests (R20).

The exceptions, each by decision:

- Groups that refer to a remote document are refused when they are compiled: nothing is fetched.
  Those that merely carry a remote `$id` are not among them, and pass.
- Draft 2020-12 says that `format` is only an annotation by default. Here it is asserted in every
  draft, because a tool that declares a date wants a date.
"""

from pathlib import Path

import pytest

from tests.unit.contract.schema.suite import DRAFTS, Group, groups
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.validator import SchemaValidator


def is_by_decision(draft: str, file: str, test: str) -> bool:
    """The explained exceptions."""
    return draft == "draft2020-12" and file == "format.json" and test.endswith("by default")


def test_the_required_tests_of_every_draft_pass(shared_data: Path) -> None:
    wrong, passed = [], dict.fromkeys(DRAFTS, 0)
    refused: dict[str, Group] = {}
    for group in groups(shared_data):
        try:
            validator = SchemaValidator(group.schema)
        except ToolDeclarationInvalid as error:
            refused[str(error)] = group
            continue
        for test in group.tests:
            accepted = not validator.problems(test["data"])
            if accepted is test["valid"]:
                passed[group.draft] += 1
            elif not is_by_decision(group.draft, group.file, test["description"]):
                wrong.append((group.draft, group.file, group.name, test["description"]))
    assert wrong == []
    for reason, group in refused.items():
        assert group.fetches, (group, reason)
        assert "nothing is fetched" in reason or "Unknown meta-schema" in reason
        assert group.file in ("refRemote.json", "dynamicRef.json", "vocabulary.json")
    assert all(count > 550 for count in passed.values()), passed


@pytest.mark.parametrize("draft", DRAFTS.values())
@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("date", "2026-02-28", "2026-02-30"),
        ("date-time", "2026-02-28T12:00:00Z", "yesterday"),
        ("email", "a@example.org", "a at example"),
        ("ipv4", "192.0.2.1", "192.0.2.256"),
        ("ipv6", "2001:db8::1", "2001:db8"),
        ("hostname", "example.org", "-example-"),
        ("uri", "https://example.org/a", "not a uri"),
    ],
)
def test_the_usual_formats_are_asserted(draft: str, format: str, good: str, bad: str) -> None:
    validator = SchemaValidator({"$schema": draft, "type": "string", "format": format})
    assert validator.problems(good) == ()
    [problem] = validator.problems(bad)
    assert (problem.kind, problem.expected) == ("format", format)
    assert SchemaValidator({"format": "int32"}).problems("x") == ()  # nobody knows it


def test_the_default_draft_is_2020_12() -> None:
    prefix = {"prefixItems": [{"type": "string"}]}
    assert SchemaValidator(prefix).problems([1])
    assert not SchemaValidator({"$schema": DRAFTS["draft7"], **prefix}).problems([1])


def test_gemini_s_own_dialect_is_understood() -> None:
    validator = SchemaValidator(
        {"type": "OBJECT", "properties": {"n": {"type": "INTEGER", "nullable": True}}}
    )
    assert validator.problems({"n": 1}) == validator.problems({"n": None}) == ()
    assert validator.problems({"n": "1"})[0].expected == "integer|null"


def test_a_schema_that_refuses_without_a_message_still_refuses() -> None:
    """Two branches of `oneOf` that both take the value leave no error behind."""
    for schema in ({"oneOf": [True, True, False]}, {"oneOf": [True, True]}):
        assert [problem.kind for problem in SchemaValidator(schema).problems({})] == ["oneOf"]
