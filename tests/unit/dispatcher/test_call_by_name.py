"""One call that the host makes itself: `Dispatcher.call`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from toolpool import (
    Code,
    Deny,
    Dispatcher,
    Hooks,
    ProposedCall,
    Settings,
    SyncDispatcher,
    ToolContext,
    tool,
)

RUNS: list[int] = []


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


@tool(effects="write")
async def pay(amount: int) -> int:
    """Pay an amount."""
    RUNS.append(amount)
    return amount


@tool(effects="read")
async def wait() -> str:
    """Wait for long."""
    await asyncio.sleep(60)
    return "never"


async def test_it_answers_with_one_result() -> None:
    async with Dispatcher.in_memory([pay]) as dispatcher:
        result = await dispatcher.call("pay", {"amount": 5})
        assert (result.ok, result.data) == (True, 5)
        assert (await dispatcher.call("pay")).code is Code.INVALID_ARGUMENTS
        assert (await dispatcher.call("unknown")).code is Code.UNKNOWN_TOOL
    assert RUNS == [5]


async def test_each_call_without_an_id_is_a_new_one() -> None:
    async with Dispatcher.in_memory([pay]) as dispatcher:
        for _ in range(3):
            assert (await dispatcher.call("pay", {"amount": 5}, session="s")).ok
    assert RUNS == [5, 5, 5]


async def test_a_call_of_the_same_id_is_not_run_twice() -> None:
    async with Dispatcher.in_memory([pay]) as dispatcher:
        same = [dispatcher.call("pay", {"amount": 5}, id="bill-7", session="s") for _ in range(3)]
        assert [result.data for result in await asyncio.gather(*same)] == [5, 5, 5]
        assert (await dispatcher.call("pay", {"amount": 5}, id="bill-7", session="s")).data == 5
        assert RUNS == [5]
        assert (await dispatcher.call("pay", {"amount": 5}, id="bill-8", session="s")).data == 5
        assert (await dispatcher.call("pay", {"amount": 5}, id="bill-7", session="t")).data == 5
    assert RUNS == [5, 5, 5]


async def test_it_passes_the_gate() -> None:
    def no_large_sum(call: ProposedCall) -> Deny | None:
        return Deny("too much") if call.arguments["amount"] > 10 else None

    async with Dispatcher.in_memory([pay], hooks=Hooks(before_call=no_large_sum)) as dispatcher:
        assert (await dispatcher.call("pay", {"amount": 11})).code is Code.DENIED
        refused = await dispatcher.call("pay", {"amount": 10}, only=["wait"])
        assert refused.code is Code.UNKNOWN_TOOL
        with pytest.raises(ValueError, match="not a pattern"):
            await dispatcher.deny("pa*", reason="closed")
        await dispatcher.deny("pay", reason="closed")
        assert (await dispatcher.call("pay", {"amount": 1})).code is Code.DENIED
    assert RUNS == []


@pytest.mark.parametrize("roles", [{1: "admin"}, {"1": "user", 1: "admin"}, {True: "admin"}])
async def test_keys_that_are_no_text_are_not_judged_as_other_keys(
    roles: dict[Any, str], tmp_path: Path
) -> None:
    entered: list[object] = []

    @tool(effects="write")
    async def grant(roles: dict[str, Any]) -> None:
        """Grant roles."""
        entered.append(roles)

    rule = tmp_path / "policy.toml"
    rule.write_text(
        '[[rule]]\ntool = "grant"\nargument = "roles.1"\nequals = "admin"\naction = "deny"\n'
    )
    async with Dispatcher.in_memory([grant], hooks=Hooks(policy=str(rule))) as dispatcher:
        assert (await dispatcher.call("grant", {"roles": roles})).code is Code.DENIED
        assert (await dispatcher.call("grant", {"roles": {"1": "user"}})).ok
    assert entered == [{"1": "user"}]


async def test_another_deployment_has_idempotency_keys_of_its_own() -> None:
    """Two may use one account of the API behind a tool, and count their sessions alike."""

    @tool(effects="write")
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        return ctx.idempotency_key

    keys = []
    for id in ("bill-7", "toolu_01A09q90qw90lq917835lq9"):
        for prefix in ("production", "staging"):
            settings = Settings(key_prefix=prefix)
            async with Dispatcher.in_memory([charge], settings=settings) as dispatcher:
                keys.append((await dispatcher.call("charge", id=id, session="1")).data)
    assert len(set(keys)) == 4


async def test_a_long_call_is_answered_with_a_handle() -> None:
    async with Dispatcher.in_memory([wait]) as dispatcher:
        result = await dispatcher.call("wait", session="s", wait=0.01)
        assert result.handle is not None
        await dispatcher.task_cancel(result.handle, session="s")


@pytest.mark.parametrize("arguments", [[1], 5, "text", {"amount": float("nan")}, {1: 2}])
async def test_arguments_that_are_no_object_of_json_are_answered(arguments: object) -> None:
    async with Dispatcher.in_memory([pay]) as dispatcher:
        result = await dispatcher.call("pay", arguments)  # type: ignore[arg-type]
    assert result.code is Code.UNPARSEABLE
    assert RUNS == []


@pytest.mark.parametrize("wrong", [{"id": ""}, {"id": "x" * 300}, {"session": ""}, {"timeout": -1}])
async def test_a_mistake_of_the_host_is_raised(wrong: dict[str, object]) -> None:
    async with Dispatcher.in_memory([pay]) as dispatcher:
        with pytest.raises(ValueError):
            await dispatcher.call("pay", {"amount": 1}, **wrong)  # type: ignore[arg-type]
    assert RUNS == []


def test_blocking_code_has_it_too() -> None:
    with SyncDispatcher.in_memory([pay]) as dispatcher:
        assert dispatcher.call("pay", {"amount": 5}).data == 5
        turn = dispatcher.dispatch([{"id": "1", "name": "pay", "input": {"amount": 6}}])
        assert turn.results == tuple(turn)
    assert RUNS == [5, 6]
