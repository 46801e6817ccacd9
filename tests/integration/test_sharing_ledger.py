"""Which run equal calls share: the real server and the one in memory answer alike."""

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from tests.waiting import eventually
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim, Opening, Settlement
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.ledger.shared_runs import (
    RedisShared,
    SharedLedger,
    SharedRunAnswer,
    SharedRunRequest,
)
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.embedded import EmbeddedServer

DIGEST, OTHER = "a" * 32, "b" * 32
KEPT = 30.0


class Both(NamedTuple):
    """The notes, and the records that they name."""

    shared: SharedLedger
    records: Any

    async def open(self, key: str) -> None:
        opening = Opening(key=key, attempt=1, rerunnable=True, wait=30, deadline=30, keep=60)
        await self.records.open(
            [opening], nonce=key, reply="r", queue="q", message=b"", give_up_at=_soon()
        )

    async def settle(self, key: str, body: bytes = b"outcome") -> None:
        claim = Claim(key, 1, "nonce")
        await self.records.claim([claim], worker="w", give_up_at=_soon())
        settlement = Settlement(key, "nonce", KEPT, "r", body)
        await self.records.settle([settlement], give_up_at=_soon())

    async def ask(self, key: str, **more: Any) -> SharedRunAnswer:
        given = {"timeout": 10.0, "wait": 10.0, "cached": 5.0} | more
        (found,) = await self.shared.ask([SharedRunRequest(key[:32], key, **given)])
        return found


@pytest.fixture(params=["memory", "redis"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    if request.param == "memory":
        server = MemoryServer()
        yield Both(server.shared, server)
        return
    with EmbeddedServer() as embedded:
        client = connection.open_async(Settings(redis_url=embedded.url))
        steps = LuaScripts(client)
        yield Both(RedisShared(steps, RedisKeys()), RedisLedger(steps, RedisKeys()))
        await client.aclose()


def _soon() -> float:
    return time.monotonic() + 10.0


def new(key: str) -> SharedRunAnswer:
    return SharedRunAnswer(key, is_new=True)


async def test_the_first_takes_its_key_and_the_others_join(both: Both) -> None:
    assert await both.ask(DIGEST + "1") == new(DIGEST + "1")
    assert await both.ask(DIGEST + "2") == SharedRunAnswer(DIGEST + "1"), (
        "though it is not opened yet"
    )
    await both.open(DIGEST + "1")
    assert await both.ask(DIGEST + "3") == SharedRunAnswer(DIGEST + "1")
    assert await both.ask(OTHER + "1") == new(OTHER + "1")


async def test_many_are_answered_in_their_order(both: Both) -> None:
    asks = [
        SharedRunRequest(digest, digest + word, timeout=1, wait=1, cached=0)
        for digest, word in ((DIGEST, "1"), (OTHER, "1"), (DIGEST, "2"))
    ]
    assert await both.shared.ask(asks) == [
        new(DIGEST + "1"), new(OTHER + "1"), SharedRunAnswer(DIGEST + "1"),
    ]  # fmt: skip
    assert await both.shared.ask([]) == []


async def test_an_expired_unopened_key_is_not_joined(both: Both) -> None:
    await both.ask(DIGEST + "1", wait=0.05)

    async def is_free() -> bool:
        return (await both.ask(DIGEST + "2", wait=0.05)).is_new

    await eventually(is_free, "whoever took it is gone")


async def test_a_result_is_given_while_it_is_good(both: Both) -> None:
    await both.ask(DIGEST + "1")
    await both.open(DIGEST + "1")
    await both.settle(DIGEST + "1")
    found = await both.ask(DIGEST + "2")
    assert (found.key, found.is_new, found.outcome) == (DIGEST + "1", False, b"outcome")
    assert (await both.ask(DIGEST + "3", cached=0.0)) == new(DIGEST + "3")


async def test_the_last_retry_of_a_run_stands_for_it(both: Both) -> None:
    await both.ask(DIGEST + "1")
    await both.open(DIGEST + "1")
    await both.settle(DIGEST + "1", b"failed")
    await both.open(DIGEST + "1.1")
    assert await both.ask(DIGEST + "2") == SharedRunAnswer(DIGEST + "1.1")
    assert await both.ask(DIGEST + "2", cached=0.0) == SharedRunAnswer(DIGEST + "1.1")
    await both.settle(DIGEST + "1.1")
    assert await both.ask(DIGEST + "2") == SharedRunAnswer(DIGEST + "1.1", outcome=b"outcome")
    assert await both.ask(DIGEST + "2", unless=DIGEST + "1") == new(DIGEST + "2")


async def test_who_must_not_have_what_began_before_takes_its_own_key(both: Both) -> None:
    await both.ask(DIGEST + "1")
    await both.open(DIGEST + "1")
    assert await both.ask(DIGEST + "2", anew=True) == new(DIGEST + "2")
    assert await both.ask(DIGEST + "3") == SharedRunAnswer(DIGEST + "2"), "the newest"


async def test_a_failed_run_is_not_joined_again_by_the_same_asker(both: Both) -> None:
    await both.ask(DIGEST + "1")
    assert await both.ask(DIGEST + "2", unless=DIGEST + "1") == new(DIGEST + "2")
    assert await both.ask(DIGEST + "3", unless=DIGEST + "1") == SharedRunAnswer(DIGEST + "2")


async def test_one_with_more_time_takes_its_own_key_but_any_result(both: Both) -> None:
    await both.ask(DIGEST + "1", timeout=5.0)
    await both.open(DIGEST + "1")
    assert await both.ask(DIGEST + "2", timeout=5.001) == new(DIGEST + "2")
    await both.open(DIGEST + "2")
    await both.settle(DIGEST + "2")
    assert (await both.ask(DIGEST + "3", timeout=500.0)).outcome == b"outcome"


async def test_a_note_of_a_run_with_another_digest_is_ignored(both: Both) -> None:
    await both.ask(OTHER + "1")
    ask = SharedRunRequest(OTHER, DIGEST + "1", timeout=1, wait=1, cached=5)
    assert await both.shared.ask([ask]) == [new(DIGEST + "1")]
