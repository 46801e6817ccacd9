"""What both sides of the metrics share: bounded labels, and how long a loop has not turned."""

import pytest

from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.families import LabelLimit, stall_seconds


def test_so_many_values_have_a_label_of_their_own_and_the_rest_share_one() -> None:
    limit = LabelLimit(2)
    labels = [limit.of(name) for name in ("a", "b", "c", "d", "a")]
    assert labels == ["a", "b", "other", "other", "a"]


def test_the_time_since_the_last_turn_is_told_beyond_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(families.time, "monotonic", lambda: 100.4)
    assert stall_seconds(100.0) == 0.0
    monkeypatch.setattr(families.time, "monotonic", lambda: 104.5)
    assert stall_seconds(100.0) == 4.0
