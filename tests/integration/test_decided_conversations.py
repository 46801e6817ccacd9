"""Conversations in which a host, its rules and its people decide, in memory and on real workers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fleets import shop
from tests.integration import fleet as fleets
from tests.waiting import eventually
from toolpool import (
    Conversation,
    Deny,
    Dispatcher,
    Hooks,
    ProposedCall,
    Replace,
    Rewrite,
    Settings,
    ToolResult,
    converse,
)

Step = Callable[[str], dict[str, Any] | str]
"""What a model says after the last answers: the input of its calls by tool, or words."""

SECRETS = "tests.fleets.shop:secret_of"


@pytest.fixture(params=["in memory", "on real workers"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def shop_of(where: str, hooks: Hooks, **options: Any) -> AsyncIterator[Dispatcher]:
    """The shop's dispatcher under hooks."""
    if where == "in memory":
        settings = Settings(**options, secrets=SECRETS)
        async with Dispatcher.in_memory(shop.TOOLS, settings=settings, hooks=hooks) as dispatcher:
            yield dispatcher
        return
    with fleets.running("tests.fleets.shop", secrets=SECRETS) as fleet:
        changed = fleet.settings.model_copy(update=options)
        async with Dispatcher.connect(settings=changed, hooks=hooks) as dispatcher:
            yield dispatcher


async def talk(dispatcher: Dispatcher, *steps: Step, **options: Any) -> Conversation:
    """A conversation with a model that follows steps, each with the last answers before it."""
    following = iter(steps)
    number = 0

    async def model(messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        nonlocal number
        number += 1
        said = next(following)(json.dumps(messages[-1], ensure_ascii=False))
        if isinstance(said, str):
            content: list[dict[str, Any]] = [{"type": "text", "text": said}]
        else:
            content = [
                {"type": "tool_use", "id": f"toolu_{number}_{i}", "name": name, "input": given}
                for i, (name, given) in enumerate(said.items())
            ]
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "stand-in",
            "content": content,
            "stop_reason": "end_turn" if isinstance(said, str) else "tool_use",
        }

    asked = [{"role": "user", "content": "please"}]
    return await converse(model, dispatcher, asked, session="s-1", **options)


def results(conversation: Conversation) -> list[ToolResult]:
    return [result for turn in conversation.turns for result in turn]


async def test_a_denied_model_reads_why_and_does_something_else(where: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[rule]]\ntool = "refund"\nargument = "amount"\nabove = 100\naction = "deny"\n'
        'reason = "Refunds above 100 need a clerk"'
    )

    def smaller(answer: str) -> dict[str, Any]:
        assert "Refunds above 100 need a clerk" in answer
        return {"refund": {"order": "o-1", "amount": 100}}

    async with shop_of(where, Hooks(policy=policy)) as dispatcher:
        conversation = await talk(
            dispatcher,
            lambda _: {"refund": {"order": "o-1", "amount": 900}},
            smaller,
            lambda _: "done",
        )
    denied, paid = results(conversation)
    assert (denied.code, denied.executed, paid.ok) == ("aborted.denied", "no", True)


async def test_a_rewritten_call_is_told_to_the_model(where: str) -> None:
    def before_call(call: ProposedCall) -> Any:
        if call.tool == "refund" and call.context == {"role": "guest"}:
            return Rewrite({**call.arguments, "amount": 10}, note="Guests get 10 at most.")
        return Deny("not here")

    def told(answer: str) -> str:
        assert "amount" in answer and "Guests get 10 at most." in answer
        return "done"

    async with shop_of(where, Hooks(before_call=before_call)) as dispatcher:
        conversation = await talk(
            dispatcher,
            lambda _: {"refund": {"order": "o-1", "amount": 900}},
            told,
            context={"role": "guest"},
        )
    assert results(conversation)[0].data["amount"] == 10


async def test_a_model_goes_on_while_a_person_decides_and_reads_the_result(where: str) -> None:
    async with shop_of(where, Hooks(), background_wait=0.2) as dispatcher:
        handles: list[str] = []

        def waits(answer: str) -> dict[str, Any]:
            assert "runs only if a person approves it" in answer
            handles.append(answer.partition("the handle '")[2].partition("'")[0])
            return {"customer": {"name": "ben"}}

        async def approve() -> None:
            await eventually(lambda: handles, "the model was told that it waits")
            [waiting] = await dispatcher.approvals.waiting(session="s-1")
            await dispatcher.approvals.approve(waiting.id, by="anna")

        approving = asyncio.ensure_future(approve())
        conversation = await talk(
            dispatcher,
            lambda _: {"close_account": {"customer": "ben"}},
            waits,
            lambda _: {"task_result": {"handle": handles[0], "wait": 20}},
            lambda answer: ("closed ben" in answer and "done") or "not done",
        )
        await approving
    assert conversation.messages[-1]["content"][0]["text"] == "done"


async def test_what_a_model_may_not_read_it_does_not(where: str) -> None:
    async def after_result(result: ToolResult, call: ProposedCall) -> Replace | None:
        if call.tool != "customer":
            return None
        return Replace(data={**result.data, "card": "hidden"})

    async with shop_of(where, Hooks(after_result=after_result)) as dispatcher:
        conversation = await talk(
            dispatcher, lambda _: {"customer": {"name": "ben"}}, lambda _: "done"
        )
    said = json.dumps(conversation.messages)
    assert "4111" not in said and "hidden" in said


async def test_a_user_who_is_not_signed_in_is_sent_to_do_so(where: str) -> None:
    async with shop_of(where, Hooks()) as dispatcher:
        anna = await talk(
            dispatcher, lambda _: {"inbox": {}}, lambda _: "done", context={"user": "anna"}
        )
        ben = await talk(
            dispatcher, lambda _: {"inbox": {}}, lambda _: "done", context={"user": "ben"}
        )
    assert results(anna)[0].data == "signed in with 19 characters"
    refused = results(ben)[0]
    assert refused.code == "logical.reported"
    assert "https://shop.example/sign-in/mail" in json.dumps(ben.messages)


async def test_a_model_that_asks_too_often_is_told_when_to_come_back(where: str) -> None:
    asks = [lambda _, n=n: {"quote": {"sku": f"s{n}"}} for n in range(3)]
    async with shop_of(where, Hooks(), rate_limit_action="refuse") as dispatcher:
        conversation = await talk(dispatcher, *asks, lambda _: "done")
    first, second, third = results(conversation)
    assert first.ok and second.ok
    assert (third.code, third.executed, third.retryable) == ("exception.overloaded", "no", True)
    assert third.retry_after is not None and third.retry_after > 0


async def test_the_api_behind_a_tool_is_given_a_key_of_each_call(where: str) -> None:
    step = {"refund": {"order": "o-1", "amount": 5}}
    async with shop_of(where, Hooks()) as dispatcher:
        conversation = await talk(dispatcher, lambda _: step, lambda _: step, lambda _: "done")
        one, two = (result.data["key"] for result in results(conversation))
        assert one != two
        response = {"id": "m", "name": "refund", "input": step["refund"]}
        asked = [
            (await dispatcher.dispatch(response, session="s-2", turn="t"))[0].data["key"]
            for _ in range(2)
        ]
    assert asked[0] == asked[1]
