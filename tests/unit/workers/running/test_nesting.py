"""How deep results may be nested."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from toolpool.contract import encoding
from toolpool.contract.encoding import nests_deeper_than

values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\ a', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=60,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(values, st.integers(0, 12))
def test_it_counts_the_brackets_that_are_open_at_once(value: Any, levels: int) -> None:
    assert nests_deeper_than(levels, encoding.encode(value)) is (depth_of(value) > levels)


@pytest.mark.parametrize("opens", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [199, 200, 201, 990])
def test_the_limit_is_exact(opens: str, depth: int) -> None:
    closes = "]" if opens == "[" else "}"
    text = "[" + (opens * (depth - 2) + "[]" + closes * (depth - 2) + ",") * 3 + "0]"
    assert nests_deeper_than(200, text.encode()) is (depth > 200)
