"""A text for a model names no tool that the model was not offered (R26, R35)."""

import asyncio
import re
from collections.abc import Collection
from typing import Any

import pytest

from toolpool import AskApproval, Dispatcher, Hooks, Settings, tool
from toolpool.contract.redis_keys import TASK_TOOLS
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.formats import FORMATS
from toolpool.dispatcher.messages import locales

NAMED = re.compile(r"\btask_\w+")


@tool(effects="read", max_output=1_000)
async def long_report() -> str:
    """Return more than is shown."""
    return "line\n" * 1_000


@tool(effects="read")
async def slow_report() -> str:
    """Take longer than anybody waits."""
    await asyncio.sleep(60)
    return ""


@tool(effects="write")
async def pay() -> str:
    """Pay."""
    return "paid"


async def asks_a_person(call: Any) -> Any:
    return AskApproval("over the limit") if call.tool == "pay" else None


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("long_report", {}),
    ("slow_report", {"wait": 0.0}),
    ("pay", {"wait": 0.0}),
]


def named(result: ToolResult) -> set[str]:
    return set(NAMED.findall(str(result.payload())))


def offered(dispatcher: Dispatcher, only: Collection[str] | None) -> set[str]:
    return {tool["name"] for tool in dispatcher.tools("bare", only=only)}


@pytest.mark.parametrize("locale", locales.names())
@pytest.mark.parametrize(
    "beside", [None, (), ("task_result",), ("task_result", "task_list")], ids=str
)
@pytest.mark.parametrize("narrowed_by", ["dispatcher", "turn"])
async def test_no_answer_names_a_tool_that_was_not_offered(
    beside: Collection[str] | None, narrowed_by: str, locale: str
) -> None:
    only = None if beside is None else {"long_report", "slow_report", "pay", *beside}
    whole = {"only": only} if narrowed_by == "dispatcher" else {}
    turn = {"only": only} if narrowed_by == "turn" else {}
    async with Dispatcher.in_memory(
        [long_report, slow_report, pay],
        settings=Settings(locale=locale),
        hooks=Hooks(before_call=asks_a_person),
        **whole,  # type: ignore[arg-type]
    ) as dispatcher:
        offers = offered(dispatcher, turn.get("only"))
        for name, options in CALLS:
            call = {"id": name, "name": name, "input": {}}
            [result] = await dispatcher.dispatch(call, session="s", **options, **turn)
            assert result.handle is not None
            assert named(result) == {"task_result"} & offers, name
        if "task_result" in offers:
            call = {"id": "r", "name": "task_result", "input": {"handle": "0" * 32}}
            [result] = await dispatcher.dispatch(call, session="s", **turn)
            assert named(result) - {"task_result"} == {"task_list"} & offers


def test_the_names_of_the_pool_s_own_tools_are_those_that_no_tool_may_have() -> None:
    assert set(task_tools.SPECS) == TASK_TOOLS


@pytest.mark.parametrize("format", sorted(FORMATS))
async def test_the_tools_for_handles_are_offered_beside_any_tool(format: str) -> None:
    """The list is the same from the first call on: a host may ask for it once."""
    async with Dispatcher.in_memory([pay]) as dispatcher:
        before = dispatcher.tools(format)
        assert set(task_tools.SPECS) <= {spec.name for spec in dispatcher.specs}
        assert all(name in str(before) for name in task_tools.SPECS)
        await dispatcher.dispatch({"id": "c", "name": "pay", "input": {}}, wait=0.0)
        assert dispatcher.tools(format) == before
