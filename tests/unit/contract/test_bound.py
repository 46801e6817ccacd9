"""What an approval is bound to besides the arguments."""

from typing import Any

import pytest

from toolpool import ToolContext, tool
from toolpool.contract.approval_messages import digest_of
from toolpool.contract.schema.annotations import without_annotations
from toolpool.contract.spec import ToolSpec


def spec_of(**options: Any) -> ToolSpec:
    @tool(**options)
    async def pay(amount: int, ctx: ToolContext, note: str = "") -> str:
        """Pay.

        Args:
            amount: How much.
        """
        return f"{amount} {note} {ctx}"

    return pay.spec


def schema(**more: Any) -> dict[str, Any]:
    properties = {"amount": {"type": "integer"}, "note": {"type": "string", **more}}
    return {"type": "object", "properties": properties, "required": ["amount"]}


@pytest.mark.parametrize(
    "options",
    [
        {"version": "2"},
        {"effects": "write"},
        {"secrets": ["bank"]},
        {"input_schema": schema(default="paid")},
        {"input_schema": schema(enum=["description"])},
        {"input_schema": schema(const={"title": 1})},
    ],
    ids=["version", "effects", "secrets", "default", "enum", "a value with a title"],
)
def test_an_approval_holds_for_no_tool_that_does_something_else(options: dict[str, Any]) -> None:
    before = spec_of(**({"input_schema": schema()} if "input_schema" in options else {}))
    after = spec_of(**options)
    assert before.bound_digest != after.bound_digest
    assert digest_of("pay", {}, before.bound_digest) != digest_of("pay", {}, after.bound_digest)


@pytest.mark.parametrize(
    "options",
    [
        {"description": "Pay at once."},
        {"timeout": 5},
        {"title": "Payment"},
        {"input_examples": [{"amount": 1}]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_approval_holds_for_a_tool_that_is_described_in_other_words(
    options: dict[str, Any],
) -> None:
    assert spec_of().bound_digest == spec_of(**options).bound_digest


def test_what_describes_a_field_is_not_bound() -> None:
    described = spec_of(input_schema=schema(description="Why.", title="Note", examples=["x"]))
    assert described.bound_digest == spec_of(input_schema=schema()).bound_digest


def test_a_field_may_be_called_as_what_describes_one() -> None:
    named = {"type": "object", "properties": {"amount": {}, "title": {"type": "string"}}}
    bare = without_annotations(named)
    assert bare == named
