"""Handles of background calls, whoever gave them and whatever has happened since (R35)."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
import redis.asyncio

from tests.integration.fleet import call
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import Deny, Dispatcher, Hooks, ServerUnavailable, tool
from toolpool.contract.envelope import CatalogEntry
from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts
from toolpool.contract.ledger.protocols import Claim, Opening, Settlement
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.spec import sealed


async def state_of(dispatcher: Any, session: str) -> str:
    (listed,) = await dispatcher.task_list(session=session)
    return str(listed["state"])


@pytest.mark.parametrize("effects", ["read", "write"])
async def test_a_result_is_kept_as_long_as_its_handle(effects: Any) -> None:
    """A handle from `wait=` of a tool that is none for the background is no worse."""
    gate, starts = Gate(), []

    @tool(effects=effects)
    async def work() -> str:
        """Work."""
        starts.append("start")
        await gate.wait("work")
        return "done"

    async with alone([work], result_ttl=0.2) as dispatcher:
        handle = (await dispatcher.dispatch(call("work"), session="s", wait=0.02))[0].handle
        gate.open()
        await eventually(lambda: dispatcher.in_flight() == 0, "it has ended")
        await asyncio.sleep(0.4)  # longer than other results are kept
        result = await dispatcher.task_result(str(handle), session="s")
    assert result is not None
    assert result.data == "done"
    assert starts == ["start"]


async def test_a_handle_follows_its_call_through_retries() -> None:
    """Listed as running meanwhile; its end is the last try's, for another dispatcher as well."""
    gate, starts = Gate(), []

    @tool(effects="read", retries=1)
    async def flaky() -> str:
        """Fail once."""
        starts.append("start")
        if len(starts) == 1:
            await asyncio.sleep(0.05)
            raise ConnectionError("not yet")
        await gate.wait("second")
        return "good"

    async with alone([flaky], retry_delay=0.01) as dispatcher, second(dispatcher) as other:
        handle = str((await dispatcher.dispatch(call("flaky"), session="s", wait=0.01))[0].handle)
        await eventually(lambda: gate.came, "the second try runs")
        assert await state_of(dispatcher, "s") == "RUNNING"
        assert await dispatcher.task_result(handle, session="s") is None
        gate.open()
        assert (await dispatcher.task_result(handle, session="s", wait=5.0)).data == "good"  # type: ignore[union-attr]
        assert dispatcher.in_flight() == 0
        assert (await other.task_result(handle, session="s", wait=5.0)).data == "good"  # type: ignore[union-attr]
    assert starts == ["start", "start"]


