"""A call may need a person: it waits, bound to its arguments, and is answered once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field

from tests.integration.twins import alone, second
from tests.waiting import eventually
from toolpool import (
    Allow,
    Approval,
    ApprovalRefused,
    AskApproval,
    Code,
    Dispatcher,
    Executed,
    Hooks,
    Rewrite,
    Settings,
    State,
    ToolContext,
    ToolResult,
    tool,
)
from toolpool.contract.envelope import CatalogEntry
from toolpool.dispatcher.observer import Audit, Observer

RAN: list[int] = []


@tool(effects="write", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return f"paid {amount}"


@tool(effects="write", approval=True)
async def pay_for(amount: int, ctx: ToolContext) -> Any:
    """Pay, for a user."""
    RAN.append(amount)
    return ctx.context


@tool(effects="read")
async def look() -> str:
    """Look."""
    return "seen"


TOOLS = [pay, pay_for, look]
QUICK = Settings(background_wait=0.05)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def call(amount: int = 5, name: str = "pay") -> dict[str, Any]:
    return {"id": "c-1", "name": name, "input": {"amount": amount}}


async def one_waits(dispatcher: Dispatcher) -> Approval:
    """The only approval there is, as soon as it waits."""

    async def waits() -> bool:
        return len(await dispatcher.approvals.waiting()) == 1

    await eventually(waits, "a call waits for approval")
    [approval] = await dispatcher.approvals.waiting()
    return approval


async def asked(dispatcher: Dispatcher, **more: Any) -> ToolResult:
    """What the model is told at the end of the wait budget."""
    turn = await dispatcher.dispatch(call(), session="s-1", turn="t-1", **more)
    return turn[0]


async def test_a_call_waits_for_approval_and_runs_when_it_has_it() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        assert (approval.tool, approval.arguments, approval.session) == (
            "pay",
            {"amount": 5},
            "s-1",
        )
        assert approval.asked_by == "the tool's declaration" and RAN == []
        decided = await dispatcher.approvals.approve(approval.id, by="anna", reason="fine")
        assert (decided.state, decided.decided_by) == ("approved", "anna")
        result = await asking
        assert (result.ok, result.data, RAN) == (True, "paid 5", [5])
        assert await dispatcher.approvals.waiting() == []


async def test_a_denied_call_is_not_run_and_the_model_reads_by_whom_and_why() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.deny(approval.id, by="anna", reason="The budget is spent.")
        result = await asking
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])
    assert result.error == "Tool 'pay' was not run: anna denied it: The budget is spent."


async def test_the_model_gets_a_handle_and_later_the_result() -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as dispatcher:
        told = await asked(dispatcher)
        assert told.ok and told.is_running and told.handle is not None
        assert told.data == {"handle": told.handle, "state": "WAITING"}
        assert told.note is not None and "runs only if a person approves it" in told.note
        got = {"id": "c-2", "name": "task_result", "input": {"handle": told.handle, "wait": 0}}
        waits = (await dispatcher.dispatch(got, session="s-1"))[0].data
        assert waits["state"] == "WAITING"
        [listed] = await dispatcher.task_list(session="s-1")
        assert listed["state"] == told.state == State.WAITING
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.approve(approval.id, by="anna")
        result = await dispatcher.task_result(told.handle, session="s-1", wait=10)
        assert result is not None and result.data == "paid 5"
        assert RAN == [5]


async def test_a_call_without_approval_in_time_is_denied() -> None:
    hooks = Hooks(before_call=lambda _: AskApproval("a reason", expires=0.3))
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        turn = await dispatcher.dispatch(
            {"id": "c", "name": "look", "input": {}}, session="s-1", turn="t-1", wait=30
        )
        assert (turn[0].code, turn[0].executed) == (Code.DENIED, Executed.NO)
        assert "nobody approved it in time" in (turn[0].error or "")


@pytest.mark.parametrize("first", ["approve", "deny"])
@pytest.mark.parametrize("second", ["approve", "deny"])
async def test_what_was_decided_cannot_be_decided_again(first: str, second: str) -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        await getattr(dispatcher.approvals, first)(approval.id, by="anna")
        with pytest.raises(ApprovalRefused, match="by anna") as refused:
            await getattr(dispatcher.approvals, second)(approval.id, by="ben")
        assert refused.value.reason == "decided"
        result = await asking
        assert result.ok is (first == "approve")
        with pytest.raises(ApprovalRefused, match="by anna"):
            await getattr(dispatcher.approvals, second)(approval.id, by="ben")


async def test_only_those_who_may_decide() -> None:
    hooks = Hooks(before_call=lambda _: AskApproval(approvers=("anna", "ben")))
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        work = dispatcher.dispatch({"name": "look", "input": {}}, session="s-1", turn="t-1")
        asking = asyncio.ensure_future(work)
        approval = await one_waits(dispatcher)
        for by in ("eve", "Anna", "anna "):
            with pytest.raises(ApprovalRefused, match="anna, ben may") as refused:
                await dispatcher.approvals.approve(approval.id, by=by)
            assert refused.value.reason == "not_allowed"
        for wrong in ("", None, 5, "x" * 300, "\ud800"):
            with pytest.raises(ValueError, match="by must be"):
                await dispatcher.approvals.approve(approval.id, by=wrong)  # type: ignore[arg-type]
        await dispatcher.approvals.approve(approval.id, by="ben")
        assert (await asking)[0].ok


async def test_an_approval_is_bound_to_the_arguments_that_were_seen() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        with pytest.raises(ApprovalRefused, match="other arguments") as refused:
            await dispatcher.approvals.approve(approval.id, by="anna", digest="0" * 32)
        assert refused.value.reason == "other_arguments"
        await dispatcher.approvals.approve(approval.id, by="anna", digest=approval.digest)
        assert (await asking).ok


async def test_a_hook_that_rewrites_otherwise_later_does_not_change_what_was_approved() -> None:
    amounts = itertools.count(10, 10)
    hooks = Hooks(before_call=lambda _: Rewrite({"amount": next(amounts)}))
    async with Dispatcher.in_memory(TOOLS, settings=QUICK, hooks=hooks) as dispatcher:
        assert (await asked(dispatcher)).is_running
        approval = await one_waits(dispatcher)
        assert approval.arguments == {"amount": 10}
        asking = asyncio.ensure_future(asked(dispatcher, wait=30))
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert (await asking).data == "paid 10" and RAN == [10]


@pytest.mark.parametrize("id", ["", "nothing", "a:b", "\ud800", None, 5, "*"])
async def test_an_unknown_approval_is_refused(id: Any) -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        for ask in (dispatcher.approvals.get(id), dispatcher.approvals.approve(id, by="anna")):
            with pytest.raises(KeyError, match="no approval"):
                await ask


async def _cancelled_by_session(dispatcher: Dispatcher, asking: "asyncio.Task[ToolResult]") -> None:
    await dispatcher.cancel("s-1")
    assert (await asking).code is Code.CANCELLED


async def _cancelled_by_host(_: Dispatcher, asking: "asyncio.Task[ToolResult]") -> None:
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("cancel", [_cancelled_by_session, _cancelled_by_host])
async def test_a_call_that_was_cancelled_cannot_be_approved_any_more(
    cancel: Callable[[Dispatcher, "asyncio.Task[ToolResult]"], Awaitable[None]],
) -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        await cancel(dispatcher, asking)

        async def is_cancelled() -> bool:
            return (await dispatcher.approvals.get(approval.id)).state == "cancelled"

        await eventually(is_cancelled, "it is cancelled")
        with pytest.raises(ApprovalRefused, match="cancelled"):
            await dispatcher.approvals.approve(approval.id, by="anna")
    assert RAN == []


async def test_a_background_call_that_is_cancelled_cannot_be_approved() -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as dispatcher:
        told = await asked(dispatcher)
        approval = await one_waits(dispatcher)
        assert told.handle is not None
        result = await dispatcher.task_cancel(told.handle, session="s-1")
        assert (result.code, result.executed) == (Code.CANCELLED, Executed.NO)

        async def is_cancelled() -> bool:
            return (await dispatcher.approvals.get(approval.id)).state == "cancelled"

        await eventually(is_cancelled, "it is cancelled")


async def test_asked_again_while_it_waits_and_after_it_is_one_call() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        first = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        second = asyncio.ensure_future(asked(dispatcher))
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert (await first).data == (await second).data == "paid 5"
        assert (await asked(dispatcher)).data == "paid 5"
    assert RAN == [5]


async def test_a_denied_call_asked_again_is_denied_without_a_new_approval_request() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.deny(approval.id, by="anna", reason="no")
        first = await asking
        again = await asked(dispatcher)
        assert first.error == again.error and await dispatcher.approvals.waiting() == []


async def test_the_kill_switch_holds_for_what_was_approved() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        await dispatcher.deny("pay", reason="broken")
        await dispatcher.approvals.approve(approval.id, by="anna")
        result = await asking
    assert (result.code, RAN) == (Code.DENIED, []) and "broken" in (result.error or "")


async def test_the_hosts_data_is_still_there_when_it_runs() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        work = dispatcher.dispatch(call(name="pay_for"), session="s", context={"user": "u-1"})
        asking = asyncio.ensure_future(work)
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert (await asking)[0].data == {"user": "u-1"}


async def test_a_read_after_a_write_that_waits_goes_on_at_its_wait_budget() -> None:
    async with Dispatcher.in_memory(TOOLS, settings=QUICK) as dispatcher:
        calls = [call(), {"id": "c-2", "name": "look", "input": {}}]
        turn = await dispatcher.dispatch(calls, session="s-1", turn="t-1")
        assert turn[0].is_running and turn[1].data == "seen"


class Audits(Observer):
    """Keeps what was decided."""

    is_quick = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def audited(self, audit: Audit) -> None:
        """See `Observer.audited`."""
        self.seen.append((audit.what, audit.by, audit.reason))


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_every_step_is_audited_once(decision: str) -> None:
    audits = Audits()
    async with Dispatcher.in_memory(TOOLS, observers=[audits]) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        approval = await one_waits(dispatcher)
        await getattr(dispatcher.approvals, decision)(approval.id, by="anna", reason="so")
        await asking
        await asked(dispatcher)
    what = "approved" if decision == "approve" else "denied"
    assert audits.seen == [("asked", "the tool's declaration", ""), (what, "anna", "so")]


async def test_the_host_is_told_of_every_call_that_waits_and_may_fail() -> None:
    told: list[Approval] = []

    def tell(approval: Approval) -> None:
        told.append(approval)
        raise OSError("the chat is down")

    async with Dispatcher.in_memory(TOOLS, hooks=Hooks(on_approval=tell)) as dispatcher:
        asking = asyncio.ensure_future(asked(dispatcher))
        await eventually(lambda: told, "the host is told")
        await dispatcher.approvals.approve(told[0].id, by="anna", digest=told[0].digest)
        assert (await asking).ok


async def test_calls_without_a_session_can_be_approved_too() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(call()))
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert (await asking)[0].data == "paid 5"


BROKEN: list[str] = []


@tool
async def failing(text: str) -> str:
    """Fail, as long as it is said to."""
    if BROKEN:
        raise ValueError("broken")
    return text


Run = Callable[[str], Awaitable[ToolResult]]


@asynccontextmanager
async def half_open(**settings: Any) -> AsyncIterator[tuple[Any, Run]]:
    """A dispatcher whose tool `failing` may be tried again; a person has to approve `ask`."""
    hooks = Hooks(
        before_call=lambda call: AskApproval() if call.arguments["text"] == "ask" else Allow()
    )
    made = Settings(circuit_minimum_calls=2, circuit_reset_timeout=0.05, **settings)
    async with Dispatcher.in_memory([failing], hooks=hooks, settings=made) as dispatcher:

        async def run(text: str) -> ToolResult:
            calls = [{"id": text, "name": "failing", "input": {"text": text}}]
            return (await dispatcher.dispatch(calls, session="s-1", wait=60.0))[0]

        BROKEN.append("yes")
        for _ in range(2):
            await run("fails")
        BROKEN.clear()
        circuits = dispatcher._in_flight.available._breaker.open_circuits
        await eventually(lambda: circuits() == {"failing": 0.0}, "the pause is over")
        yield dispatcher, run


async def test_others_try_a_tool_while_a_call_of_it_waits_for_a_person() -> None:
    """Nobody can tell how long it waits."""
    async with half_open() as (dispatcher, run):
        asking = asyncio.ensure_future(run("ask"))
        approval = await one_waits(dispatcher)
        assert (await run("works")).ok
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert (await asking).ok


@pytest.mark.parametrize("end", ["approved", "denied", "cancelled", "expired"])
async def test_a_tool_is_tried_whatever_became_of_a_call_that_waited(end: str) -> None:
    expires = 0.3 if end == "expired" else 60.0
    async with half_open(approval_expires=expires) as (dispatcher, run):
        asking = asyncio.ensure_future(run("ask"))
        approval = await one_waits(dispatcher)
        if end == "approved":
            await dispatcher.approvals.approve(approval.id, by="anna")
        elif end == "denied":
            await dispatcher.approvals.deny(approval.id, by="anna")
        elif end == "cancelled":
            await dispatcher.cancel("s-1", call_id="ask")
        assert (await asking).ok is (end == "approved")
        assert (await run("works")).ok


async def test_a_preview_says_that_a_tool_may_be_tried_and_does_not_try_it() -> None:
    async with half_open() as (dispatcher, run):
        call = [{"id": "c", "name": "failing", "input": {"text": "works"}}]
        for _ in range(2):
            (preview,) = await dispatcher.preview(call, session="s-1")
            assert (preview.decision, preview.retry_after) == ("allow", None)
        assert (await run("works")).ok


class Amount(BaseModel):
    n: int = Field(default=1, validation_alias=AliasChoices("N", "n"))


@pytest.mark.parametrize("is_asker_gone", [True, False])
async def test_a_dispatcher_without_a_policy_sends_no_more_than_the_person_saw(
    is_asker_gone: bool,
) -> None:
    """The tool reads `N`, where the person also saw `n`: its worker compares both."""

    @tool(effects="write")
    async def send(amount: Amount) -> None:
        RAN.append(amount.n)

    sent = {"id": "c-1", "name": "send", "input": {"amount": {"n": 5, "N": 900}}}
    hooks = Hooks(before_call=lambda _: AskApproval("large"))
    turn = {"session": "s-1", "turn": "t-1"}
    async with alone([send], background_wait=0.05) as without:
        async with second(without, hooks, background_wait=0.05) as asker:
            assert (await asker.dispatch([sent], **turn))[0].state is State.WAITING
            told = (await without.dispatch([sent], **turn))[0]
            approval = await one_waits(without)
            if not is_asker_gone:
                await without.approvals.approve(approval.id, by="anna")
                waits = without._parts.approval_waits
                await eventually(lambda: not waits._waiting, "it is decided")
        if is_asker_gone:
            await without.approvals.approve(approval.id, by="anna")
        assert told.handle is not None
        result = await without.task_result(told.handle, session="s-1", wait=5)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])


async def test_a_call_that_was_asked_about_for_another_version_of_its_tool_is_denied() -> None:
    @tool(name="pay", effects="write", approval=True, version="2")
    async def newer(amount: int) -> str:
        return f"paid {amount} by transfer"

    async with alone([pay]) as host:
        async with second(host, background_wait=0.05) as old:
            waiting = await asked(old)
        entry = CatalogEntry(spec=newer.spec, published_at=host._server.time() + 1, version="1.0")
        host._server.catalog["pay"] = host._background._envelope.encode(entry)
        async with second(host) as new:
            told = await asked(new, wait=5)
        assert (waiting.state, told.code, told.executed) == (
            State.WAITING,
            Code.DENIED,
            Executed.NO,
        )
        assert "its tool has changed since it was approved" in str(told.error)
        assert RAN == []
