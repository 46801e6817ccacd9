"""What a declaration says of equal calls, and what it refuses."""

from typing import Any

import msgspec
import pytest

from toolpool import tool
from toolpool.contract.errors import ToolDeclarationInvalid


async def find(query: str) -> Any:
    """Find it."""


def test_it_is_in_the_spec_as_it_was_given() -> None:
    one = tool(effects="read", single_flight=True)(find).spec
    assert (one.is_shared, one.cached_for) == (True, 0.0)
    kept = tool(effects="read", cache_seconds=30)(find).spec
    assert (kept.is_shared, kept.cached_for) == (True, 30.0)
    assert msgspec.convert(msgspec.to_builtins(kept), type(kept)) == kept
    assert kept.digest == tool(effects="read", cache_seconds=30.0)(find).spec.digest
    assert len({one.digest, kept.digest, tool(effects="read")(find).spec.digest}) == 3


def test_what_is_not_said_is_not_written() -> None:
    """Digests of tools that say nothing stay what they were."""
    plain = tool(effects="read")(find).spec
    assert tool(effects="read", single_flight=False, cache_seconds=None)(find).spec == plain
    assert not {"single_flight", "cache_seconds"} & set(msgspec.to_builtins(plain))
    assert not plain.is_shared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"single_flight": True}, "effects='read'"),
        ({"cache_seconds": 1, "effects": "write"}, "effects='read'"),
        ({"cache_seconds": 1, "idempotent": True}, "effects='read'"),
        ({"cache_seconds": 0, "effects": "read"}, "above 0"),
        ({"cache_seconds": -1, "effects": "read"}, "above 0"),
        ({"cache_seconds": float("nan"), "effects": "read"}, "above 0"),
        ({"cache_seconds": float("inf"), "effects": "read"}, "at most"),
        ({"cache_seconds": True, "effects": "read"}, "above 0"),
        ({"cache_seconds": "30", "effects": "read"}, "above 0"),
        ({"single_flight": "yes", "effects": "read"}, "True or False"),
        ({"single_flight": True, "effects": "read", "background": True}, "background=True"),
        ({"cache_seconds": 3, "effects": "read", "approval": True}, "approval=True"),
    ],
)
def test_what_could_not_be_kept_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolDeclarationInvalid, match=said):
        tool(**options)(find)
