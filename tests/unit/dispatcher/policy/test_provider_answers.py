"""What a provider is told of its own question is written in the question's record before."""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest

from tests.waiting import eventually
from toolpool import (
    Allow,
    Approval,
    AskApproval,
    Deny,
    Dispatcher,
    Hooks,
    Observer,
    ProposedCall,
    tool,
)
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.protocols import CloseReason, Closing
from toolpool.dispatcher.observer import Audit
from toolpool.dispatcher.transports.memory import MemoryTransport

HOOKS = Hooks(before_call=lambda _: AskApproval("drops a table"))
ASKED = [
    {
        "type": "agent.mcp_tool_use",
        "id": "sevt_1",
        "name": "drop",
        "input": {"table": "users"},
        "evaluated_permission": "ask",
        "mcp_server_name": "db",
    }
]


@tool(effects="read")
async def look() -> str:
    """A tool of the pool's, so that there is one."""
    return "seen"


class Audits(Observer):
    """Notes what was audited."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def audited(self, audit: Audit) -> None:
        """See `Observer.audited`."""
        self.seen.append(audit.what)


async def one_waits(dispatcher: Dispatcher) -> Approval:
    """The only question that waits, as soon as there is one."""

    async def waits() -> bool:
        return len(await dispatcher.approvals.waiting()) == 1

    await eventually(waits, "a person is asked")
    return (await dispatcher.approvals.waiting())[0]


def is_yes(turn: Any) -> bool:
    [message] = turn.messages()
    return bool(message["result"] == "allow")


async def asks(dispatcher: Dispatcher, wait: float = 60.0) -> bool:
    """Whether the provider is told yes."""
    return is_yes(await dispatcher.dispatch(ASKED, session="s-1", turn="t", wait=wait))


@pytest.mark.parametrize("is_written", [True, False])
async def test_an_approval_is_consumed_before_it_is_answered(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, failed = MemoryTransport.close_calls, 0

    async def fails_once(
        self: MemoryTransport, closings: Sequence[Closing], **options: Any
    ) -> list[bytes]:
        nonlocal failed
        if options["end"] is not CloseReason.USED or failed:
            return await close(self, closings, **options)
        failed += 1
        if is_written:
            await close(self, closings, **options)
        raise ServerUnavailable("close", sent=True)

    monkeypatch.setattr(MemoryTransport, "close_calls", fails_once)
    async with Dispatcher.in_memory([look], hooks=HOOKS) as dispatcher:
        asking = asyncio.ensure_future(asks(dispatcher))
        approval = await one_waits(dispatcher)
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert await asking is True
        assert dispatcher._server.records[approval.id].state == "settled"
    assert failed == 1


async def test_no_approval_is_answered_that_could_not_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(*_: Any, **__: Any) -> list[bytes]:
        raise ServerUnavailable("close", sent=False)

    monkeypatch.setattr(MemoryTransport, "close_calls", away)
    async with Dispatcher.in_memory([look], hooks=HOOKS) as dispatcher:
        asking = asyncio.ensure_future(asks(dispatcher))
        await dispatcher.approvals.approve((await one_waits(dispatcher)).id, by="anna")
        assert await asking is False


async def test_what_is_approved_as_its_asker_gives_up_is_not_audited_as_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audits, close = Audits(), MemoryTransport.close_calls
    async with Dispatcher.in_memory([look], hooks=HOOKS, observers=[audits]) as dispatcher:
        patient = asyncio.ensure_future(asks(dispatcher))
        approval = await one_waits(dispatcher)

        async def approved_first(self: MemoryTransport, *args: Any, **options: Any) -> Any:
            if options["end"] is CloseReason.UNAPPROVED:
                await dispatcher.approvals.approve(approval.id, by="anna")
            return await close(self, *args, **options)

        monkeypatch.setattr(MemoryTransport, "close_calls", approved_first)
        assert await asks(dispatcher, wait=0.05) is True
        assert await patient is True
        await eventually(lambda: audits.seen.count("approved") == 2, "it is audited")
    assert "expired" not in audits.seen


async def test_a_question_whose_equal_was_answered_first_can_be_cancelled() -> None:
    async with Dispatcher.in_memory([look], hooks=HOOKS) as dispatcher:
        patient = asyncio.ensure_future(asks(dispatcher))
        await one_waits(dispatcher)
        assert await asks(dispatcher, wait=0.05) is False
        assert await dispatcher.cancel(session="s-1") == 1
        assert await patient is False


@pytest.mark.parametrize("now", [Deny("not today"), AskApproval("by bob", approvers=("bob",))])
async def test_what_was_approved_is_judged_anew_before_it_is_granted(
    now: Deny | AskApproval,
) -> None:
    """The policy has changed since, or another dispatcher asked whose policy is another."""
    verdicts: list[Deny | AskApproval] = [AskApproval("drops a table"), now]
    hooks = Hooks(before_call=lambda _: verdicts.pop(0))
    audits = Audits()
    async with Dispatcher.in_memory([look], hooks=hooks, observers=[audits]) as dispatcher:
        asked = asyncio.ensure_future(dispatcher.dispatch(ASKED, session="s", wait=30))
        await dispatcher.approvals.approve((await one_waits(dispatcher)).id, by="anna")
        assert not is_yes(await asked)
    assert audits.seen[-1] == "denied"


async def test_a_cancelled_approval_request_stays_denied_when_its_record_is_restored() -> None:
    """As somebody does who has no key: its mark is still there."""
    async with Dispatcher.in_memory([look], hooks=HOOKS) as dispatcher:
        asked = asyncio.ensure_future(dispatcher.dispatch(ASKED, session="s", wait=30))
        id = (await one_waits(dispatcher)).id
        records = dispatcher._server.records
        waiting = copy.copy(records[id])
        await dispatcher.cancel("s")
        assert not is_yes(await asked)
        records[id] = waiting
        await dispatcher.approvals.approve(id, by="anna")
        assert not is_yes(await dispatcher.dispatch(ASKED, session="s", wait=30))


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_request_and_a_call_of_the_same_id_are_two_calls(is_granted: bool) -> None:
    """A grant is no result of a tool of the pool."""
    ran: list[str] = []

    @tool(effects="write", name="db.drop")
    async def drop(table: str) -> str:
        """Drop a table."""
        ran.append(table)
        return f"dropped {table}"

    def answer(_: ProposedCall) -> Allow | Deny:
        return Allow() if is_granted or ran else Deny("not now")

    function = {"name": "drop", "namespace": "db", "arguments": '{"table": "users"}'}
    request = {"type": "mcp_approval_request", "id": "c-1", "server_label": "db", **function}
    call = {"type": "function_call", "id": "f-1", "call_id": "c-1", **function}

    def response(item: dict[str, Any]) -> dict[str, Any]:
        return {"id": "r-1", "object": "response", "status": "completed", "output": [item]}

    del request["namespace"]
    async with Dispatcher.in_memory([drop], hooks=Hooks(before_call=answer)) as dispatcher:
        asked = await dispatcher.dispatch(response(request), session="s")
        assert asked.messages()[0]["approve"] is is_granted
        ran.clear()
        called = await dispatcher.dispatch(response(call), session="s")
    assert called[0].ok is is_granted
    assert ran == (["users"] if is_granted else [])
    assert called[0].data == ("dropped users" if is_granted else None)
