"""Output over the cap is cut in the middle, kept whole, and read in pages (R37)."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis.asyncio

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from toolpool import Dispatcher
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.outcome import Code
from toolpool.contract.redis_keys import RedisKeys
from toolpool.embedded import EmbeddedServer
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow") as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet, output_page_characters=400) as connected:
        yield connected


async def test_a_long_text_is_cut_and_read_in_pages(dispatcher: Dispatcher) -> None:
    result = (await dispatcher.dispatch(call("write_much", characters=3000), session="s"))[0]
    assert result.ok
    assert len(result.data) < 1100
    assert "of 3,000 bytes left out" in result.data
    assert result.handle is not None
    assert result.handle in (result.note or "")
    whole = ""
    for number in range(1, 9):
        turn = await dispatcher.dispatch(
            call("task_result", handle=result.handle, page=number), session="s"
        )
        assert turn[0].data["pages"] == 8
        whole += turn[0].data["text"]
    assert whole == "".join(str(number % 10) for number in range(3000))


async def test_a_long_list_is_kept_as_json(dispatcher: Dispatcher) -> None:
    result = (await dispatcher.dispatch(call("list_much", items=1000), session="s"))[0]
    assert result.handle is not None
    first = await dispatcher.output(result.handle, session="s")
    whole = first["text"]
    for number in range(2, first["pages"] + 1):
        whole += (await dispatcher.output(result.handle, session="s", page=number))["text"]
    assert json.loads(whole) == list(range(1000))


async def test_another_session_cannot_read_it(dispatcher: Dispatcher) -> None:
    result = (await dispatcher.dispatch(call("write_much", characters=3000), session="s"))[0]
    assert result.handle is not None
    with pytest.raises(KeyError):
        await dispatcher.output(result.handle, session="another")
    turn = await dispatcher.dispatch(call("task_result", handle=result.handle), session="another")
    assert turn[0].error is not None
    assert "no background task with this handle" in turn[0].error


@pytest.mark.parametrize("page", [0, -1, 9, 10**30, 1.5, True, "1", None])
async def test_a_missing_page_is_refused(dispatcher: Dispatcher, page: Any) -> None:
    """The host is told so by ValueError, the model in an answer that it can go by."""
    result = (await dispatcher.dispatch(call("write_much", characters=3000), session="s"))[0]
    with pytest.raises(ValueError, match="page"):
        await dispatcher.output(str(result.handle), session="s", page=page)
    turn = await dispatcher.dispatch(
        call("task_result", handle=result.handle, page=page), session="s"
    )
    if page in ("1", None, True) and page is not True:  # put right, and said so
        assert turn[0].data["page"] == 1
    elif isinstance(page, int) and page > 1:
        assert turn[0].code is Code.REPORTED
        assert f"no page {page}: the output has 8" in (turn[0].error or "")
    else:
        assert turn[0].code is Code.INVALID_ARGUMENTS


async def test_a_session_keeps_so_much_and_the_oldest_make_room(redis_url: str) -> None:
    """R37: one that keeps much takes nobody else's room."""
    client = redis.asyncio.Redis.from_url(redis_url)
    ledger = RedisLedger(LuaScripts(client), RedisKeys(), outputs_bytes=1000)

    async def kept() -> list[str]:
        return sorted(
            [
                key.decode().rpartition(":")[2]
                async for key in client.scan_iter(RedisKeys().output("*"))
            ]
        )

    assert await ledger.keep_output("other", b"x" * 900, owner="b", keep=60.0)
    for number in range(5):
        assert await ledger.keep_output(f"o{number}", b"x" * 400, owner="a", keep=60.0)
    assert await kept() == ["o3", "o4", "other"]
    assert not await ledger.keep_output("huge", b"x" * 1001, owner="a", keep=60.0)
    assert await kept() == ["o3", "o4", "other"]
    await client.aclose()


async def test_outputs_are_the_first_to_go_when_memory_is_short() -> None:
    """Then none is kept, and calls go on."""
    with EmbeddedServer() as server:
        client = redis.asyncio.Redis.from_url(server.url)
        ledger = RedisLedger(LuaScripts(client), RedisKeys(), outputs_bytes=1 << 30)
        for number in range(8):
            assert await ledger.keep_output(f"o{number}", b"x" * (1 << 20), owner="a", keep=60.0)
        used = (await client.info("memory"))["used_memory"]
        await client.config_set("maxmemory", int(used / 0.9))
        await ledger.make_room()
        left = [key async for key in client.scan_iter(RedisKeys().output("*"))]
        assert 0 < len(left) < 8
        assert (await client.info("memory"))["used_memory"] <= 0.76 * used / 0.9
        await client.config_set("maxmemory", used // 8)
        assert not await ledger.keep_output("late", b"x" * (1 << 20), owner="b", keep=60.0)
        await client.aclose()
