"""A switch holds at the claim, by whichever road a call comes to its worker (R67, R69)."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import Dispatcher, tool
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.protocols import Claim, Opening
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.local import LocalFleet

SETTINGS: dict[str, Any] = {"slots_loop": 1, "queue_timeout": 5.0}


class Busy:
    """A worker with one slot, which a call holds until the gate opens."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.ran: list[str] = []

        @tool(effects="read")
        async def hold() -> str:
            """Hold the slot."""
            await self.gate.wait("hold")
            return "held"

        @tool(effects="read", background=True)
        async def send(text: str) -> str:
            """Send a text."""
            self.ran.append(text)
            return "sent"

        self.tools = [hold, send]

    async def take_slot(self, dispatcher: Dispatcher) -> asyncio.Task[Any]:
        """Returns when the one slot is taken."""
        holding = asyncio.ensure_future(dispatcher.dispatch(call("hold", "h"), session="h"))
        await eventually(lambda: self.gate.came, "the slot is taken")
        return holding


def does_not_look(dispatcher: Dispatcher) -> None:
    """From now on a dispatcher knows no switch: it is old, or stands still."""
    dispatcher._in_flight.available.denial = lambda _: None  # type: ignore[method-assign]


async def test_a_dispatcher_that_does_not_know_a_switch_starts_nothing() -> None:
    busy = Busy()
    async with alone(busy.tools) as dispatcher, second(dispatcher, queue_timeout=0.5) as other:
        does_not_look(other)
        await dispatcher.deny("send", reason="closed")
        (result,) = await other.dispatch(call("send", text="a"), session="s", wait=5.0)
    assert (result.ok, result.executed, busy.ran) == (False, Executed.NO, [])


async def test_what_was_sent_before_a_switch_was_set_is_answered_as_denied() -> None:
    """Long before its queue wait is over, and by the dispatcher that waits for it."""
    busy = Busy()
    async with alone(busy.tools, **SETTINGS | {"queue_timeout": 60.0}) as dispatcher:
        holding = await busy.take_slot(dispatcher)
        sending = asyncio.ensure_future(
            dispatcher.dispatch(call("send", text="a"), session="s", wait=60.0)
        )
        await eventually(lambda: dispatcher.in_flight("s") == 1, "it is on its way")
        await dispatcher.deny("send", reason="closed")
        busy.gate.open()
        (result,) = await sending
        await holding
    assert (result.code, result.executed, busy.ran) == (Code.DENIED, Executed.NO, [])
    assert "closed" in (result.error or "")


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_handle_that_another_dispatcher_adopts_does_not_pass_a_switch(is_old: bool) -> None:
    busy = Busy()
    async with alone(busy.tools, **SETTINGS) as dispatcher, second(dispatcher) as other:
        holding = await busy.take_slot(dispatcher)
        turn = await dispatcher.dispatch(call("send", text="a"), session="s", wait=0.0)
        handle = str(turn[0].handle)
        await other.deny("send", reason="closed")
        if is_old:
            does_not_look(dispatcher)
        asking = asyncio.ensure_future(other.task_result(handle, session="s", wait=4.0))
        busy.gate.open()
        result = await asking
        await holding
    assert result is not None
    assert (result.code, busy.ran) == (Code.DENIED, [])


async def test_a_call_that_a_switch_held_up_goes_on_when_it_is_taken_back() -> None:
    """Refused at its claim: neither an attempt nor a release."""
    busy = Busy()
    async with alone(busy.tools, **SETTINGS) as dispatcher, second(dispatcher) as other:
        does_not_look(other)
        await dispatcher.deny("send", reason="closed")
        sending = asyncio.ensure_future(
            other.dispatch(call("send", text="a"), session="s", wait=5.0)
        )
        await eventually(lambda: other.in_flight("s") == 1, "it is on its way")
        await dispatcher.allow("send")
        (result,) = await sending
    assert (result.ok, result.attempts, busy.ran) == (True, 1, ["a"])


async def test_a_switch_for_one_tenant_leaves_the_others_alone() -> None:
    busy = Busy()
    async with alone(busy.tools, **SETTINGS) as dispatcher:
        await dispatcher.deny("send", reason="closed", tenant="another")
        assert (await dispatcher.dispatch(call("send", text="a"), wait=5.0)).ok
        await dispatcher.deny("send", reason="closed", tenant="default")
        assert (await dispatcher.dispatch(call("send", text="b")))[0].code is Code.DENIED
        await dispatcher.allow("send", tenant="default")
        assert (await dispatcher.dispatch(call("send", text="c"), wait=5.0)).ok


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.operated", queue_timeout=3.0) as running:
        yield running


