"""The server comes back without its last steps: what they did to an approved call is not denied."""

import asyncio
import copy
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.integration.twins import Gate, second
from tests.waiting import eventually
from toolpool import Approval, ApprovalRefused, Code, Dispatcher, Executed, Observer, Settings, tool
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.protocols import CloseReason, Closing
from toolpool.pool import InMemoryDispatcher

RAN: list[int] = []
GATE = Gate()
QUICK = Settings(background_wait=0.05, lease_ttl=0.4)


@tool(effects="write", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return f"paid {amount}"


@tool(effects="write", idempotent=True)
async def add(amount: int) -> str:
    """Add."""
    RAN.append(amount)
    return f"added {amount}"


@tool(effects="write", approval=True)
async def pay_slowly(amount: int) -> str:
    """Pay, once the gate is open."""
    await GATE.wait("pay")
    return f"paid {amount}"


@tool(effects="write", approval=True)
async def look_up(amount: int) -> dict[str, int]:
    """Look up."""
    return {"amount": amount}


@tool(effects="read", retries=2)
async def fail_at_first(amount: int) -> str:
    """Fail at first."""
    RAN.append(amount)
    if len(RAN) == 1:
        raise ConnectionError("not yet")
    return "done"


SAME = {"session": "s", "turn": "t"}


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    global GATE
    GATE = Gate()
    RAN.clear()


def call(name: str = "pay") -> dict[str, object]:
    return {"id": "c-1", "name": name, "input": {"amount": 5}}


async def one_waits(dispatcher: Dispatcher) -> Approval:
    """The only approval that waits, as soon as there is one."""

    async def waits() -> bool:
        return len(await dispatcher.approvals.waiting()) == 1

    await eventually(waits, "a call waits")
    return (await dispatcher.approvals.waiting())[0]


class Loss:
    """What the server has now, to come back with."""

    def __init__(self, dispatcher: InMemoryDispatcher) -> None:
        self._server = dispatcher._server
        self._records = copy.deepcopy(self._server.records)

    def happen(self) -> None:
        """Everything since then is lost."""
        self._server.records.clear()
        self._server.records.update(self._records)
        self._server.marks.clear()
        self._server.epoch += "."


class Told:
    """The keys of the records that a dispatcher ends again."""

    def __init__(
        self, dispatcher: InMemoryDispatcher, patch: pytest.MonkeyPatch, *, is_away: bool = False
    ) -> None:
        self.keys: list[str] = []
        self.is_away = is_away
        transport = dispatcher._parts.in_flight._transport
        self._close = transport.close_calls
        patch.setattr(transport, "close_calls", self._closing)

    async def _closing(self, closings: Sequence[Closing], **options: Any) -> Any:
        if options["end"] is CloseReason.RESTORED:
            if self.is_away:
                raise ServerUnavailable("close", sent=False)
            self.keys += [closing.key for closing in closings]
        return await self._close(closings, **options)


class Late(Observer):
    """The calls whose outcome came late."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def late_outcome(self, key: str, worker: str) -> None:
        self.keys.append(key)


@pytest.mark.parametrize("decision", ["approve", "deny", "cancel"])
@pytest.mark.parametrize("is_all_lost", [False, True])
async def test_what_a_caller_was_told_holds_for_every_dispatcher(
    decision: str, is_all_lost: bool
) -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        turn = await one.dispatch([call()], session="s", turn="t")
        handle, approval, loss = turn[0].handle or "", await one_waits(one), Loss(one)
        if decision == "cancel":
            await one.task_cancel(handle, session="s")
        else:
            decide = one.approvals.approve if decision == "approve" else one.approvals.deny
            await decide(approval.id, by="anna")
        told = await one.task_result(handle, session="s", wait=10)
        assert told.executed is (Executed.YES if decision == "approve" else Executed.NO)
        loss.happen()
        records = one._server.records
        if is_all_lost:
            records.clear()

        def is_settled() -> bool:
            return approval.id in records and records[approval.id].state == "settled"

        await eventually(is_settled, "it is told again")
        if not is_all_lost:
            with pytest.raises(ApprovalRefused):
                await one.approvals.approve(approval.id, by="bob")
        async with second(one, background_wait=0.05, lease_ttl=0.4) as other:
            [again] = await other.dispatch([call()], session="s", turn="t")
            assert (again.code, again.executed, again.data) == (told.code, told.executed, told.data)
    assert len(RAN) == (decision == "approve")


async def test_a_call_whose_start_was_lost_is_told_as_one_that_may_have_run() -> None:
    async with Dispatcher.in_memory([pay_slowly], settings=QUICK) as one:
        turn = await one.dispatch([call("pay_slowly")], session="s", turn="t")
        approval, loss = await one_waits(one), Loss(one)
        await one.approvals.approve(approval.id, by="anna")
        await eventually(lambda: GATE.came, "it runs")
        loss.happen()
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
        GATE.open()
    assert (told.code, told.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)


async def test_a_call_that_may_have_run_is_not_sent_again_when_it_is_approved_once_more() -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        async with second(one, background_wait=0.05, lease_ttl=0.4) as other:
            await other.dispatch([call()], session="s", turn="t")
            await eventually(lambda: other._parts.in_flight.all_open(), "it waits")
        approval, server = await one_waits(one), one._server
        server.epoch += "."
        server.marks[approval.id] = math.inf
        await one.approvals.approve(approval.id, by="anna")
        record = server.records[approval.id]
        await eventually(lambda: record.state == "settled", "it is ended")
        [told] = await one.dispatch([call()], session="s", turn="t")
    assert (told.code, told.executed, RAN) == (Code.WORKER_LOST, Executed.UNKNOWN, [])


async def test_an_approved_call_that_was_sent_unconfirmed_before_a_loss_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        turn = await one.dispatch([call()], session="s", turn="t")
        approval, transport = await one_waits(one), one._parts.in_flight._transport
        publish = transport.publish

        async def lost(*_: Any, **__: Any) -> Any:
            """It may have run: its worker is lost with the server's last moment."""
            monkeypatch.setattr(transport, "publish", publish)
            one._server.epoch += "."
            raise ServerUnavailable("open", sent=True)

        monkeypatch.setattr(transport, "publish", lost)
        await one.approvals.approve(approval.id, by="anna")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
    assert (told.code, told.executed, RAN) == (Code.WORKER_LOST, Executed.UNKNOWN, [])


async def test_another_dispatcher_sends_nothing_that_was_denied_and_approved_after_a_loss() -> None:
    async with (
        Dispatcher.in_memory([pay], settings=QUICK) as one,
        second(one, background_wait=0.05, lease_ttl=0.4) as other,
    ):
        await other.dispatch([call()], session="another", turn="t")
        waits = other._in_flight.ended_calls
        await eventually(lambda: waits._epoch, "it knows the server's epoch")
        turn = await one.dispatch([call()], session="s", turn="t")
        first = next(a for a in await one.approvals.waiting() if a.session == "s")
        await one.approvals.deny(first.id, by="anna")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
        one._server.records.clear()
        one._server.marks.clear()
        one._server.epoch += "."
        await other.dispatch([call()], session="s", turn="t")
        with suppress(ApprovalRefused, KeyError):
            await other.approvals.approve(first.id, by="bob")
        await eventually(lambda: one._server.records[first.id].state == "settled", "it is told")
        [again] = await other.dispatch([call()], session="s", turn="t", wait=10)
    assert (told.executed, again.executed, RAN) == (Executed.NO, Executed.NO, [])


@pytest.mark.parametrize("is_all_lost", [False, True])
async def test_a_call_that_was_cancelled_runs_nowhere_after_a_loss(
    is_all_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Dispatcher.in_memory([add], settings=QUICK) as one:
        server, may_claim = one._server, asyncio.Event()
        records, claim = server.records, server.claim

        async def late(*claims: Any, **options: Any) -> Any:
            await may_claim.wait()
            return await claim(*claims, **options)

        monkeypatch.setattr(server, "claim", late)
        asking = asyncio.create_task(one.dispatch([call("add")], session="s", turn="t"))
        await eventually(lambda: records, "it is queued")
        loss = Loss(one)
        assert await one.cancel(session="s") == 1
        [told] = await asking
        loss.happen()
        if is_all_lost:
            records.clear()
        may_claim.set()
        await eventually(lambda: [r.state for r in records.values()] == ["settled"], "it is told")
        async with second(one, background_wait=0.05, lease_ttl=0.4) as other:
            [again] = await other.dispatch([call("add")], session="s", turn="t")
    assert (told.executed, again.code, again.executed) == (Executed.NO, told.code, Executed.NO)
    assert RAN == []


async def test_the_end_of_a_sent_call_is_told_once_and_never_as_a_late_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Late()
    async with Dispatcher.in_memory([pay_slowly], settings=QUICK, observers=[late]) as one:
        turn = await one.dispatch([call("pay_slowly")], session="s", turn="t")
        approval, loss = await one_waits(one), Loss(one)
        await one.approvals.approve(approval.id, by="anna")
        await eventually(lambda: GATE.came, "it runs")
        told = Told(one, monkeypatch)
        loss.happen()
        result = await one.task_result(turn[0].handle or "", session="s", wait=10)
        one._server.epoch += "."
        waits = one._in_flight.ended_calls
        await eventually(lambda: waits._epoch == one._server.epoch, "it is noticed")
        await eventually(lambda: not waits._unrestored, "all is told")
        GATE.open()
    assert result.code is Code.WORKER_LOST
    assert (told.keys, late.keys) == ([approval.id, approval.id], [])


async def test_an_end_that_could_not_be_told_in_time_does_not_end_a_new_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(background_wait=0.05, lease_ttl=0.4, background_result_ttl=1.0)
    async with Dispatcher.in_memory([pay], settings=settings) as one:
        await one.dispatch([call()], session="s", turn="t")
        await one.approvals.deny((await one_waits(one)).id, by="anna")
        waits = one._in_flight.ended_calls
        await eventually(lambda: waits._ends, "its end is remembered")
        [end] = waits._ends.values()
        told = Told(one, monkeypatch, is_away=True)
        one._server.epoch += "."
        await eventually(lambda: waits._unrestored, "it is noticed")
        await eventually(lambda: time.monotonic() > end.until, "its end is no longer kept")
        one._server.records.clear()
        one._server.marks.clear()
        await one.dispatch([call()], session="s", turn="t")
        approval = await one_waits(one)
        told.is_away = False
        await eventually(lambda: not waits._unrestored, "nothing is left to tell")
        assert (await one_waits(one)).id == approval.id


async def test_a_call_that_is_found_lost_late_is_answered_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        turn = await one.dispatch([call()], session="s", turn="t")
        approval, transport = await one_waits(one), one._parts.in_flight._transport
        publish, waits, tries = transport.publish, one._in_flight.ended_calls, list[int]()

        async def lost(*arguments: Any, **options: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                one._server.epoch += "."
            elif waits._sent_restored_in == one._server.epoch:
                return await publish(*arguments, **options)
            await asyncio.sleep(0.01)
            raise ServerUnavailable("open", sent=True)

        monkeypatch.setattr(transport, "publish", lost)
        await one.approvals.approve(approval.id, by="anna")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
    assert told is not None, "it is not stuck"
    assert (told.code, told.executed, RAN) == (Code.WORKER_LOST, Executed.UNKNOWN, [])


async def test_a_denial_of_a_call_that_may_have_run_is_not_forgotten_either() -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        turn = await one.dispatch([call()], session="s", turn="t")
        approval, loss = await one_waits(one), Loss(one)
        one._server.records[approval.id].unsent_in = ""
        await one.approvals.deny(approval.id, by="anna")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
        loss.happen()
        record = one._server.records[approval.id]
        await eventually(lambda: record.state == "settled", "it is told again")
        with pytest.raises(ApprovalRefused):
            await one.approvals.approve(approval.id, by="bob")
        async with second(one, background_wait=0.05, lease_ttl=0.4) as other:
            [again] = await other.dispatch([call()], session="s", turn="t")
    assert (told.code, told.executed) == (again.code, again.executed)
    assert (told.code, told.executed, RAN) == (Code.DENIED, Executed.UNKNOWN, [])


async def test_ends_are_told_again_in_small_parts_and_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        calls = [{"id": f"c-{n}", "name": "pay", "input": {"amount": n}} for n in range(40)]
        await one.dispatch(calls, session="s", turn="t")
        ids = [each.id for each in await one.approvals.waiting()]
        for id in ids:
            await one.approvals.deny(id, by="anna")
        await eventually(lambda: len(one._in_flight.ended_calls._ends) == 40, "all ended")
        transport, told = one._parts.in_flight._transport, list[list[str]]()
        close_calls, is_away = transport.close_calls, [False, True, True, False]

        async def close(closings: Sequence[Closing], **options: Any) -> Any:
            if is_away and is_away.pop(0):
                raise ServerUnavailable("close", sent=False)
            told.append([closing.key for closing in closings])
            return await close_calls(closings, **options)

        monkeypatch.setattr(transport, "close_calls", close)
        one._server.records.clear()
        one._server.epoch += "."
        await eventually(lambda: len(one._server.records) == 40, "all are told again")
    assert sorted(key for part in told for key in part) == sorted(ids)
    assert max(map(len, told)) < 40


async def test_what_was_denied_stays_denied_when_it_is_asked_again_at_once() -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        await one.dispatch([call()], session="s", turn="t")
        approval, loss = await one_waits(one), Loss(one)
        await one.approvals.deny(approval.id, by="anna")
        await eventually(lambda: one._in_flight.ended_calls._ends, "its end is remembered")
        loss.happen()
        turn = await one.dispatch([call()], session="s", turn="t")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
    assert (told.code, told.executed, RAN) == (Code.DENIED, Executed.NO, [])


async def test_what_a_host_does_to_a_result_changes_nothing_that_is_told_again() -> None:
    async with Dispatcher.in_memory([look_up], settings=QUICK) as one:
        turn = await one.dispatch([call("look_up")], session="s", turn="t")
        handle, approval, loss = turn[0].handle or "", await one_waits(one), Loss(one)
        await one.approvals.approve(approval.id, by="anna")
        told = await one.task_result(handle, session="s", wait=10)
        told.data["amount"] = object()
        loss.happen()
        record = one._server.records[approval.id]
        await eventually(lambda: record.state == "settled", "it is told again")
        async with second(one, background_wait=0.05, lease_ttl=0.4) as other:
            [again] = await other.dispatch([call("look_up")], session="s", turn="t")
            assert again.data == {"amount": 5}


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_the_end_of_an_earlier_request_does_not_end_a_new_one(is_elsewhere: bool) -> None:
    settings = Settings(background_wait=0.05, lease_ttl=0.4, background_result_ttl=1.0)
    async with (
        Dispatcher.in_memory([pay], settings=settings) as one,
        second(one, background_wait=0.05, lease_ttl=0.4) as other,
    ):
        await one.dispatch([call()], session="s", turn="t")
        await one.approvals.deny((await one_waits(one)).id, by="anna")
        ends = one._in_flight.ended_calls._ends
        await eventually(lambda: ends, "its end is remembered")
        [end] = ends.values()
        await eventually(lambda: time.monotonic() > end.until, "its end is no longer kept")
        one._server.records.clear()
        one._server.marks.clear()
        asker = other if is_elsewhere else one
        await asker.dispatch([call()], session="s", turn="t")
        approval = await one_waits(asker)
        one._server.epoch += "."
        record = one._server.records[approval.id]
        await eventually(lambda: record.epoch == one._server.epoch, "it is confirmed")
        assert (await one_waits(asker)).id == approval.id


async def test_a_call_whose_record_was_lost_may_have_been_sent_by_another_dispatcher() -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        turn = await one.dispatch([call()], session="s", turn="t")
        approval = await one_waits(one)
        one._server.records.clear()
        one._server.epoch += "."
        assert (await one_waits(one)).id == approval.id, "it is written again"
        record = one._server.records[approval.id]
        one._server.epoch += "."
        await eventually(lambda: record.epoch == one._server.epoch, "it is confirmed")
        await one.approvals.deny(approval.id, by="anna")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
    assert (told.code, told.executed) == (Code.DENIED, Executed.UNKNOWN)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_dispatcher_that_is_gone_may_have_sent_what_waits(is_gone: bool) -> None:
    async with Dispatcher.in_memory([pay], settings=QUICK) as one:
        turn = await one.dispatch([call()], session="s", turn="t")
        async with second(one, background_wait=0.05) as other:
            await other.dispatch([call()], session="s", turn="t")
            approval, loss = await one_waits(one), Loss(one)
            if not is_gone:
                loss.happen()
                record = one._server.records[approval.id]
                await eventually(lambda: record.epoch == one._server.epoch, "it is confirmed")
        if is_gone:
            loss.happen()
            record = one._server.records[approval.id]
            await eventually(lambda: record.epoch == one._server.epoch, "it is confirmed")
        await one.approvals.deny(approval.id, by="anna")
        told = await one.task_result(turn[0].handle or "", session="s", wait=10)
    assert told.executed is (Executed.UNKNOWN if is_gone else Executed.NO)


async def test_a_call_cancelled_in_the_pause_before_its_retry_is_not_run_after_a_loss() -> None:
    async with Dispatcher.in_memory(
        [fail_at_first], settings=QUICK.model_copy(update={"retry_delay": 5.0})
    ) as dispatcher:
        asked = asyncio.ensure_future(dispatcher.dispatch(call("fail_at_first"), **SAME))
        await eventually(lambda: RAN, "its first attempt has failed")
        [key] = dispatcher._server.records
        await eventually(lambda: dispatcher._server.state(key) == "settled", "it waits")
        await dispatcher.cancel(session="s")
        told = (await asked)[0]
        assert (told.code, told.executed) == (Code.CANCELLED, Executed.YES)
        dispatcher._server.forget()
        await eventually(lambda: dispatcher._server.outcome(key), "its end is written again")
        again = (await dispatcher.dispatch(call("fail_at_first"), **SAME))[0]
    assert (again.code, again.executed, RAN) == (Code.CANCELLED, Executed.YES, [5])


async def test_a_waiting_call_that_the_server_lost_is_written_again_before_a_lease_has_passed() -> (
    None
):
    """Else a dispatcher without the rule would run it, and nobody could decide about it."""
    patient = QUICK.model_copy(update={"lease_ttl": 60.0})
    async with Dispatcher.in_memory([pay], settings=patient) as dispatcher:
        asked = asyncio.ensure_future(dispatcher.dispatch(call(), **SAME))
        waiting = await one_waits(dispatcher)
        dispatcher._server.forget()
        assert await dispatcher.approvals.waiting() == []
        assert (await one_waits(dispatcher)).id == waiting.id
        await dispatcher.cancel(session="s")
        assert (await asked)[0].executed is Executed.UNKNOWN
