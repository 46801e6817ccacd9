"""Tool names that a provider refuses: mapped for it, and back (R40)."""

import re

import pytest
from hypothesis import given, strategies as st

from toolpool.cli.running import command
from toolpool.dispatcher.dispatch import Dispatcher
from toolpool.dispatcher.formats import (
    FORMATS,
    offered_name as alias,
    tools_by_offered_name as originals,
)
from toolpool.dispatcher.turn_result import TurnResult

PROVIDERS = ["anthropic", "openai_chat", "openai_responses", "gemini", "bedrock", "mcp"]
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=128)


@pytest.mark.parametrize(
    ("name", "format", "expected"),
    [
        ("search_orders", "anthropic", "search_orders"),
        ("mcp__files__read", "bedrock", "mcp__files__read"),
        ("files.read", "gemini", "files.read"),
        ("files.read", "mcp", "files.read"),
        ("files.read", "bare", "files.read"),
        ("files.read", "anthropic", r"files_read_[0-9a-f]{6}"),
        ("files/read", "gemini", r"files_read_[0-9a-f]{6}"),
        ("9lives", "gemini", r"_9lives_[0-9a-f]{6}"),
        ("9lives", "anthropic", "9lives"),
        ("搜索", "openai_chat", r"___[0-9a-f]{6}|____[0-9a-f]{6}"),
        ("n" * 65, "openai_responses", r"n{56}_[0-9a-f]{6}"),
    ],
)
def test_names_as_offered(name: str, format: str, expected: str) -> None:
    assert re.fullmatch(expected, alias(name, format))


@given(NAMES, st.sampled_from(PROVIDERS))
def test_every_alias_is_taken_and_leads_back(name: str, format: str) -> None:
    other = alias(name, format)
    assert FORMATS[format].TOOL_NAMES.fullmatch(other)
    assert alias(other, format) == other
    assert originals([name]).get(other, other) == name


def test_names_that_differ_only_in_what_is_refused_stay_apart() -> None:
    names = ["a.b", "a/b", "a:b", "a_b", "x" * 70, "x" * 71]
    for format in PROVIDERS:
        assert len({alias(name, format) for name in names}) == len(names)


def test_every_format_is_named_where_users_look() -> None:
    helped = command.Format.__metadata__[0].help  # type: ignore[attr-defined]
    for told in (Dispatcher.tools.__doc__, TurnResult.messages.__doc__, helped):
        for name, module in FORMATS.items():
            for word in (name, *module.ALIASES):
                assert re.search(rf"\b{word}\b", told or ""), word
