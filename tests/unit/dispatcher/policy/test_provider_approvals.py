"""What a provider asks before it runs a tool of its own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.twins import second
from tests.waiting import eventually
from toolpool import (
    Allow,
    ApprovalRefused,
    AskApproval,
    Code,
    Deny,
    Dispatcher,
    Executed,
    HookFailure,
    Hooks,
    Observer,
    Rewrite,
    Settings,
    tool,
)
from toolpool.dispatcher.dispatch import Dispatcher as Connected
from toolpool.dispatcher.policy.verdict_types import ProposedCall


@tool(effects="read")
async def look() -> str:
    """A tool of the pool's, so that there is one."""
    return "seen"


ASKED: dict[str, Any] = {
    "responses": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [
            {
                "type": "mcp_approval_request",
                "id": "mcpr_1",
                "name": "drop",
                "arguments": '{"table": "users"}',
                "server_label": "db",
            }
        ],
    },
    "managed agents": [
        {
            "type": "agent.mcp_tool_use",
            "id": "sevt_1",
            "name": "drop",
            "input": {"table": "users"},
            "evaluated_permission": "ask",
            "mcp_server_name": "db",
        }
    ],
    "agent sessions": {
        "id": "s_1",
        "object": "agent.session",
        "status": "requires_action",
        "required_actions": [
            {
                "type": "mcp_approval_request",
                "request_id": "req_1",
                "turn_id": "turn_1",
                "request": {
                    "type": "mcp_tool_call",
                    "name": "drop",
                    "server_label": "db",
                    "arguments": {"table": "users"},
                    "message": "?",
                },
            }
        ],
    },
}


def said(turn: Any) -> tuple[bool, str]:
    """Whether the provider is told yes, and why not."""
    [message] = turn.messages()
    if "approve" in message:
        return message["approve"], message.get("reason", "")
    if "result" in message:
        return message["result"] == "allow", message.get("deny_message", "")
    return message["response"]["decision"] == "approve", ""


@pytest.fixture(params=ASKED)
def asked(request: pytest.FixtureRequest) -> Any:
    return ASKED[request.param]


async def answered(asked: Any, hook: Any, **options: Any) -> tuple[bool, str]:
    async with Dispatcher.in_memory([look], hooks=Hooks(before_call=hook)) as dispatcher:
        return said(await dispatcher.dispatch(asked, session="s-1", **options))


async def test_without_a_policy_the_answer_is_denied_at_once(asked: Any) -> None:
    async with Dispatcher.in_memory([look]) as dispatcher:
        assert said(await dispatcher.dispatch(asked, session="s-1"))[0] is False
        assert await dispatcher.approvals.waiting() == []


async def test_a_hook_says_yes_or_no_by_name(asked: Any) -> None:
    seen: list[ProposedCall] = []

    def hook(call: ProposedCall) -> Allow:
        seen.append(call)
        return Allow()

    assert (await answered(asked, hook))[0] is True
    assert [(call.tool, call.arguments) for call in seen] == [("db.drop", {"table": "users"})]
    no, why = await answered(asked, lambda _: Deny("not that one"))
    assert no is False and (not why or "not that one" in why)


async def test_a_provider_may_have_run_what_was_granted(asked: Any) -> None:
    hooks = Hooks(before_call=lambda _: Allow())
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        [granted] = await dispatcher.dispatch(asked, session="s-1")
    assert (granted.ok, granted.executed) == (True, Executed.UNKNOWN)


async def test_a_server_that_is_called_as_its_tool_is_part_of_the_name(asked: Any) -> None:
    """Else a rule about the server's tools would not see it."""
    seen: list[str] = []
    text = json.dumps(asked).replace('"db"', '"drop"')
    await answered(json.loads(text), lambda call: seen.append(call.tool), wait=0)
    assert seen == ["drop.drop"]