@pytest.mark.parametrize("removed", ["the switch", "the version", "both"])
async def test_a_worker_still_knows_what_was_removed_without_a_key(
    fleet: LocalFleet, tmp_path: Path, removed: str
) -> None:
    """R69: from a dispatcher that never saw it, while no other dispatcher is there."""
    names, gate = RedisKeys(fleet.settings.key_prefix), tmp_path / "gate"
    gate.touch()
    async with fleets.connected(fleet) as dispatcher:
        await dispatcher.deny("hold", reason="closed")
        (denied,) = await dispatcher.dispatch(call("hold", gate=str(gate)))
        assert denied.code is Code.DENIED
        does_not_look(dispatcher)
        (held,) = await dispatcher.dispatch(call("hold", gate=str(gate)))  # its worker has read it
        assert held.executed is Executed.NO
    async with fleets.connected(fleet) as dispatcher:
        does_not_look(dispatcher)
        with connection.open_sync(fleet.settings) as client:
            if removed != "the version":
                client.delete(names.switches)
            if removed != "the switch":
                random = client.get(names.epoch).split()[0]  # type: ignore[union-attr]
                client.set(names.epoch, random)
        (result,) = await dispatcher.dispatch(call("hold", gate=str(gate)))
        assert (result.ok, result.executed) == (False, Executed.NO)
    async with fleets.connected(fleet) as dispatcher:
        await dispatcher.allow("hold")
        assert (await dispatcher.dispatch(call("hold", gate=str(gate)))).ok


async def test_a_claim_takes_the_same_commands_with_switches_as_without(fleet: LocalFleet) -> None:
    """R74: what the fleet must hold is looked at in a step that runs anyway."""
    settings = fleet.settings
    client = connection.open_async(settings)
    ledger = RedisLedger(LuaScripts(client), RedisKeys(settings.key_prefix))
    version, _ = await ledger.switches()
    counts: list[dict[str, int]] = []
    for number, switches in enumerate((None, None, version)):  # the first loads the script
        opening = Opening(f"k{number}", 1, rerunnable=True, wait=9.0, deadline=9.0, keep=9.0)
        give_up_at = time.monotonic() + 9.0
        await ledger.open(
            [opening], nonce=f"n{number}", reply="r", queue="", message=b"", give_up_at=give_up_at
        )
        await client.config_resetstat()
        (left,) = await ledger.claim(
            [Claim(f"k{number}", 1, "c")], worker="w", give_up_at=give_up_at, switches=switches
        )
        assert isinstance(left, float)
        stats: Any = await client.info("commandstats")
        steps = ("eval", "evalsha", "get", "info", "time", "hmget", "hset")
        counts.append({name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in steps})
    await client.aclose()
    assert counts[1] == counts[2]


async def test_two_that_turn_a_switch_at_once_both_turn_it(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later of them turns what the earlier has set, although both have read the state before.

    A switch's number is its time, and the next one where that is past: so from a number that lies
    ahead of the clock each change adds one.
    """
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:

        async def number() -> int:
            available = one._in_flight.available
            await available.follow_switches()
            known = available._switches._known.values()
            (found,) = [switch.number for switch, _ in known if switch.tool == "twice"]
            return found

        with monkeypatch.context() as clock:
            clock.setattr(one._in_flight._transport, "server_time", lambda: time.time() + 3600.0)
            await one.deny("twice", reason="before")
        before = await number()
        await asyncio.gather(
            *(each.deny("twice", reason="closed") for each in (one, other)),
            *(each.allow("twice") for each in (one, other)),
        )
        assert await number() == before + 4


async def test_a_switch_that_is_set_where_its_earlier_states_were_deleted_holds(
    fleet: LocalFleet,
) -> None:
    """R69: by one who has not seen them, while others know them and put them back."""
    async with fleets.connected(fleet) as live:
        for _ in range(3):
            await live.deny("lost", reason="before")
            await live.allow("lost")
        with connection.open_sync(live._settings) as client:
            client.delete(RedisKeys(live._settings.key_prefix).switches)
        async with fleets.connected(fleet) as fresh:
            await fresh.deny("lost", reason="closed")
        await live._in_flight.available.follow_switches()
        assert [switch.tool for switch in live._in_flight.available._switches.denying()] == ["lost"]
        await live.allow("lost")
