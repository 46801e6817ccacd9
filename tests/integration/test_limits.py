"""Retries, circuit breaker, kill switch and caps (R32): over the in-memory and the real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Dispatcher, ToolError, tool
from toolpool.contract.envelope import Switch
from toolpool.contract.kill_switches import switch_name
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet

attempts: list[str] = []
running = 0
most_running = 0


@tool(effects="read", retries=3)
async def flaky(name: str, failures: int) -> int:
    """Fail the first times."""
    attempts.append(name)
    if attempts.count(name) <= failures:
        raise ConnectionError("not yet")
    return attempts.count(name)


@tool(effects="write", retries=3)
async def flaky_write(name: str) -> int:
    """Fail always."""
    attempts.append(name)
    raise ConnectionError("never")


@tool
async def broken() -> None:
    """Fail always."""
    raise ToolError("no") if running else ValueError("no")


@tool
async def works(secret: str = "") -> str:
    """Succeed."""
    return "ok"


@tool(concurrency=2)
async def capped() -> None:
    """Count how many run at once."""
    global running, most_running
    running += 1
    most_running = max(most_running, running)
    await asyncio.sleep(0.01)
    running -= 1


@pytest.fixture
async def dispatcher() -> AsyncIterator[Dispatcher]:
    settings = Settings(retry_delay=0.01, circuit_minimum_calls=5, circuit_reset_timeout=0.3)
    tools = [flaky, flaky_write, broken, works, capped]
    async with Dispatcher.in_memory(tools, settings=settings) as connected:
        yield connected


async def test_a_read_that_fails_is_retried_by_the_pool(dispatcher: Dispatcher) -> None:
    """`attempts` says how often; only what may run twice, only what asked for it."""
    result = (await dispatcher.dispatch(call("flaky", name="a", failures=2)))[0]
    assert (result.data, result.attempts) == (3, 3)
    given_up = (await dispatcher.dispatch(call("flaky", name="b", failures=9)))[0]
    assert (given_up.code, given_up.attempts) == (Code.RAISED, 4)
    written = (await dispatcher.dispatch(call("flaky_write", name="c")))[0]
    assert (written.code, written.attempts) == (Code.RAISED, 1)
    assert attempts.count("c") == 1


async def test_a_repeated_call_follows_the_retries_to_their_end(dispatcher: Dispatcher) -> None:
    """R18."""
    asked = [
        dispatcher.dispatch(call("flaky", name="d", failures=2), session="s", turn="t")
        for _ in range(2)
    ]
    results = [turn[0] for turn in await asyncio.gather(*asked)]
    later = (await dispatcher.dispatch(call("flaky", name="d", failures=2), session="s", turn="t"))[
        0
    ]
    assert [result.data for result in [*results, later]] == [3, 3, 3]
    assert attempts.count("d") == 3


async def test_a_tool_that_keeps_failing_is_left_alone_and_tried_again(
    dispatcher: Dispatcher,
) -> None:
    for _ in range(5):
        assert (await dispatcher.dispatch(call("broken")))[0].code is Code.RAISED
    refused = await dispatcher.dispatch(call("broken") + call("works"))
    assert (refused[0].code, refused[0].executed) == (Code.CIRCUIT_OPEN, Executed.NO)
    assert refused[0].retry_after is not None
    assert refused[1].ok, "other tools are not touched"

    async def let_through() -> bool:
        return (await dispatcher.dispatch(call("broken")))[0].code is Code.RAISED

    await eventually(let_through, "one call is let through to see", 5.0)
    assert (await dispatcher.dispatch(call("broken")))[0].code is Code.CIRCUIT_OPEN


async def test_calls_without_workers_never_open_a_circuit() -> None:
    settings = Settings(circuit_minimum_calls=3, queue_timeout=0.2)
    async with Dispatcher.in_memory([works], settings=settings) as dispatcher:
        await dispatcher._worker.close()
        for _ in range(5):
            assert (await dispatcher.dispatch(call("works")))[0].code is Code.EXPIRED


async def test_circuits_and_switches_are_reported(dispatcher: Dispatcher) -> None:
    """R41: a person looking at the fleet sees what is switched off, and by what."""
    following = dispatcher.events()
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    for _ in range(5):
        await dispatcher.dispatch(call("broken"))
    await dispatcher.deny("works", argument="secret", value="x", reason="not there")
    await dispatcher.allow("works", argument="secret", value="x")
    seen = [await first]
    kinds = ("monitor:circuit", "monitor:switch")
    while len([event for event in seen if event.kind in kinds]) < 3:
        seen.append(await anext(following))
    told = [(e.kind, e.tool, e.detail) for e in seen if e.kind in kinds]
    assert told == [
        ("monitor:circuit", "broken", {"circuit": "open"}),
        ("monitor:switch", "works", {"denied": True, "argument": "secret"}),
        ("monitor:switch", "works", {"denied": False, "argument": "secret"}),
    ]


async def test_a_model_s_mistakes_never_open_a_circuit(dispatcher: Dispatcher) -> None:
    for _ in range(20):
        assert not (await dispatcher.dispatch(call("works", wrong=1)))[0].ok
    assert (await dispatcher.dispatch(call("works")))[0].ok


async def test_a_tool_s_own_cap_holds_and_drops_nothing(dispatcher: Dispatcher) -> None:
    turns = await asyncio.gather(*(dispatcher.dispatch(call("capped")) for _ in range(20)))
    assert all(turn.ok for turn in turns)
    assert most_running == 2


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.hostile") as started:
        yield started


async def test_the_kill_switch_reaches_every_dispatcher(fleet: LocalFleet) -> None:
    """A tool, or a tool with one argument value: denied, not run, and taken back."""
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        await one.deny("echo", reason="it is being repaired")
        await one.deny("echo_thread", argument="text", value="boom", reason="not that text")

        async def is_denied() -> bool:
            return (await other.dispatch(call("echo", text="x")))[0].code is Code.DENIED

        await eventually(is_denied, "the other dispatcher follows")
        denied = (await other.dispatch(call("echo", text="x")))[0]
        assert denied.executed is Executed.NO
        assert "it is being repaired" in (denied.error or "")
        assert (await one.dispatch(call("echo_thread", text="boom")))[0].code is Code.DENIED
        assert (await one.dispatch(call("echo_thread", text="fine")))[0].ok
        await one.allow("echo")
        await one.allow("echo_thread", argument="text", value="boom")
        assert (await one.dispatch(call("echo", text="x")))[0].ok


async def test_a_kill_switch_does_not_switch_itself_off(fleet: LocalFleet) -> None:
    """A server that lost its data is told again by whoever knows."""
    async with fleets.connected(fleet) as dispatcher:
        await dispatcher.deny("echo", reason="it is being repaired")
        with connection.open_sync(fleet.settings) as client:
            client.flushall()
            switches = RedisKeys(fleet.settings.key_prefix).switches
            name = switch_name(Switch(tool="echo", reason=""))
            await eventually(lambda: client.hexists(switches, name), "it is there again")

        async def answers_again() -> bool:
            return (await dispatcher.dispatch(call("echo_thread", text="x"), timeout=1.0)).ok

        await eventually(answers_again, "the workers are back", 20.0)
        assert (await dispatcher.dispatch(call("echo", text="x")))[0].code is Code.DENIED
        await dispatcher.allow("echo")
        assert (await dispatcher.dispatch(call("echo", text="x")))[0].ok


async def test_nobody_without_a_key_turns_a_kill_switch(fleet: LocalFleet) -> None:
    """R63: deleted it comes back, and one that was taken back is not put on again."""
    async with fleets.connected(fleet) as dispatcher:
        await dispatcher.deny("echo", reason="it is being repaired")
        with connection.open_sync(fleet.settings) as client:
            switches = RedisKeys(fleet.settings.key_prefix).switches
            name = switch_name(Switch(tool="echo", reason=""))
            captured = client.hget(switches, name)
            client.hdel(switches, name)
            await eventually(lambda: client.hget(switches, name) == captured, "it is back")
            assert (await dispatcher.dispatch(call("echo", text="x")))[0].code is Code.DENIED
            await dispatcher.allow("echo")
            assert captured is not None
            client.hset(switches, name, captured)
            await eventually(lambda: client.hget(switches, name) != captured, "it is off again")
        assert (await dispatcher.dispatch(call("echo", text="x")))[0].ok


async def test_one_noisy_session_does_not_hold_up_another(fleet: LocalFleet) -> None:
    """R32: a session with 5,000 calls waiting delays another's one by a few batches at most."""
    async with fleets.connected(fleet) as dispatcher:
        finished: list[str] = []

        async def ask(session: str) -> None:
            assert (await dispatcher.dispatch(call("echo", text="x"), session=session)).ok
            finished.append(session)

        noise = [asyncio.ensure_future(ask("noisy")) for _ in range(5000)]
        await asyncio.sleep(0)
        await ask("quiet")
        assert finished.index("quiet") < 1000
        await asyncio.gather(*noise)
        assert len(finished) == 5001


