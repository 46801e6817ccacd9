"""What a declaration says for providers alone, and what it refuses."""

from typing import Any

import msgspec
import pytest

from toolpool import tool
from toolpool.contract.errors import ToolDeclarationInvalid


async def find(query: str, limit: int = 10) -> Any:
    """Find it."""


def test_the_options_are_in_the_spec_as_they_were_given() -> None:
    spec = tool(
        title="Find orders",
        strict=True,
        defer_loading=True,
        allowed_callers=["direct", "code_execution_20260120", "direct"],
        input_examples=[{"query": "a"}, {"query": "b", "limit": 2}],
    )(find).spec
    assert (spec.title, spec.strict, spec.defer_loading) == ("Find orders", True, True)
    assert spec.allowed_callers == ("direct", "code_execution_20260120")
    assert spec.input_examples == ({"query": "a"}, {"query": "b", "limit": 2})
    assert msgspec.convert(msgspec.to_builtins(spec), type(spec)) == spec


def test_what_is_not_said_is_not_written() -> None:
    """Digests of tools that say nothing stay what they were."""
    plain = tool(find).spec
    empty: dict[str, Any] = {
        "title": None, "strict": False, "defer_loading": False, "allowed_callers": [],
        "input_examples": (),
    }  # fmt: skip
    assert tool(**empty)(find).spec == plain
    assert not set(empty) & set(msgspec.to_builtins(plain))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"title": 3}, "title is a text for people, not 3"),
        ({"title": " "}, "title is a text for people, not ' '"),
        ({"strict": "yes"}, "strict is True or False, not 'yes'"),
        ({"defer_loading": 1}, "defer_loading is True or False, not 1"),
        ({"allowed_callers": "direct"}, "allowed_callers is a list of 'direct', 'programmatic'"),
        ({"allowed_callers": ["anybody"]}, "'code_execution_YYYYMMDD' (Anthropic), not ['any"),
        ({"allowed_callers": [3]}, "allowed_callers is a list of"),
        ({"input_examples": {"query": "a"}}, "input_examples is a list of arguments"),
        ({"input_examples": ["a"]}, "input_examples is a list of arguments"),
        ({"input_examples": [{"query": float("nan")}]}, "each a dict that JSON can hold"),
        ({"input_examples": [{"query": "a"}, {"query": 3}]},
         "example 2 of input_examples does not fit the tool's schema, first at query (type)"),
        ({"input_examples": [{}]}, "first at query (required)"),
        ({"strict": True, "validate": "off"}, "strict=True needs a schema, and validate is off"),
    ],
    ids=str,
)  # fmt: skip
def test_an_option_that_cannot_be_meant_is_refused_by_its_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolDeclarationInvalid) as caught:
        tool(**options)(find)
    assert str(caught.value).startswith(f"tool 'find' in {__name__}: ")
    assert message in str(caught.value)


def test_a_tool_that_cannot_be_strict_says_which_part_of_it() -> None:
    async def store(values: dict[str, int]) -> None: ...

    with pytest.raises(ToolDeclarationInvalid) as caught:
        tool(strict=True)(store)
    assert str(caught.value).endswith(
        "strict=True is not possible: values takes fields that it does not name; change it, or "
        "leave strict out"
    )


def test_without_a_schema_examples_need_only_be_objects() -> None:
    spec = tool(validate="off", input_examples=[{"query": 3}])(find).spec
    assert spec.input_examples == ({"query": 3},)
