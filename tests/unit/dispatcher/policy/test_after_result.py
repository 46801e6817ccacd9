"""A hook of the host sees every result before anybody reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.twins import second
from tests.waiting import eventually
from toolpool import (
    Code,
    Dispatcher,
    Executed,
    Hooks,
    ProposedCall,
    Replace,
    ToolError,
    ToolResult,
    tool,
)

CARD = "4111-1111-1111-1111"


@tool(effects="read")
async def card(customer: str) -> dict[str, str]:
    """A customer's card."""
    return {"customer": customer, "card": CARD}


@tool(effects="read")
async def fails(customer: str) -> None:
    """Report a failure."""
    raise ToolError(f"the card {CARD} is blocked", recommendations=[f"call {CARD}"])


@tool(effects="read", background=True)
async def slow_card(customer: str) -> dict[str, str]:
    """A customer's card, later."""
    return {"customer": customer, "card": CARD}


@tool(effects="read", max_output=100)
async def long_card(customer: str) -> str:
    """More than a model is shown at once."""
    return f"{CARD} " * 200


TOOLS = [card, fails, slow_card, long_card]


def hidden(result: ToolResult, call: ProposedCall) -> Replace:
    """Hides the number of a card, wherever it is."""

    def clean(value: Any) -> Any:
        return json.loads(json.dumps(value).replace(CARD, "[card]"))

    if result.ok:
        return Replace(data=clean(result.data), note="Card numbers are hidden.")
    return Replace(error=clean(result.error))


def ask(name: str, **more: Any) -> dict[str, Any]:
    return {"id": "c-1", "name": name, "input": {"customer": "anna", **more}}


async def test_a_result_is_read_as_the_hook_leaves_it() -> None:
    async with Dispatcher.in_memory(TOOLS, hooks=Hooks(after_result=hidden)) as dispatcher:
        turn = await dispatcher.dispatch(ask("card"))
    assert turn[0].data == {"customer": "anna", "card": "[card]"}
    assert turn[0].note == "Card numbers are hidden."


class Odd(dict[str, Any]):
    """A mapping of a host's own, which shows more than it holds."""

    def items(self) -> Any:
        raise RuntimeError(CARD)


async def test_a_hook_s_data_is_what_its_json_says() -> None:
    hooks = Hooks(after_result=lambda result, call: Replace(data=Odd(seen=Odd(yes=1))))
    async with Dispatcher.in_memory(TOOLS, hooks=hooks) as dispatcher:
        turn = await dispatcher.dispatch(ask("card"))
    assert turn[0].data == {"seen": {"yes": 1}}
    assert type(turn[0].data) is dict


async def test_a_failure_is_read_as_the_hook_leaves_it() -> None:
    async with Dispatcher.in_memory(TOOLS, hooks=Hooks(after_result=hidden)) as dispatcher:
        turn = await dispatcher.dispatch(ask("fails"))
    assert turn[0].code is Code.REPORTED and turn[0].executed is Executed.YES
    assert CARD not in str(turn[0]) and "[card]" in (turn[0].error or "")


async def test_a_hook_knows_whose_result_it_is() -> None:
    seen: list[ProposedCall] = []
    hooks = Hooks(after_result=lambda _, proposed: seen.append(proposed))
    async with Dispatcher.in_memory(TOOLS, hooks=hooks) as dispatcher:
        await dispatcher.dispatch(ask("card"), session="s-1", context={"role": "guest"})
    assert [(c.tool, c.arguments, c.session, c.context) for c in seen] == [
        ("card", {"customer": "anna"}, "s-1", {"role": "guest"})
    ]