@pytest.mark.parametrize(
    "slip",
    [{"timeout": 0}, {"timeout": float("inf")}, {"timeout": float("nan")}, {"wait": -1},
     {"context": {"user": object()}}, {"context": {"blob": "x" * 2_000_000}}],
    ids=lambda slip: str(slip)[:24],
)  # fmt: skip
async def test_one_host_s_slip_fails_nobody_else_s_calls(
    dispatcher: Dispatcher, slip: dict[str, object]
) -> None:
    """R9: it is raised before anything is sent; calls of other sessions travel in one message."""
    asked = [dispatcher.dispatch(call("works"), session=f"s{n}") for n in range(10)]
    asked.insert(5, dispatcher.dispatch(call("works"), session="slip", **slip))  # type: ignore[arg-type]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(results.pop(5), ValueError)
    assert all(not isinstance(turn, BaseException) and turn.ok for turn in results)


async def test_a_circuit_of_the_whole_fleet_is_open_for_every_dispatcher() -> None:
    """What one saw fail is left alone by the others, and one call tries it for all."""
    shared = {"circuit_minimum_calls": 5, "circuit_reset_timeout": 2.0, "circuit_scope": "fleet"}

    async def code_of(dispatcher: Dispatcher, id: str = "c") -> Code | None:
        return (await dispatcher.dispatch(call("misbehave_loop", id, how="raise")))[0].code

    with fleets.running("tests.fleets.hostile", failure_loop_threshold=0) as fleet:
        async with (
            fleets.connected(fleet, **shared) as one,
            fleets.connected(fleet, **shared) as two,
        ):
            for number in range(5):
                assert await code_of(one, str(number)) is Code.RAISED

            async def is_open() -> bool:
                return await code_of(two) is Code.CIRCUIT_OPEN

            await eventually(is_open, "the other leaves it alone too", 5.0)
            assert (await two.dispatch(call("echo", text="x"))).ok
            tried: list[Code | None] = []

            async def is_tried() -> bool:
                tried[:] = [await code_of(one), await code_of(two)]
                return Code.RAISED in tried

            await eventually(is_tried, "one call is let through", 15.0)
            assert tried.count(Code.CIRCUIT_OPEN) == 1
            await eventually(is_open, "and both leave it alone again", 5.0)
