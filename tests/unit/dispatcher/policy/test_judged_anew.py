"""R66, R67: whoever sends an approved call judges it as its policy is then."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.twins import second
from tests.waiting import eventually
from toolpool import (
    AskApproval,
    Code,
    Deny,
    Dispatcher,
    Executed,
    Hooks,
    ProposedCall,
    Rewrite,
    Settings,
    ToolResult,
    tool,
)
from toolpool.dispatcher.policy.verdict_types import Verdict
from toolpool.pool import InMemoryDispatcher

RAN: list[dict[str, Any]] = []


@tool(effects="write", approval=True)
async def pay(amount: int, mode: str = "plain") -> str:
    """Pay."""
    RAN.append({"amount": amount, "mode": mode})
    return f"paid {amount}"


QUICK = Settings(background_wait=0.05, queue_timeout=5.0)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@pytest.fixture
async def first() -> AsyncIterator[InMemoryDispatcher]:
    async with Dispatcher.in_memory([pay], settings=QUICK) as dispatcher:
        yield dispatcher


def hooked(verdict: Verdict | None) -> Hooks:
    return Hooks(before_call=lambda call: verdict)


async def asked(dispatcher: Any, amount: int = 5) -> ToolResult:
    call = {"id": "c-1", "name": "pay", "input": {"amount": amount}}
    return (await dispatcher.dispatch([call], session="s", turn="t"))[0]


async def approved(dispatcher: Any, by: str = "anna") -> None:
    async def waits() -> bool:
        return len(await dispatcher.approvals.waiting()) == 1

    await eventually(waits, "a call waits")
    await dispatcher.approvals.approve((await dispatcher.approvals.waiting())[0].id, by=by)


def denied(result: ToolResult | None) -> bool:
    assert result is not None
    return (result.code, result.executed) == (Code.DENIED, Executed.NO)


async def test_a_call_whose_own_dispatcher_denies_it_meanwhile_is_denied() -> None:
    answers: list[Verdict | None] = [None, Deny("the budget is spent")]
    hooks = Hooks(before_call=lambda call: answers.pop(0))
    async with Dispatcher.in_memory([pay], settings=QUICK, hooks=hooks) as dispatcher:
        handle = (await asked(dispatcher)).handle
        assert handle is not None
        await approved(dispatcher)
        result = await dispatcher.task_result(handle, session="s", wait=5)
        assert denied(result)
        assert result is not None
        assert "the budget is spent" in result.error
        assert denied(await asked(dispatcher))
    assert RAN == []


async def test_by_its_handle_a_dispatcher_that_denies_it_does_not_run_it(
    first: InMemoryDispatcher,
) -> None:
    async with second(first, background_wait=0.05, queue_timeout=5.0) as asker:
        handle = (await asked(asker)).handle
        assert handle is not None
    async with second(first, hooked(Deny("no")), queue_timeout=5.0) as other:
        waiting = asyncio.create_task(other.task_result(handle, session="s", wait=5))
        await approved(other)
        assert denied(await waiting)
    assert RAN == []


async def test_taken_over_a_dispatcher_that_denies_it_does_not_run_it() -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK, hooks=hooked(Deny("no"))) as taker:
        async with second(taker, background_wait=0.05, queue_timeout=5.0) as asker:
            handle = (await asked(asker)).handle
            assert handle is not None
        await approved(taker)
        assert denied(await taker.task_result(handle, session="s", wait=5))
    assert RAN == []


async def test_somebody_whom_its_policy_does_not_name_has_not_approved_it(
    first: InMemoryDispatcher,
) -> None:
    async with second(first, background_wait=0.05, queue_timeout=5.0) as asker:
        handle = (await asked(asker)).handle
        assert handle is not None
    async with second(first, hooked(AskApproval("", ("boss",))), queue_timeout=5.0) as other:
        waiting = asyncio.create_task(other.task_result(handle, session="s", wait=5))
        await approved(other, by="anna")
        assert denied(await waiting)
    assert RAN == []


async def test_somebody_whom_its_policy_names_has(first: InMemoryDispatcher) -> None:
    async with second(first, background_wait=0.05, queue_timeout=5.0) as asker:
        handle = (await asked(asker)).handle
        assert handle is not None
    async with second(first, hooked(AskApproval("", ("anna",))), queue_timeout=5.0) as other:
        waiting = asyncio.create_task(other.task_result(handle, session="s", wait=5))
        await approved(other, by="anna")
        result = await waiting
        assert result is not None
        assert result.ok
    assert RAN == [{"amount": 5, "mode": "plain"}]


async def test_other_arguments_of_a_hook_are_not_followed(first: InMemoryDispatcher) -> None:
    async with second(first, background_wait=0.05, queue_timeout=5.0) as asker:
        handle = (await asked(asker)).handle
        assert handle is not None
    rewrites = hooked(Rewrite({"amount": 9, "mode": "other"}))
    async with second(first, rewrites, queue_timeout=5.0) as other:
        waiting = asyncio.create_task(other.task_result(handle, session="s", wait=5))
        await approved(other)
        result = await waiting
        assert result is not None
        assert result.ok
    assert RAN == [{"amount": 5, "mode": "plain"}]


async def test_a_hook_that_takes_its_time_is_asked_once_for_an_approval() -> None:
    shown: list[ProposedCall] = []
    may_answer = asyncio.Event()

    async def before_call(call: ProposedCall) -> None:
        shown.append(call)
        if len(shown) > 1:
            await may_answer.wait()

    hooks = Hooks(before_call=before_call)
    async with Dispatcher.in_memory([pay], settings=QUICK, hooks=hooks) as dispatcher:
        handle = (await asked(dispatcher)).handle
        assert handle is not None
        await approved(dispatcher)
        await eventually(lambda: len(shown) == 2, "the hook is asked anew")
        await (
            dispatcher._parts.approval_waits._follow_once()
        )  # as it does by itself, in the meantime
        may_answer.set()
        result = await dispatcher.task_result(handle, session="s", wait=5)
        assert result is not None
        assert result.ok
    assert len(shown) == 2
    assert shown[1].arguments == shown[0].arguments == {"amount": 5, "mode": "plain"}
    assert (shown[1].session, shown[1].turn) == ("s", "t")
    assert len(RAN) == 1


async def test_an_approved_call_is_not_kept_from_others_by_a_dispatcher_that_lacks_its_tool() -> (
    None
):
    """The first to look after the asker has gone may be one with an allow-list."""
    async with Dispatcher.in_memory([pay], settings=QUICK, only=["task_list"]) as limited:
        async with second(limited, background_wait=0.05, queue_timeout=5.0) as asker:
            assert (await asked(asker)).handle is not None
        await approved(limited)
        await limited._parts.approval_waits._follow_once()
        assert RAN == []
        async with second(limited, queue_timeout=5.0):
            await eventually(lambda: RAN, "the other dispatcher sends it")
    assert RAN == [{"amount": 5, "mode": "plain"}]


async def test_a_dispatcher_takes_over_no_call_outside_its_allow_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK, only=["task_list"]) as taker:
        async with second(taker, background_wait=0.05, queue_timeout=5.0) as asker:
            handle = (await asked(asker)).handle
            assert handle is not None
        ledger, looks = taker._background._approval_waits._ledger, []
        approved_calls = ledger.approved

        async def look(*, now: float) -> list[str]:
            looks.append(found := await approved_calls(now=now))
            return found

        monkeypatch.setattr(ledger, "approved", look)
        await approved(taker)
        await eventually(lambda: any(looks), "the dispatcher sees the approved call")
        seen = len(looks)
        await eventually(lambda: len(looks) > seen, "it has acted on that")
        assert RAN == []
        async with second(taker, queue_timeout=5.0) as other:
            result = await other.task_result(handle, session="s", wait=5)
            assert result is not None
            assert result.ok
    assert RAN == [{"amount": 5, "mode": "plain"}]


@pytest.mark.parametrize("is_denied", [True, False], ids=["denied", "switched off"])
async def test_a_refusal_after_approval_ends_the_call_for_each_dispatcher_that_waits(
    is_denied: bool,
) -> None:
    """None leaves it to the others, which refuse it as well."""
    asked_for: list[str] = []

    def answer(call: ProposedCall) -> Verdict | None:
        asked_for.append(call.tool)
        return Deny("the budget is spent") if is_denied and len(asked_for) > 2 else None

    hooks = Hooks(before_call=answer)
    async with (
        Dispatcher.in_memory([pay], settings=QUICK, hooks=hooks) as one,
        second(one, hooks, background_wait=0.05, queue_timeout=5.0) as two,
    ):
        handles = [(await asked(host)).handle for host in (one, two)]
        waiting = [
            asyncio.ensure_future(host.task_result(handle or "", session="s", wait=5))
            for host, handle in zip((one, two), handles, strict=True)
        ]
        if not is_denied:
            await two.deny("pay", reason="off")
        await approved(two)
        async with asyncio.timeout(5):
            results = await asyncio.gather(*waiting)
    assert RAN == []
    assert all(map(denied, results))
    assert len(asked_for) < 6
