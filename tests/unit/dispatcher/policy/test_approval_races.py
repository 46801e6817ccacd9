"""What is approved while something else happens to its call: one of both holds, and is told."""

import asyncio

import pytest

from tests.integration.twins import alone, second
from tests.waiting import eventually
from toolpool import Approval, Code, Dispatcher, Executed, Settings, tool
from toolpool.contract.approval_messages import ApprovalState
from toolpool.contract.ledger.approval_steps import ApprovalRecord, MemoryApprovals, WaitStep
from toolpool.contract.ledger.memory_server import MemoryServer

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
async def test_a_call_with_a_cancel_request_never_runs(session: str | None) -> None:
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
async def test_a_call_whose_asker_is_cancelled_never_runs(session: str | None) -> None:
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
async def test_a_decision_without_a_notification_is_found(
    monkeypatch: pytest.MonkeyPatch, decide: str
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.approval_waits._POLL_SECONDS", 0.1)
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


async def test_what_is_approved_before_its_dispatcher_knows_that_it_waits_goes_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its hook, say, is faster than the server's answer."""
    monkeypatch.setattr("toolpool.dispatcher.approval_waits._EVERY_SECONDS", 600.0)
    ask = MemoryApprovals.ask
    async with Dispatcher.in_memory([pay]) as dispatcher:

        async def ask_and_approve(
            self: MemoryApprovals, asking: WaitStep, *, now: float
        ) -> ApprovalRecord:
            found = await ask(self, asking, now=now)
            await dispatcher.approvals.approve(asking.key, by="anna")
            for _ in range(20):
                await asyncio.sleep(0)
            return found

        monkeypatch.setattr(MemoryApprovals, "ask", ask_and_approve)
        async with asyncio.timeout(10):
            turn = await dispatcher.dispatch(CALL, session="s", turn="t", wait=60)
        assert turn[0].data == "paid 5"


@tool(effects="write", approval=True, rate="1/min", timeout=0.3)
async def pay_rarely(amount: int) -> str:
    """Pay, once a minute."""
    RAN.append(amount)
    return f"paid {amount}"


async def test_an_approved_call_that_two_dispatchers_hold_is_answered_by_its_deadline() -> None:
    """Neither refuses it while the other waits, and neither waits for ever."""
    settings = {"background_wait": 0.02, "queue_timeout": 0.3}
    async with alone([pay_rarely], **settings) as one, second(one, **settings) as two:
        for id in ("first", "late"):
            call = {"id": id, "name": "pay_rarely", "input": {"amount": 5}}
            asking = [
                asyncio.ensure_future(host.dispatch(call, session="s", turn=id, wait=60))
                for host in (one, two)
            ]
            approval = await one_waits(one)

            async def both_wait(key: str = approval.id) -> bool:
                return len(one._server.records[key].replies) == 2

            await eventually(both_wait, "both dispatchers wait for it")
            await one.approvals.approve(approval.id, by="anna")
            async with asyncio.timeout(15):
                turns = await asyncio.gather(*asking)
    assert RAN == [5]
    assert [turn[0].ok for turn in turns] == [False, False]


async def test_an_approved_call_that_was_not_sent_in_time_is_not_told_that_nobody_approved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its dispatcher has read the decision, and waits for word from another epoch."""
    monkeypatch.setattr("toolpool.dispatcher.approval_waits._EVERY_SECONDS", 600.0)
    settings = Settings(queue_timeout=0.2, approval_expires=0.4)
    async with Dispatcher.in_memory([pay], settings=settings) as dispatcher:
        call = {"id": "c-1", "name": "pay", "input": {"amount": 5}}
        asking = asyncio.ensure_future(dispatcher.dispatch(call, session="s", turn="t", wait=60))
        approval = await one_waits(dispatcher)
        put = MemoryServer.put
        monkeypatch.setattr(MemoryServer, "put", lambda *_: None)
        await dispatcher.approvals.approve(approval.id, by="anna")
        monkeypatch.setattr(MemoryServer, "put", put)
        record = dispatcher._server.records[approval.id]
        record.epoch, record.expires = "another", 0.0
        wait = dispatcher._parts.approval_waits._waiting[approval.id]
        found = await dispatcher._parts.approval_waits._read(approval.id)
        dispatcher._parts.approval_waits._apply_record(wait.pending, found, None)
        record.epoch = dispatcher._server.epoch  # another dispatcher has said that nobody sent it
        async with asyncio.timeout(15):
            turn = await asking
    assert RAN == []
    assert turn[0].code is Code.EXPIRED