async def test_a_handle_that_cannot_be_stored_delays_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call ends while the server takes its time."""
    gate, way = Gate(), Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as dispatcher:

        async def never(*args: object, **kwargs: object) -> None:
            await way.wait("store")

        monkeypatch.setattr(dispatcher._background._transport, "keep_handle", never)
        turn = asyncio.ensure_future(dispatcher.dispatch(call("work"), session="s", wait=0.02))
        await eventually(lambda: way.came and gate.came, "its handle is being stored")
        gate.open()
        result = (await asyncio.wait_for(turn, 2.0))[0]
    assert (result.data, result.handle) == ("done", None)


async def test_handles_of_a_dead_dispatcher_complete_for_every_follower() -> None:
    gate = Gate()

    @tool(background=True)
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work], background_wait=0.02) as first:
        async with second(first, background_wait=0.02) as dead:
            handle = (await dead.dispatch(call("work"), session="s"))[0].handle
            await eventually(lambda: gate.came, "it runs")
        completed = asyncio.ensure_future(anext(first.completed(session="s")))
        await eventually(lambda: first.in_flight("s") == 1, "it is adopted")
        gate.open()
        assert await asyncio.wait_for(completed, 5.0) == handle


async def test_completed_handles_need_not_be_collected(dispatcher: Dispatcher) -> None:
    """What nobody follows is bounded."""
    inbox = dispatcher._background._completed
    for number in range(20_000):
        inbox.add(f"s{number}", f"s{number}")
    for number in range(3_000):
        inbox.add(f"one{number}", "one")
    assert len(inbox._inboxes) == 10_000
    assert inbox._inboxes["one"].qsize() == 1_000
    followed = inbox.follow("kept")
    for number in range(20_000):
        inbox.add(f"t{number}", f"t{number}")
    inbox.add("mine", "kept")
    assert followed.get_nowait() == "mine", "a follower is never forgotten"


async def test_a_server_that_is_away_leaves_no_unwatched_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as first, second(first) as other:
        handle = str((await first.dispatch(call("work"), session="s", wait=0.02))[0].handle)
        states = other._background._transport.states

        async def away(keys: object) -> list[str | None]:
            raise ServerUnavailable("step", sent=True, reason="(away)")

        monkeypatch.setattr(other._background._transport, "states", away)
        with pytest.raises(ServerUnavailable, match="away"):
            await other.task_result(handle, session="s")
        assert other.in_flight() == 0
        monkeypatch.setattr(other._background._transport, "states", states)
        gate.open()
        assert (await other.task_result(handle, session="s", wait=5.0)).data == "done"  # type: ignore[union-attr]


async def test_a_handle_of_a_call_that_still_waits_elsewhere_is_not_lost() -> None:
    """It was given out before anything was sent; its owner sends it yet."""
    gate = Gate()

    @tool
    async def work(label: str) -> str:
        """Work."""
        await gate.wait(label)
        return label

    async with alone([work], in_flight_per_session=1) as owner, second(owner) as other:
        first = asyncio.ensure_future(owner.dispatch(call("work", label="a"), session="s"))
        await eventually(lambda: gate.came, "the session's place is taken")
        turn = await owner.dispatch(call("work", label="b"), session="s", wait=0.02)
        handle = str(turn[0].handle)
        assert await other.task_result(handle, session="s") is None
        gate.open()
        await first
        result = await owner.task_result(handle, session="s", wait=5.0)
        assert result is not None
        assert result.data == "b"
    assert gate.came == ["a", "b"]


@pytest.fixture
async def dispatcher() -> Any:
    @tool
    async def idle() -> None:
        """Do nothing."""

    async with alone([idle]) as made:
        yield made


async def test_a_call_is_handed_over_in_time_though_the_server_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R35: its handle is known here at once, and everywhere when the server is back."""
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as first, second(first) as other:
        keep = first._background._transport.keep_handle

        async def away(*args: object, **kwargs: object) -> None:
            raise ServerUnavailable("step", sent=True, reason="(away)")

        monkeypatch.setattr(first._background._transport, "keep_handle", away)
        async with asyncio.timeout(5.0):
            result = (await first.dispatch(call("work"), session="s", wait=0.02))[0]
        handle = str(result.handle)
        assert await first.task_result(handle, session="s") is None
        with pytest.raises(KeyError):
            await other.task_result(handle, session="s")
        monkeypatch.setattr(first._background._transport, "keep_handle", keep)

        async def is_known() -> bool:
            return handle in first._server.handles

        await eventually(is_known, "the server has it")
        gate.open()
        assert (await other.task_result(handle, session="s", wait=5.0)).data == "done"  # type: ignore[union-attr]


async def test_a_result_is_kept_for_a_day_only_where_it_was_handed_over(redis_url: str) -> None:
    """`wait=` alone says that a call may be: one that ends before it is like any other."""
    client = redis.asyncio.Redis.from_url(redis_url)
    steps, names = LuaScripts(client), RedisKeys()
    ledger = RedisLedger(steps, names)
    for key in ("quick", "long"):
        opening = Opening(key, 1, rerunnable=False, wait=30.0, deadline=90.0, keep=390.0)
        give_up_at = time.monotonic() + 5.0
        await ledger.open(
            [opening], nonce=key, reply="r", queue="", message=b"", give_up_at=give_up_at
        )
        await ledger.claim([Claim(key, 1, key)], worker="w", give_up_at=give_up_at)
        if key == "long":
            keys = [names.background("h"), "", names.call(key), names.epoch]
            await steps.once(LuaScript.HANDLE, keys, ["h", b"call", 100_000, 200_000, 86_400_000])
        settlement = Settlement(key, key, 300.0, "r", b"done")
        await ledger.settle([settlement], give_up_at=give_up_at)
    assert 0 < await client.ttl(names.call("quick")) <= 300
    assert 86_000 < await client.ttl(names.call("long")) <= 86_400
    await client.aclose()


async def test_who_leaves_a_handed_over_call_does_not_end_it() -> None:
    """Though the dispatcher that gave its handle has gone: others may ask for it."""
    gate, asked = Gate(), {"session": "s", "turn": "t"}

    @tool(effects="write")
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as one:
        async with second(one) as giver:
            (given,) = await giver.dispatch(call("work"), wait=0.05, **asked)
        async with second(one) as other:
            again = asyncio.ensure_future(other.dispatch(call("work"), **asked))
            await eventually(lambda: other.in_flight() == 1, "it has joined")
            again.cancel()
            with pytest.raises(asyncio.CancelledError):
                await again
        gate.open()
        result = await one.task_result(str(given.handle), session="s", wait=5.0)
    assert result is not None and result.data == "done"


