"""A rejection's text is read back to what it was made of (R43)."""

import pytest

from tests.unit.dispatcher.words.test_feedback import EDIT, FAULTY, STYLES, problems
from toolpool.contract.schema.problem import Problem
from toolpool.dispatcher.analytics import fields_of
from toolpool.dispatcher.words import feedback, locales
from toolpool.dispatcher.words.feedback import Wording
from toolpool.dispatcher.words.hindsight import fields_named

TOLD = [problem for problem in problems(EDIT, FAULTY)[:5] if problem.kind != "type"]
MISTYPED = [problem for problem in problems(EDIT, FAULTY)[:5] if problem.kind == "type"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("locale", locales.names())
def test_every_style_in_every_language_is_read_back(style: str, locale: str) -> None:
    text = feedback.invalid_arguments(problems(EDIT, FAULTY), Wording(style=style, locale=locale))
    named = fields_named(text)
    assert len(named) == 5
    assert set(fields_of(TOLD)) <= set(named)
    # The pointer style does not say what came, so that a wrong type is like any other limit.
    kind = "named" if style == "pointer" else "type"
    assert {(path, kind) for path, _ in fields_of(MISTYPED)} <= set(named)


def test_a_limit_is_only_known_to_be_named() -> None:
    text = feedback.invalid_arguments([Problem(("a", 0, "b"), "minimum", "3", "integer")])
    assert fields_named(text) == [("a.*.b", "named")]


@pytest.mark.parametrize(
    "text",
    ["", "no", "Tool 'x' not found.", "Invalid parameters: ", "Invalid parameters: {", "a: b"],
)
def test_other_texts_name_nothing(text: str) -> None:
    assert fields_named(text) == []
