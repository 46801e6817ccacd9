"""Tools in the catalog, beside those of strangers, older versions, and what operators take out."""

import time
from collections.abc import Iterator

import pytest
import redis

from toolpool.contract.envelope import CatalogEntry, Envelope
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import CATALOG_TTL_SECONDS, ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.fleet_reader import remove_tool
from toolpool.workers.catalog_publisher import CatalogPublisher

OLD = sealed(ToolSpec(name="search", timeout=5.0))
NEW = sealed(ToolSpec(name="search", timeout=9.0))
OURS = Envelope(Keyring.local())
THEIRS = Envelope(Keyring([generate_key()]))


@pytest.fixture
def client(redis_url: str) -> "Iterator[redis.Redis]":
    with redis.Redis.from_url(redis_url) as made:
        yield made


def shelf(client: "redis.Redis", *specs: ToolSpec, envelope: Envelope = OURS) -> CatalogPublisher:
    made = CatalogPublisher(client, specs, envelope=envelope, settings=Settings())
    made.stock(b"", time.time())
    return made


def version(client: "redis.Redis") -> bytes:
    return bytes(client.get(RedisKeys().catalog_version) or b"")  # type: ignore[arg-type]


def offered(client: "redis.Redis", **live: frozenset[str]) -> dict[str, str]:
    """What a dispatcher with our key offers: digests by name."""
    catalog = Catalog()
    catalog.follow_live(live)
    catalog.replace_published(client.hvals(RedisKeys().catalog), OURS)  # type: ignore[arg-type]
    return {name: offer.spec.digest for name, offer in catalog.listed.items()}


def test_an_unknown_caller_takes_no_place(client: "redis.Redis") -> None:
    """R63: with the same tools, and another key."""
    ours = shelf(client, OLD)
    shelf(client, OLD, NEW, envelope=THEIRS)
    assert offered(client) == {"search": OLD.digest}
    client.delete(RedisKeys().catalog)
    shelf(client, OLD, envelope=THEIRS)
    assert offered(client) == {}
    ours.stock(version(client), time.time())
    assert offered(client) == {"search": OLD.digest}


def test_republishing_an_older_version_does_not_replace_a_newer_one(client: "redis.Redis") -> None:
    """R63: an old worker that starts again, or puts back what was lost, is no news."""
    old, new = shelf(client, OLD), shelf(client, NEW)
    shelf(client, OLD)
    assert offered(client) == {"search": NEW.digest}
    client.delete(RedisKeys().catalog)
    for one in (new, old):
        one.stock(b"", time.time())
    assert offered(client) == {"search": NEW.digest}


def test_of_all_versions_those_that_run_come_first(client: "redis.Redis") -> None:
    """A release that was taken back is not offered for a week."""
    shelf(client, OLD)
    shelf(client, NEW)
    assert offered(client, search=frozenset({OLD.digest})) == {"search": OLD.digest}
    assert offered(client, search=frozenset({OLD.digest, NEW.digest})) == {"search": NEW.digest}


def test_what_an_operator_took_out_stays_out_until_a_worker_starts(
    client: "redis.Redis", redis_url: str
) -> None:
    ours = shelf(client, OLD)
    ours.stock(version(client), time.time())
    assert remove_tool(Settings(redis_url=redis_url), "search") == 1
    ours.stock(version(client), time.time())
    assert offered(client) == {}
    shelf(client, OLD)
    assert offered(client) == {"search": OLD.digest}


def test_entries_age_one_by_one(client: "redis.Redis") -> None:
    other = sealed(ToolSpec(name="other"))
    shelf(client, OLD)
    later = time.time() + CATALOG_TTL_SECONDS + 1.0
    CatalogPublisher(client, [other], envelope=OURS, settings=Settings()).stock(b"", later)
    assert offered(client) == {"other": other.digest}


def test_workers_that_start_together_agree(client: "redis.Redis") -> None:
    """Each made an entry before it saw the other's: the older one stays, and they are quiet."""
    settings, now = Settings(), time.time()
    one, other = (
        CatalogPublisher(client, [OLD], envelope=OURS, settings=settings) for _ in range(2)
    )
    field = RedisKeys.catalog_field(OLD.name, OLD.digest, OURS.key_id)
    other.stock(b"", now + 0.5)
    client.delete(RedisKeys().catalog)
    one.stock(b"", now)
    for _ in range(2):
        for each in (one, other):
            each.stock(version(client), now + 1.0)
    before = version(client)
    for each in (one, other):
        each.stock(b"", now + 2.0)
    assert version(client) == before
    body = client.hget(RedisKeys().catalog, field)
    assert isinstance(body, bytes)
    assert OURS.decode(CatalogEntry, body).published_at == now
