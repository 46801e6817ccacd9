"""What is approved while something else happens to its call: one of both holds, and is told."""

import asyncio

import pytest

from tests.waiting import eventually
from toolpool import Approval, Code, Dispatcher, Executed, Settings, tool
from toolpool.contract.approval import ApprovalState
from toolpool.contract.ledger.approvals import Asking, Found, MemoryApprovals
from toolpool.contract.ledger.memory import MemoryServer

RAN: list[int] = []


@tool(effects="write", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return f"paid {amount}"


CALL = {"id": "c-1", "name": "pay", "input": {"amount": 5}}
QUICK = Settings(background_wait=0.05)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def one_waits(dispatcher: Dispatcher) -> Approval:
    """The only approval there is, as soon as it waits."""

    async def waits() -> bool:
        return len(await dispatcher.approvals.waiting()) == 1

    await eventually(waits, "a call waits for approval")
    [approval] = await dispatcher.approvals.waiting()
    return approval


async def is_over(dispatcher: Dispatcher, approval: Approval) -> None:
    """Wait until the approved call was cancelled, before it was sent or after."""

    async def over() -> bool:
        state = (await dispatcher.approvals.get(approval.id)).state
        return state in (ApprovalState.SENT, ApprovalState.CANCELLED)

    await eventually(over, "the approved call was cancelled")


@pytest.mark.parametrize("session", [None, "s-1"])
async def test_r57_a_call_that_was_told_to_be_cancelled_never_runs(session: str | None) -> None:
    """R57: it is approved and, before anybody has sent it, cancelled."""
    async with Dispatcher.in_memory([pay], settings=QUICK) as dispatcher:
        turn = await dispatcher.dispatch(CALL, session=session)
        handle = turn[0].handle
        assert handle is not None
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.approve(approval.id, by="anna")
        told = await dispatcher.task_cancel(handle, session=session)
        assert (told.code, told.executed) == (Code.CANCELLED, Executed.NO)
        await is_over(dispatcher, approval)
        later = await dispatcher.task_result(handle, session=session, wait=5)
        assert later is not None and later.code is Code.CANCELLED
    assert RAN == []


@pytest.mark.parametrize("session", [None, "s-1"])
async def test_r57_a_call_whose_asker_is_cancelled_never_runs(session: str | None) -> None:
    async with Dispatcher.in_memory([pay]) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(CALL, session=session, wait=60))
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.approve(approval.id, by="anna")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await is_over(dispatcher, approval)
    assert RAN == []


@pytest.mark.parametrize("decide", ["approve", "deny"])
async def test_r57_a_decision_that_no_dispatcher_was_told_is_found(
    monkeypatch: pytest.MonkeyPatch, decide: str
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.awaiting._UNTOLD_SECONDS", 0.1)
    async with Dispatcher.in_memory([pay]) as dispatcher:
        asking = [
            asyncio.ensure_future(dispatcher.dispatch(CALL, session=f"s-{i}", wait=60))
            for i in range(3)
        ]

        async def all_wait() -> bool:
            return len(await dispatcher.approvals.waiting()) == 3

        await eventually(all_wait, "the calls wait")
        waiting = await dispatcher.approvals.waiting()
        put = MemoryServer.put
        monkeypatch.setattr(MemoryServer, "put", lambda *_: None)
        for approval in waiting:
            await getattr(dispatcher.approvals, decide)(approval.id, by="anna")
        monkeypatch.setattr(MemoryServer, "put", put)
        async with asyncio.timeout(20):
            turns = await asyncio.gather(*asking)
    codes = [turn[0].code for turn in turns]
    assert codes == [Code.DENIED if decide == "deny" else None] * 3
    assert ([] if decide == "deny" else [5, 5, 5]) == RAN


async def test_r57_what_is_approved_before_its_dispatcher_knows_that_it_waits_goes_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its hook, say, is faster than the server's answer."""
    monkeypatch.setattr("toolpool.dispatcher.awaiting._EVERY_SECONDS", 600.0)
    ask = MemoryApprovals.ask
    async with Dispatcher.in_memory([pay]) as dispatcher:

        async def ask_and_approve(self: MemoryApprovals, asking: Asking, *, now: float) -> Found:
            found = await ask(self, asking, now=now)
            await dispatcher.approvals.approve(asking.key, by="anna")
            for _ in range(20):
                await asyncio.sleep(0)
            return found

        monkeypatch.setattr(MemoryApprovals, "ask", ask_and_approve)
        async with asyncio.timeout(10):
            turn = await dispatcher.dispatch(CALL, session="s", turn="t", wait=60)
        assert turn[0].data == "paid 5"
