"""Of several that decide about a call the strictest holds, in every field and at its time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.dispatcher.policy.test_approvals import one_waits
from toolpool import (
    AskApproval,
    Code,
    Dispatcher,
    Executed,
    Hooks,
    Misconfigured,
    ProposedCall,
    Settings,
    ToolResult,
    tool,
)

RAN: list[int] = []
LET_GO: list[bool] = []
CALL = [{"id": "c", "name": "pay", "input": {"amount": 5}}]


@tool(effects="write")
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return "paid"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()
    LET_GO.clear()


def rules(tmp_path: Path, rule: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(f"[[rule]]\n{rule}\n")
    return path


async def asked(hooks: Hooks, **settings: Any) -> ToolResult:
    async with Dispatcher.in_memory([pay], hooks=hooks, settings=Settings(**settings)) as pool:
        return (await pool.dispatch(CALL))[0]


ASKS = 'action = "ask"\nreason = "A rule asks."\n'


@pytest.mark.parametrize(
    ("rule", "approval", "approvers", "seconds"),
    [
        ('approvers = ["anna", "ben"]', AskApproval("Why."), ("anna", "ben"), 600),
        ("", AskApproval("Why.", ("anna",)), ("anna",), 600),
        ('approvers = ["anna", "ben"]', AskApproval("Why.", ("ben", "carl")), ("ben",), 600),
        ("expires = 60", AskApproval("Why.", expires=300.0), (), 60),
        ("expires = 3000", AskApproval("Why.", expires=300.0), (), 300),
        ("expires = 3000", AskApproval("Why."), (), 600),
    ],
)
async def test_a_hook_that_asks_keeps_the_approvers_and_the_time_of_a_rule(
    tmp_path: Path, rule: str, approval: AskApproval, approvers: tuple[str, ...], seconds: float
) -> None:
    hooks = Hooks(before_call=lambda _: approval, policy=rules(tmp_path, ASKS + rule))
    settings = Settings(approval_expires=600)
    async with Dispatcher.in_memory([pay], hooks=hooks, settings=settings) as dispatcher:
        await dispatcher.dispatch(CALL, session="s", wait=0.01)
        waits = await one_waits(dispatcher)
    assert waits.approvers == approvers
    assert waits.expires_at - waits.asked_at == pytest.approx(seconds)
    assert waits.asked_by == "before_call and rule 1"
    assert waits.reason == "Why. A rule asks."


async def test_a_shared_call_without_a_common_approver_is_denied(tmp_path: Path) -> None:
    policy = rules(tmp_path, ASKS + 'approvers = ["anna"]')
    hooks = Hooks(before_call=lambda _: AskApproval("", ("ben",)), policy=policy)
    result = await asked(hooks)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])
    assert result.error == "Tool 'pay' was not run: there is nobody who may approve it."


async def _answers_late(_: ProposedCall) -> bool:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return True
    return True


async def _never_ends(_: ProposedCall) -> None:
    while not LET_GO:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


async def _blocks(_: ProposedCall) -> bool:
    until = asyncio.get_running_loop().time() + 0.2
    while asyncio.get_running_loop().time() < until:
        pass
    return True


@pytest.mark.parametrize("hook", [_answers_late, _never_ends, _blocks])
async def test_a_hook_past_its_time_denies_whatever_it_answers_later(hook: Any) -> None:
    result = await asked(Hooks(before_call=hook), hook_timeout=0.1)
    LET_GO.append(True)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])


async def test_a_dispatcher_that_requires_a_policy_does_not_start_without_one() -> None:
    with pytest.raises(Misconfigured, match="TOOLPOOL_POLICY_REQUIRED"):
        Dispatcher.in_memory([pay], settings=Settings(policy_required=True))


async def test_a_call_that_a_policy_allowed_runs_where_one_is_required(tmp_path: Path) -> None:
    hooks = Hooks(policy=rules(tmp_path, 'action = "allow"'))
    assert (await asked(hooks, policy_required=True)).ok and RAN == [5]
