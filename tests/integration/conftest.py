"""Every key a test leaves behind must expire, or be one of the few that may stay."""

import re
from collections.abc import Iterator

import pytest
import redis

from toolpool.contract.redis_keys import KEYS_WITHOUT_EXPIRY

# kombu's own: its bindings, and a queue that is not empty.
_KOMBU_KEY = re.compile(r"_kombu\.binding(_permanent)?\..*|_kombu\.binding_deadlines")


@pytest.fixture(autouse=True)
def no_key_stays_for_ever(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look after each test that uses the shared server, once what it started has stopped."""
    if "redis_url" not in request.fixturenames:
        yield
        return
    url: str = request.getfixturevalue("redis_url")
    yield
    with redis.Redis.from_url(url, decode_responses=True) as client:
        leaked = [key for key in client.scan_iter() if client.ttl(key) == -1]
        leaked = [key for key in leaked if not may_stay(key, client.type(key))]
    assert not leaked, f"keys without an expiry, and not in KEYS_WITHOUT_EXPIRY: {sorted(leaked)}"


def may_stay(key: str, kind: str) -> bool:
    """Whether a key may live for ever: one of ours by its kind, or one of kombu's."""
    if _KOMBU_KEY.fullmatch(key):
        return True
    _prefix, colon, rest = key.partition(":")
    if not colon:
        return kind == "list"  # a queue: our own keys all have a prefix
    return rest.split(":")[0] in KEYS_WITHOUT_EXPIRY
