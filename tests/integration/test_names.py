"""Names and ids, from hosts, providers and models: a bad one never crashes or delays (R16, R62)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fleets import road as tools
from tests.integration.fleet import call
from tests.integration.twins import Gate, alone
from tests.waiting import eventually
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import FORMATS

LONG = "call_" + "x" * 3_000_000
HALF = "call_\ud800"


@pytest.fixture
async def dispatcher() -> AsyncIterator[Dispatcher]:
    async with Dispatcher.in_memory([tools]) as opened:
        yield opened


@pytest.mark.parametrize("name", ["x" * 3_000_000, "a\ud800", "", 5, b"s"])
async def test_a_bad_name_from_the_host_raises_in_the_host(
    dispatcher: Dispatcher, name: Any
) -> None:
    handle = "0" * 32
    for ask in (
        dispatcher.dispatch(call("echo", value=1), session=name),
        dispatcher.dispatch(call("echo", value=1), session="s", turn=name),
        dispatcher.cancel(name),
        dispatcher.task_result(handle, session=name),
        dispatcher.task_cancel(handle, session=name),
        dispatcher.task_list(session=name),
        dispatcher.output(handle, session=name),
    ):
        with pytest.raises(ValueError, match="session|turn"):
            await ask
    with pytest.raises(ValueError, match="session"):
        dispatcher.completed(session=name)


@pytest.mark.parametrize("handle", ["0" * 32, HALF, "x" * 10_000, "", 5, None])
async def test_an_unknown_handle_raises_in_the_host(dispatcher: Dispatcher, handle: Any) -> None:
    for ask in (dispatcher.task_result, dispatcher.task_cancel, dispatcher.output):
        with pytest.raises(KeyError, match="unknown, has expired, or belongs to another session"):
            await ask(handle, session="s")


@pytest.mark.parametrize("odd", [{5: 1}, {"value": {1}}, {"value": {(1, 2): 3}}, {"value": 5j}])
async def test_arguments_that_a_host_put_together_wrongly_are_no_fault_of_ours(
    dispatcher: Dispatcher, odd: Any
) -> None:
    for session in (None, "s"):
        asked = [{"id": "c", "name": "echo", "input": odd}]
        [result] = await dispatcher.dispatch(asked, session=session)
        assert result.code in (Code.UNPARSEABLE, Code.INVALID_ARGUMENTS)


async def test_an_allow_list_is_a_list_of_names(dispatcher: Dispatcher) -> None:
    """One string is no list of its letters, of which no tool would be found."""
    with pytest.raises(ValueError, match="collection of tool names, not str"):
        await dispatcher.dispatch(call("echo", value=1), only="echo")
    with pytest.raises(ValueError, match="only takes the names of tools, not Tool"):
        dispatcher.check(call("echo", value=1), only=[tools.echo])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="collection of tool names"):
        dispatcher.tools(only="echo")
    with pytest.raises(ValueError, match="collection of tool names"):
        Dispatcher.in_memory([tools], only="echo")


def response(format: str, *, id: str, call_id: str, name: str = "echo") -> dict[str, Any]:
    """A response with one call of `echo`."""
    if format == "anthropic":
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {"value": 1}}
        return {"type": "message", "id": id, "content": [block], "stop_reason": "tool_use"}
    function = {"name": name, "arguments": '{"value": 1}'}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"id": id, "choices": [{"message": {"tool_calls": calls}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("id", [LONG, HALF], ids=["long", "half"])
@pytest.mark.parametrize("format", ["anthropic", "openai_chat"])
async def test_the_answer_names_the_call_s_own_id(
    dispatcher: Dispatcher, format: str, id: str
) -> None:
    """However it is made: the provider knows its call by it alone."""
    for name in ("echo", "no_such_tool"):
        plain = response(format, id="m", call_id=id, name=name)
        for asked in (plain, json.dumps(plain)):
            turn = await dispatcher.dispatch(asked, session="s")
            assert (turn[0].call_id, turn[0].ok) == (id, name == "echo")
            message = turn.messages()[0]
            answered = message.get("tool_call_id") or message["content"][0]["tool_use_id"]
            assert answered == id
            assert turn[0].note is None


@pytest.mark.parametrize("id", [LONG, HALF], ids=["long", "half"])
async def test_a_response_s_own_id_names_its_turn_whatever_it_is(id: str) -> None:
    """Asked again it attaches (R18)."""
    ran = []

    @tool
    async def echo(value: int) -> int:
        """Echo."""
        ran.append(value)
        return value

    async with alone([echo]) as dispatcher:
        asked = response("anthropic", id=id, call_id="c")
        for _ in range(2):
            assert (await dispatcher.dispatch(asked, session="s"))[0].data == 1
        assert ran == [1]
        other = response("anthropic", id=id + "x", call_id="c")
        assert (await dispatcher.dispatch(other, session="s"))[0].data == 1
    assert ran == [1, 1]


async def test_a_call_of_a_long_id_can_be_cancelled_and_handed_over() -> None:
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as dispatcher:
        asked = [{"id": LONG, "name": "work", "input": {}}]
        turn = asyncio.ensure_future(dispatcher.dispatch(asked, session="s"))
        await eventually(lambda: gate.came, "it runs")
        assert await dispatcher.cancel(call_id=LONG) == 1
        result = (await turn)[0]
        assert (result.code, result.call_id) == (Code.CANCELLED, LONG)
        handed = (await dispatcher.dispatch(asked, session="s", wait=0.01))[0]
        assert handed.call_id == LONG
        ended = await dispatcher.task_cancel(str(handed.handle), session="s")
        assert ended.call_id == LONG


@pytest.mark.parametrize("name", ["x" * 3_000_000, "ec\ud800ho", "\ud800", " ", "a\nb"])
@pytest.mark.parametrize("format", [*FORMATS])
async def test_a_model_s_bad_tool_name_is_an_unknown_tool(
    dispatcher: Dispatcher, format: str, name: str
) -> None:
    asked = [{"id": "c", "name": name, "input": {}}]
    turn = await dispatcher.dispatch(asked, session="s")
    assert turn[0].code is Code.UNKNOWN_TOOL
    text = json.dumps(turn.messages(format))
    assert len(text) < 2_000
    text.encode()
