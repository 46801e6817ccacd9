"""R66: a call that waits for a person has one record, which every road to a run goes through."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.integration.twins import second
from tests.waiting import eventually
from toolpool import (
    ApprovalRefused,
    AskApproval,
    Code,
    Dispatcher,
    Executed,
    Hooks,
    Settings,
    State,
    ToolResult,
    tool,
)
from toolpool.contract.errors import ServerUnavailable
from toolpool.dispatcher import approval_waits
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.calls.pending import Stage

RAN: list[int] = []


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


@tool(effects="write", approval=True)
async def fails(amount: int) -> str:
    """Fail."""
    RAN.append(amount)
    raise RuntimeError("no")


TOOLS = [pay, pay_rarely, fails]
QUICK = Settings(background_wait=0.05, queue_timeout=5.0)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def call(amount: int = 5, name: str = "pay", id: str = "c-1") -> dict[str, Any]:
    return {"id": id, "name": name, "input": {"amount": amount}}


async def asked(dispatcher: Dispatcher, *calls: dict[str, Any], turn: str = "t") -> ToolResult:
    """What the first of the calls comes to within the wait budget."""
    return (await dispatcher.dispatch([*(calls or (call(),))], session="s", turn=turn))[0]


async def id_of_one(approvals: Approvals) -> str:
    """The id of the only approval that waits, as soon as there is one."""

    async def waits() -> bool:
        return len(await approvals.waiting()) == 1

    await eventually(waits, "a call waits")
    return (await approvals.waiting())[0].id


async def test_asked_again_after_it_was_refused_for_now_a_person_is_asked() -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as dispatcher:
        transport = dispatcher._in_flight._transport
        transport.is_full = True
        refused = await asked(dispatcher)
        assert (refused.code, refused.executed) == (Code.OVERLOADED, Executed.NO)
        transport.is_full = False
        again: list[ToolResult] = []

        async def is_taken() -> bool:
            again[:] = [await asked(dispatcher)]
            return again[0].code is not Code.OVERLOADED

        await eventually(is_taken, "its answer's time to ask again has come")
        assert again[0].is_running and RAN == []
        await dispatcher.approvals.deny(await id_of_one(dispatcher.approvals), by="anna")
        assert (await asked(dispatcher)).code is Code.DENIED
    assert RAN == []


async def test_what_was_approved_and_refused_for_now_stays_approved() -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as dispatcher:
        transport = dispatcher._in_flight._transport
        first = await asked(dispatcher)
        assert first.handle is not None
        id = await id_of_one(dispatcher.approvals)
        transport.is_full = True
        await dispatcher.approvals.approve(id, by="anna")
        refused = await dispatcher.task_result(first.handle, session="s", wait=5)
        assert refused is not None
        assert (refused.code, refused.executed) == (Code.OVERLOADED, Executed.NO)
        transport.is_full = False

        async def is_paid() -> bool:
            return (await asked(dispatcher)).data == "paid 5"

        await eventually(is_paid, "asked again it runs, and nobody is asked")
        assert await dispatcher.approvals.waiting() == []
    assert RAN == [5]


async def test_approved_and_left_at_its_rate_limit_it_never_runs() -> None:
    settings = Settings(background_wait=0.05, queue_timeout=120.0)
    async with Dispatcher.in_memory(TOOLS, settings=settings) as dispatcher:
        server = dispatcher._server
        await dispatcher.dispatch([call(1, "pay_rarely")], session="s", turn="t-1", wait=0)
        await dispatcher.approvals.approve(await id_of_one(dispatcher.approvals), by="anna")
        await eventually(lambda: RAN == [1], "the first one runs")
        asking = asyncio.ensure_future(
            dispatcher.dispatch([call(2, "pay_rarely")], session="s", turn="t-2", wait=60)
        )
        id = await id_of_one(dispatcher.approvals)
        await dispatcher.approvals.approve(id, by="anna")

        async def waits_for_its_place() -> bool:
            found = dispatcher._in_flight.root(id)
            return found is not None and found.limited is not None and found.limited.waits

        await eventually(waits_for_its_place, "it waits for its place")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert server.records[id].approval == "cancelled"
        assert (await dispatcher.approvals.get(id)).state == "cancelled"
        again = await dispatcher.dispatch([call(2, "pay_rarely")], session="s", turn="t-2")
        assert (again[0].code, again[0].executed) == (Code.CANCELLED, Executed.NO)
    assert RAN == [1]


async def test_what_is_approved_in_its_last_moment_runs() -> None:
    settings = Settings(background_wait=0.05, approval_expires=0.4)
    async with Dispatcher.in_memory(TOOLS, settings=settings) as dispatcher:
        for number in range(6):
            turn = await dispatcher.dispatch([call(number)], session="s", turn=f"t-{number}")
            handle = turn[0].handle
            assert handle is not None
            [approval] = await dispatcher.approvals.waiting()
            left = approval.expires_at - dispatcher._parts.in_flight._transport.server_time()
            await asyncio.sleep(max(0.0, left - 0.002 * number))
            try:
                await dispatcher.approvals.approve(approval.id, by="anna")
            except Exception:
                is_approved = False
            else:
                is_approved = True
            result = await dispatcher.task_result(handle, session="s", wait=5)
            assert result is not None
            assert result.ok is is_approved and (number in RAN) is is_approved


async def test_waiting_for_a_person_counts_as_waiting() -> None:
    settings = Settings(background_wait=0.0, waiting_per_session=10)
    async with Dispatcher.in_memory(TOOLS, settings=settings) as dispatcher:
        calls = [call(i, id=f"c-{i}") for i in range(40)]
        turn = await dispatcher.dispatch(calls, session="s", turn="t")
        refused = [result for result in turn if result.code is Code.OVERLOADED]
        assert len(refused) == 30 and all(r.executed is Executed.NO for r in refused)
        assert len(await dispatcher.approvals.waiting()) == 10
        assert await dispatcher.cancel("s") == 10
        pump = dispatcher._in_flight._pump
        assert pump.waiting == 0 and pump.sessions == {}


async def test_a_dispatcher_that_does_not_ask_waits_for_what_another_asked() -> None:
    @tool(effects="write")
    async def send(amount: int) -> str:
        """Send."""
        RAN.append(amount)
        return f"sent {amount}"

    hooks = Hooks(before_call=lambda _: AskApproval("large"))
    async with Dispatcher.in_memory([send], settings=QUICK, hooks=hooks) as strict:
        async with second(strict) as lax:
            waits = await asked(strict, call(7, "send"))
            assert waits.is_running
            other = asyncio.ensure_future(
                lax.dispatch([call(7, "send")], session="s", turn="t", wait=30)
            )
            id = await id_of_one(strict.approvals)
            await eventually(
                lambda: len(strict._server.records[id].replies) == 2, "the other has joined"
            )
            assert RAN == []
            await strict.approvals.approve(id, by="anna")
            assert (await other)[0].data == "sent 7"
    assert RAN == [7]


@pytest.mark.parametrize("decide", ["approve", "deny", "cancel"])
async def test_the_outcome_is_delivered_to_followers_after_a_restart(
    decide: str,
) -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as worker:
        async with second(worker, background_wait=0.05) as gone:
            handle = (await asked(gone)).handle
        assert handle is not None
        async with second(worker) as dispatcher:
            ended = asyncio.ensure_future(anext(aiter(dispatcher.completed(session="s"))))
            id = await id_of_one(dispatcher.approvals)
            await eventually(lambda: dispatcher.in_flight("s") == 1, "it waits for it")
            if decide == "cancel":
                told = await dispatcher.task_cancel(handle, session="s")
                assert (told.code, told.executed) == (Code.CANCELLED, Executed.NO)
            else:
                await getattr(dispatcher.approvals, decide)(id, by="anna")
            assert await asyncio.wait_for(ended, 10) == handle
            result = await dispatcher.task_result(handle, session="s", wait=5)
            assert result is not None
            assert result.code is {"deny": Code.DENIED, "cancel": Code.CANCELLED}.get(decide)
            said = await asked(dispatcher, call(1, "task_result") | {"input": {"handle": handle}})
            assert said.data["state"] == ("COMPLETED" if decide == "approve" else "FAILED")
    assert ([5] if decide == "approve" else []) == RAN


async def test_what_was_approved_and_sent_by_nobody_in_time_is_not_told_as_unapproved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approval_waits, "_EVERY_SECONDS", 60.0)  # nobody follows what is approved
    short = {"background_wait": 0.05, "approval_expires": 1.0, "queue_timeout": 0.05}
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as worker:
        async with second(worker, **short) as first:
            turn = await first.dispatch(call(), session="s", turn="t", timeout=0.05)
            handle = turn[0].handle or ""
            id = await id_of_one(first.approvals)
        approval = await worker.approvals.approve(id, by="anna")
        over_at = approval.expires_at + 0.2

        async def is_over() -> bool:
            return time.time() > over_at

        await eventually(is_over, "the time of what was approved is over")
        async with second(worker, **short) as other:
            result = await other.task_result(handle, session="s", wait=5)
    assert result is not None
    assert (result.code, result.executed) == (Code.EXPIRED, Executed.NO)
    assert RAN == []


async def test_a_cancelled_call_without_a_decision_is_no_rejected_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as worker:
        async with second(worker, background_wait=0.05) as first:
            handle = (await asked(first)).handle or ""
            await id_of_one(first.approvals)
            await first.task_cancel(handle, session="s")
        async with second(worker) as other:
            result = await other.task_result(handle, session="s", wait=5)
    assert result is not None and result.code is Code.CANCELLED
    assert "message_rejected" not in caplog.text


async def test_a_denied_call_is_denied_to_every_follower_of_its_handle() -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as worker:
        async with second(worker, background_wait=0.05) as first:
            handle = (await asked(first)).handle
            await first.approvals.deny(await id_of_one(first.approvals), by="anna")
        async with second(worker) as other:
            result = await other.task_result(handle or "", session="s", wait=5)
            assert result is not None
            assert (result.code, result.executed) == (Code.DENIED, Executed.NO)
            assert (await asked(other)).code is Code.DENIED
    assert RAN == []


async def test_resuming_a_forgotten_turn_asks_for_approval_only_once() -> None:
    """R50: which call of which turn it is cannot be said, so it may have been asked and run."""
    use = {"type": "tool_use", "id": "toolu_01", "name": "pay", "input": {"amount": 5}}
    response = {"id": "msg_01", "type": "message", "role": "assistant", "content": [use]}
    history = [{"role": "user", "content": "pay"}, {"role": "assistant", "content": [use]}]
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as worker:
        async with second(worker, turn_ttl=0, background_wait=0.05) as gone:
            asked_for = {**response, "stop_reason": "tool_use"}
            assert (await gone.dispatch(asked_for, session="s"))[0].is_running
        async with second(worker, turn_ttl=0, background_wait=0.05) as other:
            resumed = await other.resume(history, session="s")
            assert "may have run before" in str(resumed[-1])
            id = await id_of_one(other.approvals)
            await other.approvals.approve(id, by="anna")
            await eventually(lambda: RAN == [5], "the one that was asked about runs")


async def test_a_dispatcher_that_joins_what_waits_answers_at_its_wait_budget() -> None:
    """It was refused there, or asked for without the rule: the model is not kept for a day."""
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as worker:
        async with (
            second(worker, background_wait=0.05) as one,
            second(worker, background_wait=0.05) as full,
        ):
            assert (await asked(one)).is_running
            full._in_flight._transport.is_full = True
            async with asyncio.timeout(10):
                joined = await asked(full)
            assert (joined.state, joined.handle is not None) == (State.WAITING, True)
    assert RAN == []


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_call_that_may_have_been_noted_is_not_told_that_it_did_not_run(
    is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may approve it, or has sent it: the answers of the server are lost."""
    settings = Settings(background_wait=5.0, queue_timeout=0.3)
    async with Dispatcher.in_memory(TOOLS, settings=settings) as dispatcher:
        transport = dispatcher._in_flight._transport
        ask = transport.approvals.ask

        async def unanswered(*args: Any, **kwargs: Any) -> Any:
            await ask(*args, **kwargs)
            raise ServerUnavailable("approval", sent=True)

        async def away(*args: Any, **kwargs: Any) -> Any:
            raise ServerUnavailable("close", sent=False)

        monkeypatch.setattr(transport.approvals, "ask", unanswered)
        monkeypatch.setattr(transport, "close_calls", away)
        named = {"session": "s", "turn": "t"} if is_named else {}
        result = (await dispatcher.dispatch([call()], **named, wait=5))[0]
        assert (result.code, result.executed) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)


