"""`ctx.idempotency_key`: one for a call, however often it is run, and none that two share (R56)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleets import charging
from tests.integration.fleet import call, connected, running
from tests.integration.twins import alone, second
from toolpool.local import LocalFleet

TOOLS = ["pay_on_the_loop", "pay_in_a_thread", "pay_in_a_child"]
SAME: dict[str, Any] = {"session": "s", "turn": "t"}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with running(
        "tests.fleets.charging",
        slots_process=2,
        lease_ttl=1.0,
        retry_delay=0.01,
    ) as fleet:
        yield fleet


@pytest.mark.parametrize("tool", TOOLS)
async def test_it_is_the_same_in_the_attempt_after_a_killed_worker(
    fleet: LocalFleet, tool: str, tmp_path: Path
) -> None:
    notes = tmp_path / "keys"
    async with connected(fleet) as dispatcher:
        asked = call(tool, file=str(notes), amount=1, first="kills its worker")
        result = (await dispatcher.dispatch(asked, session="s", turn=tool))[0]
    assert (result.ok, result.attempts) == (True, 2), result
    assert notes.read_text().split() == [result.data] * 2
    assert UUID.fullmatch(result.data)


@pytest.mark.parametrize("tool", TOOLS)
async def test_it_is_the_same_in_a_retry_which_has_a_record_of_its_own(
    fleet: LocalFleet, tool: str, tmp_path: Path
) -> None:
    notes = tmp_path / "keys"
    async with connected(fleet) as dispatcher:
        asked = call(tool, file=str(notes), amount=1, first="fails")
        result = (await dispatcher.dispatch(asked, **SAME))[0]
        alone = (await dispatcher.dispatch(asked))[0]
    assert (result.ok, result.attempts) == (True, 2), result
    assert notes.read_text().split() == [result.data] * 2 + [alone.data]
    assert alone.data != result.data, "a call of no session is like no other"


async def test_another_dispatcher_that_asks_the_same_call_again_has_the_same_key(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """Also where nothing is kept of the call any more, so that it runs once more."""
    notes = tmp_path / "keys"
    asked = call("pay_on_the_loop", file=str(notes), amount=1)
    async with connected(fleet) as first:
        before = (await first.dispatch(asked, **SAME))[0]
        await _forget_records(fleet)
        async with connected(fleet) as other:
            after = (await other.dispatch(asked, **SAME))[0]
            differs = [
                (await other.dispatch(each, **where))[0].data
                for each, where in [
                    (call("pay_on_the_loop", file=str(notes), amount=2), SAME),
                    (call("pay_on_the_loop", "d", file=str(notes), amount=1), SAME),
                    (call("pay_in_a_thread", file=str(notes), amount=1), SAME),
                    (asked, SAME | {"turn": "u"}),
                    (asked, SAME | {"session": "r"}),
                ]
            ]
        async with connected(fleet, tenant="another") as foreign:
            differs.append((await foreign.dispatch(asked, **SAME))[0].data)
    assert notes.read_text().split() == [before.data, after.data, *differs]
    assert before.data == after.data
    assert len({before.data, *differs}) == 7


async def _forget_records(fleet: LocalFleet) -> None:
    from toolpool.contract.redis_keys import RedisKeys
    from toolpool.contract.server import connection

    names = RedisKeys(fleet.settings.key_prefix)
    with connection.open_sync(fleet.settings) as client:
        for prefix in (names.call_prefix, names.ran_prefix):
            for key in client.scan_iter(f"{prefix}*"):
                client.delete(key)


async def test_in_memory_it_is_the_same_in_a_retry_and_for_a_second_dispatcher(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "keys"
    asked = call("pay_on_the_loop", file=str(notes), amount=1, first="fails")
    async with alone([charging.pay_on_the_loop], retry_delay=0.01) as dispatcher:
        first = (await dispatcher.dispatch(asked, **SAME))[0]
        dispatcher._server.forget()
        async with second(dispatcher) as other:
            again = (await other.dispatch(asked, **SAME))[0]
    assert notes.read_text().split() == [first.data] * 3
    assert again.data == first.data


async def test_a_call_with_a_unique_id_keeps_its_key_if_nothing_is_known_of_its_turn(
    tmp_path: Path,
) -> None:
    """It runs again when its conversation is resumed after a loss of data."""
    notes = tmp_path / "keys"
    uses = {
        "type": "tool_use",
        "id": "toolu_01A09q90qw90lq917835lq9",
        "name": "pay_on_the_loop",
        "input": {"file": str(notes), "amount": 1},
    }
    history = [{"role": "assistant", "content": [uses]}]
    async with alone([charging.pay_on_the_loop]) as dispatcher:
        await dispatcher.dispatch([uses], session="s", turn="t")
        dispatcher._server.forget()
        dispatcher._background._transport._turns.clear()  # type: ignore[attr-defined]
        resumed = await dispatcher.resume(history, session="s")
    assert len(resumed) == 2
    first, again = notes.read_text().split()
    assert first == again