@pytest.mark.parametrize("answer", [Rewrite({"table": "x"}), "yes", ValueError("x")])
async def test_a_hook_that_fails_or_wants_other_arguments_is_no(asked: Any, answer: Any) -> None:
    def hook(_: ProposedCall) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert (await answered(asked, hook, wait=0))[0] is False


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_person_is_asked_by_default(asked: Any, decision: str) -> None:
    hooks = Hooks(before_call=lambda _: None)
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(asked, session="s-1", wait=60))

        async def waits() -> bool:
            return bool(await dispatcher.approvals.waiting())

        await eventually(waits, "a person is asked")
        [approval] = await dispatcher.approvals.waiting()
        assert (approval.tool, approval.arguments) == ("db.drop", {"table": "users"})
        await getattr(dispatcher.approvals, decision)(approval.id, by="anna", reason="so")
        yes, why = said(await asking)
        assert yes is (decision == "approve") and ("anna" in why or not why or yes)


async def test_an_unanswered_approval_request_expires_and_cannot_be_decided_later(
    asked: Any,
) -> None:
    hooks = Hooks(before_call=lambda _: AskApproval("drops a table"))
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(asked, session="s-1", wait=0.4))

        async def waits() -> bool:
            return bool(await dispatcher.approvals.waiting())

        await eventually(waits, "a person is asked")
        [approval] = await dispatcher.approvals.waiting()
        assert said(await asking)[0] is False
        with pytest.raises(ApprovalRefused):
            await dispatcher.approvals.approve(approval.id, by="anna")


async def test_of_more_questions_than_a_turn_may_have_calls_the_rest_is_no() -> None:
    item = ASKED["responses"]["output"][0]
    output = [{**item, "id": f"mcpr_{number}"} for number in range(3)]
    hooks, settings = Hooks(before_call=lambda _: Allow()), Settings(calls_per_turn=2)
    async with Dispatcher.in_memory([look], hooks=hooks, settings=settings) as dispatcher:
        turn = await dispatcher.dispatch({**ASKED["responses"], "output": output})
    assert [message["approve"] for message in turn.messages()] == [True, True, False]


@pytest.mark.parametrize("named", [{"session": "s-1"}, {"call_id": "a-1"}])
async def test_a_cancelled_approval_request_is_denied_and_cannot_be_approved(
    asked: Any, named: dict[str, str]
) -> None:
    async with Dispatcher.in_memory([look], hooks=Hooks(before_call=lambda _: None)) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(asked, session="s-1", wait=60))

        async def waits() -> bool:
            return bool(await dispatcher.approvals.waiting())

        await eventually(waits, "a person is asked")
        [approval] = await dispatcher.approvals.waiting()
        if "call_id" in named:
            named = {"call_id": approval.call_id}
        assert await dispatcher.cancel(session="other") == 0
        assert await dispatcher.cancel(**named) == 1
        with pytest.raises(ApprovalRefused):
            await dispatcher.approvals.approve(approval.id, by="anna")
        turn = await asking
        assert said(turn)[0] is False
        assert (turn[0].code, turn[0].executed) == (Code.CANCELLED, Executed.NO)


async def test_a_switch_that_this_dispatcher_has_not_seen_holds_for_what_it_grants(
    asked: Any,
) -> None:
    """No worker claims what a provider runs: the switches are read once more before the yes."""
    others: list[Connected] = []

    async def judge(_: ProposedCall) -> Allow:
        await others[0].deny("db.drop", reason="closed")
        return Allow()

    async with Dispatcher.in_memory([look], hooks=Hooks(before_call=judge)) as dispatcher:
        async with second(dispatcher) as other:
            others.append(other)
            assert said(await dispatcher.dispatch(asked, session="s-1", wait=60))[0] is False