async def test_what_was_seen_to_run_is_not_sent_again_where_the_server_lost_that() -> None:
    """Its last moments: the record says again that the call is approved, and not sent."""
    gate = asyncio.Event()

    @tool(effects="write", approval=True)
    async def slow(amount: int) -> str:
        """Pay slowly."""
        RAN.append(amount)
        await gate.wait()
        return f"paid {amount}"

    async with Dispatcher.in_memory([slow], settings=QUICK) as dispatcher:
        traffic = dispatcher._in_flight
        asked_for = asyncio.ensure_future(
            dispatcher.dispatch([call(5, "slow")], session="s", turn="t", wait=60)
        )
        await dispatcher.approvals.approve(await id_of_one(dispatcher.approvals), by="anna")
        [pending] = traffic.all_open()
        await eventually(lambda: pending.stage is Stage.RUNNING, "it is seen to run")
        record = dispatcher._server.records[pending.key]
        was, record.state = record.state, "approved"
        traffic.approval_required(pending)
        assert (pending.worker, pending.awaits_approval) == ("", False)
        record.state = was
        gate.set()
        assert (await asked_for)[0].data == "paid 5"
    assert RAN == [5]


@pytest.mark.parametrize("asker_lives", [True, False])
async def test_a_call_whose_record_the_server_lost_waits_for_every_dispatcher_alike(
    asker_lives: bool,
) -> None:
    """Whoever asked about it notes it once more; where nobody does, it ends in the same words."""
    times = {"background_wait": 0.05, "queue_timeout": 2.0, "lease_ttl": 0.6}
    async with Dispatcher.in_memory(TOOLS, settings=Settings(**times)) as worker:
        async with AsyncExitStack() as stack:
            asker = await stack.enter_async_context(second(worker, **times))
            other = await stack.enter_async_context(second(worker, **times))
            handle = (await asked(asker)).handle
            assert handle is not None
            if not asker_lives:
                await asker.close()
            worker._server.forget()  # every record, and not the handles
            listed = await other.task_list(session="s")
            assert [row["state"] for row in listed] == ["WAITING"]
            first = await other.task_result(handle, session="s")
            assert first is None or first.state is State.WAITING
            if asker_lives:
                await other.approvals.approve(await id_of_one(other.approvals), by="anna")
            ends = [await other.task_result(handle, session="s", wait=10)]
            if asker_lives:
                ends.append(await asker.task_result(handle, session="s", wait=10))
            told = {(end.ok, end.code, end.executed) for end in ends if end is not None}
            ran = (True, None, Executed.YES)
            assert told == {ran if asker_lives else (False, Code.EXPIRED, Executed.UNKNOWN)}


