"""How long something took, as the summary says it."""

import pytest

from toolpool.cli.running.summary import _duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0004, "0.4 ms"), (0.0099, "9.9 ms"), (0.01, "10 ms"), (0.999, "999 ms"), (1.0, "1.0 s"),
     (61.26, "61.3 s")],
)  # fmt: skip
def test_a_time_has_the_unit_that_shows_most(seconds: float, said: str) -> None:
    assert _duration(seconds) == said