async def test_a_cancel_through_another_dispatcher_is_repeated_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as first, second(first) as other:
        result = (await first.dispatch(call("work"), session="s", wait=0.02))[0]
        find = other._background._transport.handle

        async def away(handle: str) -> None:
            raise ServerUnavailable("step", sent=True, reason="(away)")

        monkeypatch.setattr(other._background._transport, "handle", away)
        answer = await other.task_cancel(str(result.handle), session="s")
        assert answer.code is Code.QUEUE_UNREACHABLE
        assert first.in_flight() == 1
        monkeypatch.setattr(other._background._transport, "handle", find)
        await eventually(lambda: first.in_flight() == 0, "the call is cancelled")


@pytest.mark.parametrize("is_removed", [False, True], ids=["without retries", "removed"])
async def test_a_handle_is_followed_by_the_release_that_its_call_was_dispatched_under(
    is_removed: bool,
) -> None:
    """A later release of the tool declares no retries, or is without the tool."""
    gate, starts = Gate(), []

    @tool(effects="read", retries=1)
    async def flaky() -> str:
        """Fail once."""
        starts.append("start")
        await gate.wait("flaky")
        if len(starts) == 1:
            raise ConnectionError("not yet")
        return "good"

    @tool
    async def other_tool() -> None:
        """Stay in the catalog."""

    async with alone([flaky, other_tool]) as dispatcher:
        server = dispatcher._server
        turn = dispatcher.dispatch(call("flaky"), session="s", wait=0.01)
        handle = str((await turn)[0].handle)
        if is_removed:
            del server.catalog["flaky"]
        else:
            spec = sealed(msgspec.structs.replace(flaky.spec, retries=0))
            entry = CatalogEntry(spec=spec, published_at=server.time() + 1, version="2")
            server.catalog["flaky"] = dispatcher._background._envelope.encode(entry)
        async with second(dispatcher) as other:
            assert await other.task_result(handle, session="s") is None
            gate.open()
            result = await other.task_result(handle, session="s", wait=10.0)
            assert result is not None
            assert (result.data, result.attempts, len(starts)) == ("good", 2, 2)


async def test_a_refused_call_is_not_run_because_its_handle_is_asked_for() -> None:
    """Its refusal is kept as long as its handle, not for the 40 s of other refusals."""
    gate, starts = Gate(), []

    @tool(effects="read", concurrency=1, concurrency_scope="fleet", background=True)
    async def work(name: str) -> str:
        """Work."""
        starts.append(name)
        await gate.wait(name)
        return name

    async with alone([work], background_wait=0.02) as dispatcher, second(dispatcher) as other:
        await dispatcher.dispatch(call("work", name="first"), session="s")
        handle = str((await dispatcher.dispatch(call("work", name="b"), session="s"))[0].handle)
        await dispatcher.deny("work", reason="broken")
        await eventually(lambda: dispatcher.in_flight() < 2, "it is refused")
        await dispatcher.allow("work")
        for record in dispatcher._server.records.values():  # a minute later
            record.gone_at -= 60.0
        gate.open()
        result = await other.task_result(handle, session="s", wait=2.0)
        assert result is not None
        assert (result.code, result.executed) == (Code.DENIED, Executed.NO)
    assert starts == ["first"]


async def test_the_outcome_of_a_handle_is_kept_though_another_dispatcher_ends_its_call() -> None:
    gate = Gate()

    @tool(effects="read", concurrency=1, concurrency_scope="fleet", background=True)
    async def work(name: str) -> str:
        """Work."""
        await gate.wait(name)
        return name

    deny = Hooks(before_call=lambda _: Deny("not here"))
    asked = call("work", name="b")
    async with alone([work], background_wait=0.02) as dispatcher, second(dispatcher) as later:
        await dispatcher.dispatch(call("work", "a", name="first"), session="s", turn="1")
        handle = str((await dispatcher.dispatch(asked, session="s", turn="2"))[0].handle)
        async with second(dispatcher, deny) as other:
            [denied] = await other.dispatch(asked, session="s", turn="2")
        assert (denied.code, denied.executed) == (Code.DENIED, Executed.NO)
        await eventually(lambda: dispatcher.in_flight() == 1, "it is told here, too")
        await asyncio.sleep(0.05)
        for record in dispatcher._server.records.values():  # a minute later
            record.gone_at -= 60.0
        gate.open()
        result = await later.task_result(handle, session="s", wait=2.0)
    assert result is not None
    assert (result.code, result.executed) == (Code.DENIED, Executed.NO)