async def test_a_background_result_is_read_as_the_hook_leaves_it(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with Dispatcher.in_memory(
        TOOLS, hooks=Hooks(after_result=hidden), record=record
    ) as dispatcher:
        turn = await dispatcher.dispatch(ask("slow_card"), session="s-1", wait=0)
        handle = turn[0].handle
        assert handle is not None
        got = {"id": "c-2", "name": "task_result", "input": {"handle": handle}}
        told = await dispatcher.dispatch(got, session="s-1")
        assert told[0].data["result"] == {"customer": "anna", "card": "[card]"}
        result = await dispatcher.task_result(handle, session="s-1", wait=5)
        assert result is not None and result.data["card"] == "[card]"
    assert CARD not in record.read_text() and "[card]" in record.read_text()


async def test_pages_of_a_long_output_are_read_as_the_hook_leaves_them() -> None:
    async with Dispatcher.in_memory(TOOLS, hooks=Hooks(after_result=hidden)) as dispatcher:
        turn = await dispatcher.dispatch(ask("long_card"), session="s-1")
        assert CARD not in str(turn[0])
        handle = turn[0].handle
        assert handle is not None
        page = await dispatcher.output(handle, session="s-1")
        assert CARD not in page["text"] and "[card]" in page["text"]
        got = {"id": "c-2", "name": "task_result", "input": {"handle": handle, "page": 1}}
        assert CARD not in str((await dispatcher.dispatch(got, session="s-1"))[0])


def refused(result: ToolResult, call: ProposedCall) -> Replace:
    """Nobody may read it."""
    return Replace(error="not for you", note="Ask Anna.")


async def test_an_error_in_place_of_a_success_hides_its_data() -> None:
    """At once, later by its handle, and on every page."""
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        handle = (await dispatcher.dispatch(ask("long_card"), session="s-1"))[0].handle
        assert handle is not None
        async with second(dispatcher, hooks=Hooks(after_result=refused)) as other:
            turn = await other.dispatch(ask("card"))
            later = (await other.dispatch(ask("slow_card"), session="s-1", wait=0))[0].handle
            assert later is not None
            result = await other.task_result(later, session="s-1", wait=5)
            page = await other.output(handle, session="s-1")
            got = {"id": "c-2", "name": "task_result", "input": {"handle": handle, "page": 1}}
            told = (await other.dispatch(got, session="s-1"))[0]
    assert result is not None
    for shown in (turn[0], result):
        assert (shown.ok, shown.data, shown.error) == (False, None, "not for you")
        assert (shown.code, shown.executed) == (Code.DENIED, Executed.YES)
        assert shown.note == "Ask Anna."
    assert page["text"] == told.data["text"] == "not for you"
    assert CARD not in str((turn, result, page, told))


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "answer",
    [
        ValueError(CARD),
        "words",
        Replace(data={1: 2}),
        Replace(data=float("nan")),
        Replace(data="half \ud800"),
        Replace(data=ENDLESS),
        Replace(error=5),  # type: ignore[arg-type]
        Replace(note=5),  # type: ignore[arg-type]
    ],
    ids=repr,
)
async def test_where_the_hook_fails_the_result_is_withheld(answer: Any, tmp_path: Path) -> None:
    def hook(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    record = tmp_path / "record.jsonl"
    async with Dispatcher.in_memory(
        TOOLS, hooks=Hooks(after_result=hook), record=record
    ) as dispatcher:
        result = (await dispatcher.dispatch(ask("card"), session="s-1"))[0]
    assert (result.ok, result.code, result.executed) == (False, Code.DENIED, Executed.YES)
    assert CARD not in str(result) + record.read_text()


async def test_what_a_hook_does_to_the_data_it_sees_changes_nothing() -> None:
    def hook(result: ToolResult, _: ProposedCall) -> None:
        result.data["card"] = "x"

    async with Dispatcher.in_memory(TOOLS, hooks=Hooks(after_result=hook)) as dispatcher:
        turn = await dispatcher.dispatch(ask("card"), session="s-1", turn="t-1")
        again = await dispatcher.dispatch(ask("card"), session="s-1", turn="t-1")
    assert turn[0].data["card"] == again[0].data["card"] == CARD


async def test_a_final_row_is_written_before_the_dispatcher_is_closed(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with Dispatcher.in_memory(
        TOOLS, hooks=Hooks(after_result=hidden), record=record
    ) as dispatcher:
        turn = await dispatcher.dispatch(ask("slow_card"), session="s-1", wait=0)
        assert turn[0].is_running
        await eventually(lambda: not dispatcher.in_flight(), "the call has ended")
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert [row["type"] for row in rows] == ["tool_call", "tool_result", "tool_result"]
    assert "[card]" in rows[-1]["content"]
