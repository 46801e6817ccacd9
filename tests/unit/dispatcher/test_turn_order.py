"""The stages of a turn (R32)."""

import pytest
from hypothesis import given, strategies as st

from toolpool.contract.spec import Effects
from toolpool.dispatcher.ordered_turns import stages

KINDS = {"r": Effects.READ, "w": Effects.WRITE, "u": None}


def staged(calls: str) -> str:
    return " ".join("".join(group) for group in stages(calls, KINDS.__getitem__))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("", ""),
        ("r", "r"),
        ("rrr", "rrr"),
        ("uuu", "uuu"),
        ("rur", "rur"),
        ("w", "w"),
        ("ww", "w w"),
        ("rw", "r w"),
        ("wr", "w r"),
        ("rrwrr", "rr w rr"),
        ("urwwru", "ur w w ru"),
    ],
)
def test_a_write_stands_alone(calls: str, expected: str) -> None:
    """Reads and undeclared calls run beside each other."""
    assert staged(calls) == expected


@pytest.mark.parametrize(("calls", "expected"), [("rru", "rru"), ("rrwu", "r r w u"), ("w", "w")])
def test_strict_order_makes_a_turn_with_a_write_wait_in_line(calls: str, expected: str) -> None:
    groups = stages(calls, KINDS.__getitem__, strict=True)
    assert " ".join("".join(group) for group in groups) == expected


@given(st.text("rwu", max_size=40))
def test_nothing_is_lost_or_moved(calls: str) -> None:
    groups = staged(calls).split()
    assert "".join(groups) == calls
    assert all(group == "w" or "w" not in group for group in groups)
    reads = [group for group in groups if group != "w"]
    assert len(reads) <= groups.count("w") + 1, "what need not wait for a write does not wait"
