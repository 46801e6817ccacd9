"""The rule that the automatic key check holds every other test to."""

import pytest

from tests.integration.conftest import may_stay


@pytest.mark.parametrize(
    ("key", "kind", "stays"),
    [
        ("toolpool:epoch", "string", True),
        ("team:epoch", "string", True),
        ("toolpool:call:epoch", "hash", False),
        ("toolpool:reply:d-1", "stream", False),
        ("toolpool:cancel:w-1", "list", False),
        ("toolpool.default.loop", "list", True),
        ("toolpool.default.loop", "hash", False),
        ("_kombu.binding.toolpool.default.loop", "set", True),
        ("_kombu.binding_deadlines", "zset", True),
    ],
)
def test_only_few_keys_may_stay_for_ever(key: str, kind: str, stays: bool) -> None:
    assert may_stay(key, kind) is stays
