"""What a docstring says of parameters goes into the schema, and leaves the description."""

import inspect
from typing import Annotated, Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field

from toolpool import ToolContext, tool
from toolpool.workers.docstring import read_docstring

NAMES = ("query", "limit", "options", "ctx")


def read(text: str) -> tuple[str, dict[str, str]]:
    found = read_docstring(inspect.cleandoc(text), NAMES)
    return found.text, found.parameters


def test_a_google_section_becomes_descriptions() -> None:
    text, said = read(
        """Find orders.

        They are the newest first.

        Args:
            query (str): What to look for,
                in plain words.
            limit (int, optional): How many.
            **options: One of

                - a: the first
                  of two
                - b: the other
            ctx: Filled in.

        Returns:
            The orders.
        """
    )
    assert text == (
        "Find orders.\n\nThey are the newest first.\n\nReturns:\n    The orders."
    )  # fmt: skip
    assert said == {
        "query": "What to look for, in plain words.",
        "limit": "How many.",
        "options": "One of\n- a: the first of two\n- b: the other",
        "ctx": "Filled in.",
    }


def test_a_numpy_section_becomes_descriptions() -> None:
    text, said = read(
        """Find orders.

        Parameters
        ----------
        query : str
            What to look for,
            in plain words.
        limit, options : int, optional
            How many.

        Returns
        -------
        list
            The orders.
        """
    )
    assert text == "Find orders.\n\nReturns\n-------\nlist\n    The orders."
    assert said == {
        "query": "What to look for, in plain words.",
        "limit": "How many.",
        "options": "How many.",
    }


@pytest.mark.parametrize(
    ("text", "left", "said"),
    [
        ("\nArgs:\n    query: x", "", {"query": "x"}),
        ("Do.\nArgs:\n    query: x\nMore.", "Do.\n\nMore.", {"query": "x"}),
        ("Do.\n\nArgs:\n    query: x\n    that goes on", "Do.", {"query": "x that goes on"}),
        ("Do.\n\nArgs:\n    query:\n        x", "Do.", {"query": "x"}),
        ("Do.\n\nArgs:\n    query: x\n    gone: y", "Do.\n\nArgs:\n    gone: y", {"query": "x"}),
        ("Do.\n\nParameters\n---------\nquery\n    x\n\nThen rest.", "Do.\n\nThen rest.",
         {"query": "x"}),
    ],
)  # fmt: skip
def test_sections_are_taken_as_people_write_them(
    text: str, left: str, said: dict[str, str]
) -> None:
    assert read(text) == (left, said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Find orders.",
        "Args: none to speak of.",
        "Do.\n\nArgs:",
        "Do.\n\nArgs:\n",
        "Do.\n\nArgs:\n    no entry at all\n    - a list",
        "Do.\n\nArgs:\n    query:",
        "Do.\n\nArgs:\n    other: nothing of ours\n\nReturns:\n    x",
        "Do.\n\nParameters\n----------",
        "Do.\n\nParameters\n----------\nother : int\n    nothing of ours",
        "Do.\n\nAs in:\n    Args:\n        query: in an example",
        "Do.\n\n:param query: another style",
        "----------\n----------",
    ],
)
def test_what_is_no_such_section_stays_as_it_is(text: str) -> None:
    assert read(text) == (inspect.cleandoc(text), {})


_LINES = st.sampled_from(
    ["Args:", "Parameters", "-----", "query: x", "    query: x", "\tlimit (", "limit : int", "",
     "   ", "        deeper", "Returns:", "(:):", "ctx", "    *options: y"]
)  # fmt: skip


@given(st.lists(_LINES | st.text(max_size=20), max_size=12))
def test_no_docstring_breaks_it_or_loses_other_lines(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = read_docstring(text, NAMES)
    assert set(found.parameters) <= set(NAMES)
    if not found.parameters:
        assert found.text == text


class Filters(BaseModel):
    """What to leave out."""

    archived: bool = False


def test_a_tool_s_schema_has_them_and_its_own_descriptions_win() -> None:
    @tool
    async def find(
        query: str,
        limit: Annotated[int, Field(description="its own")],
        ctx: ToolContext,
        filters: Filters | None = None,
        by: Filters = Filters(),  # noqa: B008 - as authors write it
    ) -> Any:
        """Find orders.

        Args:
            query: What to look for.
            limit: Never shown.
            ctx: Never shown.
            filters: Which orders.
            by: More of it.
        """

    assert find.spec.description == "Find orders."
    assert find.spec.input_schema is not None
    fields = find.spec.input_schema["properties"]
    assert {name: field["description"] for name, field in fields.items()} == {
        "query": "What to look for.",
        "limit": "its own",
        "filters": "Which orders.",
        "by": "More of it.",
    }
    assert find.spec.input_schema["$defs"]["Filters"]["description"] == "What to leave out."


def test_a_given_description_or_schema_is_left_as_it_is() -> None:
    def find(query: str) -> Any:
        """Find.

        Args:
            query: What.
        """

    described = tool(description="Mine.\n\nArgs:\n    query: x")(find).spec
    assert described.description == "Mine.\n\nArgs:\n    query: x"
    assert described.input_schema is not None
    assert described.input_schema["properties"]["query"]["description"] == "What."
    schema = {"type": "object", "properties": {"query": {}}, "required": ["query"]}
    raw = tool(input_schema=schema)(find).spec
    assert raw.description == inspect.getdoc(find)
    assert raw.input_schema == schema