async def test_a_record_that_says_it_waits_longer_cannot_be_approved_after_its_signed_end() -> None:
    """R63: what the record says of its end nobody signed."""
    times = {"background_wait": 0.05, "approval_expires": 0.3}
    async with Dispatcher.in_memory(TOOLS, settings=Settings(**times)) as dispatcher:
        await asked(dispatcher)
        id = await id_of_one(dispatcher.approvals)
        [approval] = await dispatcher.approvals.waiting()
        record = dispatcher._server.records[id]
        kept = record.request, record.expires + 3600
        server_time = dispatcher._in_flight._transport.server_time

        def restart_queue_wait() -> bool:  # after its dispatcher has ended it
            return record.state == "settled" and server_time() > approval.expires_at

        await eventually(restart_queue_wait, "its time is over")
        record.state = record.approval = "waiting"
        record.request, record.expires = kept
        with pytest.raises(ApprovalRefused, match="expired"):
            await dispatcher.approvals.approve(id, by="anna")
    assert RAN == []


@pytest.mark.parametrize("is_over", [False, True])
async def test_the_retry_of_an_approved_call_asked_again_has_its_approval_while_that_lasts(
    is_over: bool,
) -> None:
    """Else it is the outcome of the try before it, and not that nobody approved it."""

    @tool(effects="read", approval=True, retries=1, timeout=0.5)
    async def look(amount: int) -> str:
        """Fail once."""
        RAN.append(amount)
        if len(RAN) == 1:
            raise RuntimeError("not yet")
        return "seen"

    never = Settings(
        background_wait=0.05, queue_timeout=1.0, retry_delay=60.0, approval_expires=1.0
    )
    async with Dispatcher.in_memory([look], settings=never) as dispatcher:
        asked_for = asyncio.ensure_future(
            dispatcher.dispatch([call(5, "look")], session="s", turn="t", wait=30)
        )
        id = await id_of_one(dispatcher.approvals)
        await dispatcher.approvals.approve(id, by="anna")
        assert (await asked_for)[0].code is Code.RAISED
        end = dispatcher._server.records[id].expires
        async with second(dispatcher, retry_delay=0.01) as other:
            if is_over:
                await eventually(lambda: time.time() > end, "its approval is over")
            again = (await other.dispatch([call(5, "look")], session="s", turn="t", wait=30))[0]
    assert (again.code, again.executed) == (Code.RAISED if is_over else None, Executed.YES)
    assert again.ok is not is_over
    assert len(RAN) == (1 if is_over else 2)
