"""The loop guard across processes: what one dispatcher sees fail, another refuses (R30)."""

import time
from collections.abc import AsyncIterator

import pytest
import redis

from tests.integration.fleet import call, connected, running
from tests.waiting import eventually
from toolpool.contract.ledger.failure_memory import (
    FailureHistory,
    FailureMemory,
    MemoryFailures,
    RedisFailures,
)
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.outcome import Code
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.dispatcher.turn_options import session_key

NAMES = RedisKeys()


@pytest.fixture(params=["redis", "memory"])
async def ledger(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[FailureMemory]:
    if request.param == "memory":
        yield MemoryFailures()
        return
    settings = Settings(redis_url=redis_url)
    async with connection.open_async(settings) as client:
        yield RedisFailures(LuaScripts(client), client, NAMES)


async def look(ledger: FailureMemory, *digests: str) -> list[FailureHistory]:
    return await ledger.look("s", digests, time.monotonic() + 5)


async def note(ledger: FailureMemory, *ended: tuple[str, bool]) -> None:
    await ledger.note("s", ended, time.monotonic() + 5)


async def test_both_kinds_of_memory_say_the_same(ledger: FailureMemory) -> None:
    assert not ledger.suspects("s")
    await note(ledger, ("a", True), ("b", True))
    assert ledger.suspects("s")
    assert not ledger.suspects("t")
    assert await look(ledger, "a", "b", "c") == [
        FailureHistory(1, False),
        FailureHistory(1, False),
        FailureHistory(0, False),
    ]
    await note(ledger, ("a", True))
    assert await look(ledger, "a", "b") == [FailureHistory(2, False), FailureHistory(1, True)]
    await note(ledger, ("a", True))
    assert await look(ledger, "a", "b") == [FailureHistory(3, False), FailureHistory(1, False)]
    await note(ledger, ("a", False), ("c", True))
    assert await look(ledger, "a", "b", "c") == [
        FailureHistory(0, False),
        FailureHistory(1, False),
        FailureHistory(1, False),
    ]
    await note(ledger, *[("d", True)] * 40)
    assert await look(ledger, "b", "d") == [FailureHistory(0, False), FailureHistory(32, False)]


async def test_what_is_remembered_expires(redis_url: str) -> None:
    settings = Settings(redis_url=redis_url)
    transport = RedisTransport(settings)
    await note(transport.failures, ("a", True))
    with redis.Redis.from_url(redis_url) as client:
        for key in (NAMES.loop("s"), NAMES.loops):
            assert 0 < client.pttl(key) <= 3_600_000
    await transport.close()


async def test_another_dispatcher_refuses_what_it_never_saw() -> None:
    """Three failures here, the fourth call elsewhere; a third process asks after both."""
    with running("tests.fleets.failing") as fleet:
        async with connected(fleet) as one, connected(fleet) as two:
            for dispatcher in (one, one, two):
                turn = await dispatcher.dispatch(call("never_works", what="x"), session="s")
                assert turn[0].code is Code.REPORTED
            turn = await two.dispatch(call("never_works", what="x"), session="s")
            assert turn[0].code is Code.LOOP
            turn = await one.dispatch(call("never_works", what="x"), session="s")
            assert turn[0].code is Code.LOOP
            assert (await one.dispatch(call("never_works", what="x"), session="t"))[0].code is (
                Code.REPORTED
            )
            async with connected(fleet) as three:
                await eventually(
                    lambda: three.loops.suspects(session_key("default", "s")),
                    "the third hears of the session",
                )
                turn = await three.dispatch(call("never_works", what="x"), session="s")
                assert turn[0].code is Code.LOOP