async def test_rules_decide_by_name_and_a_default_that_allows_does_not(
    asked: Any, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    for rules, answer in (
        ('[[rule]]\ntool = "db.*"\naction = "allow"', True),
        ('[[rule]]\ntool = "db.*"\naction = "deny"', False),
        ('[[rule]]\ntool = "other"\naction = "deny"', False),
    ):
        path.write_text(rules)
        async with Dispatcher.in_memory([look], hooks=Hooks(policy=path)) as dispatcher:
            turn = await dispatcher.dispatch(asked, session="s-1", wait=0)
            assert said(turn)[0] is answer


async def asked_about(dispatcher: Any) -> Any:
    """The approval, once a person is asked."""

    async def waits() -> bool:
        return bool(await dispatcher.approvals.waiting())

    await eventually(waits, "a person is asked")
    return (await dispatcher.approvals.waiting())[0]


@pytest.mark.parametrize("answer", [Allow(), AskApproval("drops a table")])
async def test_a_disabled_tool_is_denied_without_an_approval_request(
    asked: Any, answer: Any
) -> None:
    hooks = Hooks(before_call=lambda _: answer)
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        await dispatcher.deny("db.drop", argument="table", value="users", reason="frozen")
        assert said(await dispatcher.dispatch(asked, session="s-1", wait=60))[0] is False
        assert await dispatcher.approvals.waiting() == []
        await dispatcher.allow("db.drop", argument="table", value="users")
        yes = said(await dispatcher.dispatch(asked, session="s-2", wait=0))[0]
        assert yes is isinstance(answer, Allow)


async def test_what_was_denied_at_one_dispatcher_is_granted_at_none(asked: Any) -> None:
    yes, no = Hooks(before_call=lambda _: Allow()), Hooks(before_call=lambda _: Deny("no"))
    where = {"session": "s-1", "turn": "t"}
    async with (
        Dispatcher.in_memory([look], hooks=no) as one,
        second(one, hooks=yes) as other,
    ):
        for first, then, answers in (
            (one, other, (False, False)),
            (other, other, (True, True)),
            (other, one, (True, False)),
        ):
            told = [said(await d.dispatch(asked, **where))[0] for d in (first, then)]
            assert tuple(told) == answers
            where["session"] += "."


@pytest.mark.parametrize("answer", [Allow(), AskApproval()])
@pytest.mark.parametrize("id", ["mcpr_1", "mcpr_68a1f0c2d3e4b5a69788123456789abc"])
async def test_a_denied_request_is_not_granted_when_the_note_of_its_turn_has_expired(
    id: str, answer: Any
) -> None:
    response = json.loads(json.dumps(ASKED["responses"]).replace("mcpr_1", id))
    async with (
        Dispatcher.in_memory([look], hooks=Hooks(before_call=lambda _: Deny("no"))) as one,
        second(one, hooks=Hooks(before_call=lambda _: answer)) as other,
    ):
        assert said(await one.dispatch(response, session="s-1"))[0] is False
        one._parts.in_flight._transport._turns.clear()
        for dispatcher in (other, one, other):
            history = [{"role": "user", "content": "go"}, *response["output"]]
            *_, told = await dispatcher.resume(history, session="s-1", wait=0.1)
            assert told["approve"] is False
        assert await other.approvals.waiting() == []


async def test_a_request_that_may_have_been_granted_is_never_told_as_not_run(asked: Any) -> None:
    async with Dispatcher.in_memory([look], hooks=Hooks(before_call=lambda _: Allow())) as one:
        options = {"session": "s-1", "turn": "t"}
        assert said(await one.dispatch(asked, **options))[0] is True
        one._server.records.clear()
        for _ in range(3):
            turn = await one.dispatch(asked, **options, again=True)
            assert (said(turn)[0], turn[0].executed) == (False, Executed.UNKNOWN)


async def test_only_the_exact_text_of_a_request_is_judged() -> None:
    """The provider runs its own text, which another reader may understand otherwise."""
    judged: list[ProposedCall] = []
    hooks = Hooks(before_call=lambda call: judged.append(call) or Allow())
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        for n, text in enumerate(
            ["{'amount':5}", '{"amount":5 /*,"amount":900*/}', '{"amount":5,}', "{amount:5}",
             '```json\n{"amount":5}\n```', '"{\\"amount\\":5}"']
        ):  # fmt: skip
            request = {**ASKED["responses"]["output"][0], "id": f"mcpr_{n}", "arguments": text}
            response = {**ASKED["responses"], "id": f"resp_{n}", "output": [request]}
            turn = await dispatcher.dispatch(response, session="s-1")
            assert said(turn)[0] is False, text
    assert judged == []


async def test_a_question_ends_with_a_denial_elsewhere_and_not_with_a_grant(asked: Any) -> None:
    def asks(answer: Any) -> Hooks:
        return Hooks(before_call=lambda _: answer)

    where = {"session": "s-1", "turn": "t", "wait": 60}
    async with (
        Dispatcher.in_memory([look], hooks=asks(AskApproval())) as one,
        second(one, hooks=asks(Allow())) as allows,
        second(one, hooks=asks(Deny("no"))) as denies,
    ):
        asking = [asyncio.ensure_future(one.dispatch(asked, **where))]
        await asked_about(one)
        asking.append(asyncio.ensure_future(allows.dispatch(asked, **where)))
        await eventually(
            allows._parts.provider_approvals.unsent_calls, "it waits for the person, too"
        )
        assert said(await denies.dispatch(asked, **where))[0] is False
        assert [said(await turn)[0] for turn in asking] == [False, False]
        assert await one.approvals.waiting() == []


async def test_a_grant_is_not_told_as_not_run_where_it_would_be_denied(asked: Any) -> None:
    """The provider may have run it."""
    where = {"session": "s-1", "turn": "t"}
    async with (
        Dispatcher.in_memory([look], hooks=Hooks(before_call=lambda _: Allow())) as one,
        second(one, hooks=Hooks(before_call=lambda _: Deny("no"))) as denies,
        second(one) as without_policy,
        second(one, hooks=Hooks(before_call=lambda _: AskApproval())) as asks,
    ):
        assert said(await one.dispatch(asked, **where))[0] is True
        for other in (denies, without_policy, asks):
            turn = await other.dispatch(asked, **where)
            assert said(turn)[0] is False
            assert turn[0].executed is Executed.UNKNOWN
            assert "It may have had effects" in (turn[0].error or "")


async def test_what_is_denied_without_a_policy_is_granted_nowhere(asked: Any) -> None:
    where = {"session": "s-1", "turn": "t"}
    async with (
        Dispatcher.in_memory([look]) as without_policy,
        second(without_policy, hooks=Hooks(before_call=lambda _: Allow())) as other,
    ):
        assert said(await without_policy.dispatch(asked, **where))[0] is False
        assert said(await other.dispatch(asked, **where))[0] is False


async def test_what_a_rule_granted_elsewhere_still_needs_the_person_that_this_one_asks(
    asked: Any,
) -> None:
    where = {"session": "s-1", "turn": "t", "wait": 60}
    async with (
        Dispatcher.in_memory([look], hooks=Hooks(before_call=lambda _: Allow())) as one,
        second(one, hooks=Hooks(before_call=lambda _: AskApproval())) as other,
    ):
        assert said(await one.dispatch(asked, **where))[0] is True
        assert said(await other.dispatch(asked, **where))[0] is False


@pytest.mark.parametrize("answer", [Allow(), AskApproval("drops a table")])
@pytest.mark.parametrize(("only", "is_offered"), [(["look"], False), (["look", "db.drop"], True)])
async def test_a_tool_that_was_not_offered_is_denied_without_an_approval_request(
    asked: Any, answer: Any, only: list[str], is_offered: bool
) -> None:
    hooks = Hooks(before_call=lambda _: answer)
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        asking = asyncio.ensure_future(
            dispatcher.dispatch(asked, session="s-1", wait=60, only=only)
        )
        if is_offered and isinstance(answer, AskApproval):
            approval = await asked_about(dispatcher)
            await dispatcher.approvals.approve(approval.id, by="anna")
        assert said(await asking)[0] is is_offered
        assert await dispatcher.approvals.waiting() == []


async def test_a_tool_disabled_during_the_approval_wait_is_denied(asked: Any) -> None:
    hooks = Hooks(before_call=lambda _: AskApproval("drops a table"))
    async with Dispatcher.in_memory([look], hooks=hooks) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(asked, session="s-1", wait=60))
        approval = await asked_about(dispatcher)
        await dispatcher.deny("db.drop", reason="frozen")
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert said(await asking)[0] is False


async def test_a_dispatcher_that_closes_answers_who_waits_for_a_person(asked: Any) -> None:
    failed: list[str] = []

    class Failures(Observer):
        def hook_failed(self, failure: HookFailure) -> None:
            failed.append(failure.kind)

    hooks = Hooks(before_call=lambda _: AskApproval())
    async with Dispatcher.in_memory([look], hooks=hooks, observers=[Failures()]) as dispatcher:
        asking = asyncio.create_task(dispatcher.dispatch(asked, session="s", turn="t", wait=60))

        async def waits() -> bool:
            return len(await dispatcher.approvals.waiting()) == 1

        await eventually(waits, "a person is asked")
        record = next(iter(dispatcher._server.records.values()))
    turn = await asyncio.wait_for(asking, 5)
    assert said(turn)[0] is False
    assert (turn[0].executed, record.approval, failed) == (Executed.NO, "cancelled", [])
