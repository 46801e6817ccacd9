"""A call that is asked again and rejected now may have run: its result says so."""

from typing import Any, Literal

import msgspec
import pytest

from toolpool import Code, Dispatcher, Executed, ToolResult, tool
from toolpool.contract.errors import ServerError
from toolpool.contract.schema.validator import SchemaCache
from toolpool.dispatcher.admission.catalog import Offer
from toolpool.dispatcher.transports.memory import MemoryTransport


@tool(effects="write")
async def write(text: str) -> str:
    """Write."""
    return text


def call(text: str = "a text") -> dict[str, Any]:
    return {"id": "c", "name": "write", "input": {"text": text}}


async def asked(dispatcher: Any, response: dict[str, Any], turn: str = "t") -> ToolResult:
    return (await dispatcher.dispatch(response, session="s", turn=turn))[0]


@tool(effects="write")
async def released(text: Literal["other"]) -> str:
    """Write, in the next release."""
    return text


async def test_it_may_have_run_under_a_release_that_took_its_arguments() -> None:
    async with Dispatcher.in_memory([write]) as dispatcher:
        assert (await asked(dispatcher, call())).ok
        offers = dispatcher._parts.catalog._offers
        spec = msgspec.structs.replace(released.spec, name="write")
        offers["write"] = Offer(spec, SchemaCache().validator(spec))
        again = await asked(dispatcher, call())
        fresh = await asked(dispatcher, call(), turn="another")
    assert (again.code, again.executed) == (Code.INVALID_ARGUMENTS, Executed.UNKNOWN)
    assert (fresh.code, fresh.executed) == (Code.INVALID_ARGUMENTS, Executed.NO)


async def test_a_fresh_call_that_is_wrong_did_not_run_although_the_server_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise ServerError("away")

    async with Dispatcher.in_memory([write]) as dispatcher:
        monkeypatch.setattr(MemoryTransport, "close_calls", away)
        result = await asked(dispatcher, {"id": "c", "name": "write", "input": {"text": 1}})
    assert (result.code, result.executed) == (Code.INVALID_ARGUMENTS, Executed.NO)


async def test_once_rejected_it_does_not_run_where_its_arguments_are_accepted() -> None:
    """Its model was told that it did not run."""
    async with Dispatcher.in_memory([write]) as dispatcher:
        offers = dispatcher._parts.catalog._offers
        accepting = offers["write"]
        spec = msgspec.structs.replace(released.spec, name="write")
        offers["write"] = Offer(spec, SchemaCache().validator(spec))
        first = await asked(dispatcher, call())
        offers["write"] = accepting
        again = await asked(dispatcher, call())
        fresh = await asked(dispatcher, call(), turn="another")
        unknown = (await dispatcher.dispatch(call(), session="s", turn="u", only=[]))[0]
        known = await asked(dispatcher, call(), turn="u")
    assert (first.code, first.executed) == (Code.INVALID_ARGUMENTS, Executed.NO)
    assert (again.code, again.executed, again.error) == (first.code, first.executed, first.error)
    assert fresh.ok
    assert (unknown.code, unknown.executed) == (Code.UNKNOWN_TOOL, Executed.NO)
    assert (known.code, known.executed, known.error) == (unknown.code, Executed.NO, unknown.error)


@pytest.mark.parametrize("user", ["ann", {"id": 1}, [1, 2], None])
async def test_whoever_the_user_is_a_rejection_is_answered(user: Any) -> None:
    async with Dispatcher.in_memory([write]) as dispatcher:
        for context in ({"user": user}, {}):
            turn = await dispatcher.dispatch(
                {"id": "c", "name": "write", "input": {"text": 1}},
                session="s", turn="t", context=context,
            )  # fmt: skip
            assert (turn[0].code, turn[0].executed) == (Code.INVALID_ARGUMENTS, Executed.NO)


async def test_a_call_that_is_rejected_again_is_one_failure_to_the_loop_guard() -> None:
    response = {"content": [{"type": "tool_use", **call(), "id": "toolu_1"}], "role": "assistant"}
    async with Dispatcher.in_memory([write]) as dispatcher:
        for _ in range(4):
            again = await dispatcher.dispatch(response, session="s", turn="t", only=[])
            assert again[0].code is Code.UNKNOWN_TOOL
        assert (await asked(dispatcher, call(), turn="another")).ok


@tool(effects="write")
async def count(number: int) -> int:
    """Count."""
    return number


async def test_it_may_have_run_with_arguments_that_were_repaired() -> None:
    response = {"id": "c", "name": "count", "input": {"number": "5"}}
    async with Dispatcher.in_memory([count]) as dispatcher:
        first = await asked(dispatcher, response)
        again = (await dispatcher.dispatch(response, session="s", turn="t", only=[]))[0]
        fresh = (await dispatcher.dispatch(response, session="s", turn="u", only=[]))[0]
    assert first.data == 5
    assert (again.code, again.executed) == (Code.UNKNOWN_TOOL, Executed.UNKNOWN)
    assert (fresh.code, fresh.executed) == (Code.UNKNOWN_TOOL, Executed.NO)


@tool(effects="write", input="text")
async def note(text: str) -> str:
    """Write."""
    return text


async def test_it_may_have_run_with_free_text() -> None:
    response = {
        "output": [{"type": "custom_tool_call", "call_id": "c", "name": "note", "input": "a text"}]
    }
    async with Dispatcher.in_memory([note]) as dispatcher:
        first = await asked(dispatcher, response)
        again = (await dispatcher.dispatch(response, session="s", turn="t", only=[]))[0]
    assert first.ok
    assert (again.code, again.executed) == (Code.UNKNOWN_TOOL, Executed.UNKNOWN)
