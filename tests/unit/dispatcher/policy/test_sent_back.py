"""R66: an approved call that was sent and comes back passes the gate anew, and in no hurry."""

import asyncio
import time
from typing import Any

import pytest

from tests.integration.twins import second
from tests.waiting import eventually
from toolpool import Approval, Dispatcher, Hooks, Rewrite, Settings, tool
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.approval_steps import MemoryApprovals
from toolpool.dispatcher import approval_waits
from toolpool.dispatcher.transports.memory import MemoryTransport

RAN: list[int] = []
QUICK = Settings(background_wait=0.05, queue_timeout=5.0)


@tool(effects="write", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return f"paid {amount}"


@tool(effects="write", approval=True, rate="1/min")
async def pay_rarely(amount: int) -> str:
    """Pay, once a minute."""
    RAN.append(amount)
    return f"paid {amount}"


def call(amount: int = 5, name: str = "pay") -> dict[str, Any]:
    return {"id": "c-1", "name": name, "input": {"amount": amount}}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def one_waits(dispatcher: Dispatcher) -> Approval:
    """The only approval that waits, as soon as there is one."""

    async def waits() -> bool:
        return len(await dispatcher.approvals.waiting()) == 1

    await eventually(waits, "a call waits")
    return (await dispatcher.approvals.waiting())[0]


async def test_an_approved_call_that_the_server_sends_back_waits_before_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approval_waits, "_EVERY_SECONDS", 600.0)
    monkeypatch.setattr(approval_waits, "_SENT_BACK_SECONDS", 600.0, raising=False)
    sent = 0

    async def lapsed(*_: Any, **__: Any) -> tuple[str, list[bytes]]:
        nonlocal sent
        sent += 1
        return dispatcher._server.epoch, [LedgerAnswer(CallState.LAPSED)]

    async with Dispatcher.in_memory([pay], settings=QUICK) as dispatcher:
        await dispatcher.dispatch([call()], session="s", turn="t")
        approval = await one_waits(dispatcher)
        monkeypatch.setattr(dispatcher._in_flight._transport, "publish", lapsed)
        await dispatcher.approvals.approve(approval.id, by="anna")
        await eventually(lambda: sent, "it is sent")
        for _ in range(200):
            await asyncio.sleep(0)
        assert sent == 1
        [pending] = dispatcher._in_flight.all_open()
        assert pending.awaits_approval
    assert RAN == []


async def test_a_call_that_comes_back_from_its_rate_limit_takes_one_waiting_place() -> None:
    settings = Settings(background_wait=0.05, queue_timeout=120.0)
    async with Dispatcher.in_memory([pay_rarely], settings=settings) as dispatcher:
        traffic = dispatcher._in_flight
        await dispatcher.dispatch([call(1, "pay_rarely")], session="s", turn="t-1", wait=0)
        await dispatcher.approvals.approve((await one_waits(dispatcher)).id, by="anna")
        await eventually(lambda: RAN == [1], "the first one runs")
        second_one = await dispatcher.dispatch([call(2, "pay_rarely")], session="s", turn="t-2")
        await dispatcher.approvals.approve((await one_waits(dispatcher)).id, by="anna")
        [pending] = traffic.all_open()

        def waits_for_its_place() -> bool:
            return pending.limited is not None and pending.limited.waits

        await eventually(waits_for_its_place, "it waits for its place")
        traffic.approval_required(pending)
        assert pending.awaits_approval
        await eventually(lambda: not pending.awaits_approval, "it passes the gate anew")
        await eventually(waits_for_its_place, "it waits for its place again")
        assert traffic._pump.waiting == 1
        await dispatcher.task_cancel(second_one[0].handle or "", session="s")
        assert traffic._pump.waiting == 0 and traffic._pump.sessions == {}
    assert RAN == [1]


async def test_workers_have_the_time_in_which_the_server_answers_to_say_what_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the server forgot with its last moments may run: it is not sent while they cannot."""
    monkeypatch.setattr(approval_waits, "_EVERY_SECONDS", 0.01)
    survey, is_away = MemoryTransport.survey, False

    async def answered(self: MemoryTransport, *args: Any, **options: Any) -> Any:
        if is_away:
            raise ServerUnavailable("survey", sent=False)
        return await survey(self, *args, **options)

    monkeypatch.setattr(MemoryTransport, "survey", answered)
    settings = Settings(background_wait=0.05, lease_ttl=0.5)
    async with Dispatcher.in_memory([pay], settings=settings) as dispatcher:
        await dispatcher.dispatch([call()], session="s", turn="t")
        record = dispatcher._server.records[(await one_waits(dispatcher)).id]
        is_away, dispatcher._server.epoch = True, "next"
        later = time.monotonic() + 2 * settings.lease_ttl
        await eventually(lambda: time.monotonic() > later, "they had no time")
        assert record.epoch != "next"
        is_away = False
        await eventually(lambda: record.epoch == "next", "they had time")


async def test_what_could_not_be_confirmed_is_confirmed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approval_waits, "_EVERY_SECONDS", 0.01)
    read, failed = MemoryApprovals.read, 0

    async def fails_once(self: MemoryApprovals, key: str, **options: Any) -> Any:
        nonlocal failed
        if options.get("unsent_in") is not None and not failed:
            failed += 1
            raise ServerUnavailable("approval", sent=False)
        return await read(self, key, **options)

    monkeypatch.setattr(MemoryApprovals, "read", fails_once)
    async with Dispatcher.in_memory([pay], settings=QUICK) as worker:
        async with second(worker, background_wait=0.05, lease_ttl=0.3) as asker:
            await asker.dispatch([call()], session="s", turn="t")
            record = worker._server.records[(await one_waits(asker)).id]
            record.epoch = "before"
            await eventually(lambda: record.epoch == worker._server.epoch, "it is confirmed")
    assert failed == 1


async def test_no_arguments_are_said_to_be_changed_that_ran_as_they_were_approved() -> None:
    """Another dispatcher's hook changes them when it is asked again; what was approved runs."""
    changes = Hooks(before_call=lambda _: Rewrite({"amount": 1}))
    async with Dispatcher.in_memory([pay], settings=QUICK) as worker:
        async with second(worker, background_wait=0.05) as gone:
            await gone.dispatch([call()], session="s", turn="t")
            approval = await one_waits(gone)
        async with second(worker, changes) as other:
            await other.approvals.approve(approval.id, by="anna")
            [result] = await other.dispatch([call()], session="s", turn="t", wait=30)
            assert (result.data, result.note) == ("paid 5", None)
            changed = {**call(), "id": "c-2"}
            asking = asyncio.ensure_future(
                other.dispatch([changed], session="s", turn="t-2", wait=30)
            )
            await other.approvals.approve((await one_waits(other)).id, by="anna")
            [result] = await asking
            assert result.data == "paid 1" and "amount" in (result.note or "")
    assert RAN == [5, 1]
