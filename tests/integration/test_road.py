"""The road of a call, end to end: one suite for real workers on a real server and for memory.

The in-memory dispatcher ships for users' own tests, so it must answer as the fleet does.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic.types
import openai.types.chat
import pytest
from pydantic import TypeAdapter

from tests.fleets import road as tools
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet

Open = Callable[..., AbstractAsyncContextManager[Dispatcher]]


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.road") as running:
        yield running


@pytest.fixture(params=["fleet", "memory"])
def open_road(request: pytest.FixtureRequest) -> Open:
    """Opens a dispatcher, with settings of the test's own; it must end with nothing left in it."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Dispatcher]:
        if request.param == "memory":
            manager: Any = Dispatcher.in_memory([tools], settings=Settings(**settings))
        else:
            manager = fleets.connected(request.getfixturevalue("fleet"), **settings)
        async with manager as dispatcher:
            yield dispatcher
            await nothing_is_left(dispatcher)

    return opened


@pytest.fixture
async def dispatcher(open_road: Open) -> AsyncIterator[Dispatcher]:
    async with open_road() as opened:
        yield opened


async def nothing_is_left(dispatcher: Dispatcher) -> None:
    """No call, no line and no count stays behind in a dispatcher that runs for months."""
    traffic = dispatcher._in_flight
    await eventually(lambda: not dispatcher._in_flight.all_open(), "no call is open")
    assert traffic._pump.waiting == 0
    for queue in traffic._pump._queues.values():
        await eventually(lambda queue=queue: not queue._flows, "no session has a flow")  # type: ignore[misc]
        assert (queue._waiting, queue._unstarted, list(queue._ring)) == (0, 0, [])


def calls(*blocks: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A turn of bare calls, with ids c0, c1, …."""
    return [
        {"id": f"c{index}", "name": name, "input": arguments}
        for index, (name, arguments) in enumerate(blocks)
    ]


def codes(results: Any) -> list[Code | None]:
    return [result.code for result in results]


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


# --- one result a call, in order


async def test_every_call_has_its_result_in_order_whatever_its_siblings_do(
    dispatcher: Dispatcher,
) -> None:
    """R1."""
    response: list[Any] = calls(
        ("echo", {"value": 0}),
        ("no_such_tool", {}),
        ("fail", {"message": "broken"}),
        ("echo_process", {"value": 3}),
        ("echo", {}),
        ("refuse", {"reason": "closed"}),
        ("echo_thread", {"value": 6}),
    )
    response += [{"id": "c7", "name": "echo", "input": "{not json"}, "no block", {"id": "c9"}]
    turn = await dispatcher.dispatch(response)
    assert [result.call_id for result in turn][:8] == [f"c{index}" for index in range(8)]
    assert codes(turn) == [
        None,
        Code.UNKNOWN_TOOL,
        Code.RAISED,
        None,
        Code.INVALID_ARGUMENTS,
        Code.REPORTED,
        None,
        Code.UNPARSEABLE,
        Code.UNPARSEABLE,
        Code.UNPARSEABLE,
    ]
    assert [turn[index].data for index in (0, 3, 6)] == [0, 3, 6]
    assert not turn.ok


@pytest.mark.parametrize("name", ["echo", "echo_thread", "echo_process"])
async def test_data_come_back_as_they_went(dispatcher: Dispatcher, name: str) -> None:
    """Big integers, 1 beside 1.0, every plane of Unicode: through envelope, child and reply."""
    data = {
        "big": 2**80, "one": 1, "one_point": 1.0, "tiny": 5e-324, "minus": -0.0, "none": None,
        "text": "ünï\U0001f600\0\u2028", "": [], "deep": [[[{"a": [True, False]}]]],
    }  # fmt: skip
    result = (await dispatcher.dispatch(call(name, value=data)))[0]
    assert repr(result.data) == repr(data)


async def test_2000_calls_at_once_are_each_answered_once(open_road: Open, tmp_path: Path) -> None:
    """From 100 sessions, and each by its own result."""
    trace = tmp_path / "trace"
    async with open_road() as dispatcher:
        turns = await asyncio.gather(
            *(
                dispatcher.dispatch(
                    call("count", f"c{number}", file=str(trace), label=f"{number}"),
                    session=f"s-{number % 100}",
                )
                for number in range(2000)
            )
        )
    assert [turn[0].data for turn in turns] == [f"{number}" for number in range(2000)]
    assert sorted(map(int, lines(trace))) == list(range(2000))


async def test_a_response_that_is_none_is_one_error_for_the_turn(dispatcher: Dispatcher) -> None:
    """R14."""
    for response in ("{not json", "7", {"type": "message", "content": None}):
        turn = await dispatcher.dispatch(response)
        assert len(turn) == 0
        assert turn.error is not None
        assert turn.error.startswith("Please try again with valid format.")
        assert turn.messages()


async def test_a_turn_without_calls_needs_no_answer(dispatcher: Dispatcher) -> None:
    text = {"type": "text", "text": "hi"}
    turn = await dispatcher.dispatch({"type": "message", "content": [text]})
    assert (list(turn), turn.error, turn.messages(), turn.ok) == ([], None, [], True)


# --- what is offered


async def test_a_tool_outside_the_allow_list_is_unknown_to_its_caller(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """R26: never run, listed or suggested."""
    trace = tmp_path / "trace"
    turn = await dispatcher.dispatch(
        calls(("count", {"file": str(trace)}), ("echoo", {}), ("echo", {"value": 1})),
        only=["echo", "fail"],
    )
    assert codes(turn) == [Code.UNKNOWN_TOOL, Code.UNKNOWN_TOOL, None]
    assert turn[0].error == "Tool 'count' not found. Available tools: echo, fail."
    assert turn[1].error is not None
    assert "Did you mean 'echo'?" in turn[1].error
    assert turn[0].executed is Executed.NO
    assert turn[0].retryable is False
    assert not trace.exists()


async def test_a_narrower_list_never_widens_the_dispatchers_own(fleet: LocalFleet) -> None:
    async with Dispatcher.connect(settings=fleet.settings, only=["echo", "fail"]) as connected:
        async with Dispatcher.in_memory([tools], only=["echo", "fail"]) as in_memory:
            for dispatcher in (connected, in_memory):
                turn = await dispatcher.dispatch(call("whoami"), only=["whoami", "echo"])
                assert turn[0].error == "Tool 'whoami' not found. Available tools: echo."
                names = [tool["name"] for tool in dispatcher.tools("bare")]
                assert {"echo", "fail"} <= set(names)
                assert "whoami" not in names


async def test_a_turn_has_a_cap(open_road: Open, tmp_path: Path) -> None:
    """R32: those beyond it are answered and not run."""
    trace = tmp_path / "trace"
    async with open_road(calls_per_turn=3) as dispatcher:
        turn = await dispatcher.dispatch(
            calls(*(("count", {"file": str(trace), "label": f"{n}"}) for n in range(5)))
        )
    assert codes(turn) == [None, None, None, Code.TOO_MANY_CALLS, Code.TOO_MANY_CALLS]
    assert {result.executed for result in turn[3:]} == {Executed.NO}
    assert sorted(lines(trace)) == ["0", "1", "2"]


async def test_a_check_says_what_would_happen_and_runs_nothing(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    verdicts = dispatcher.check(calls(("count", {"file": str(trace)}), ("count", {"file": 5})))
    assert verdicts[0] is None
    assert isinstance(verdicts[1], ToolResult)
    assert verdicts[1].code is Code.INVALID_ARGUMENTS
    assert not trace.exists()


# --- order of a turn


async def test_reads_run_beside_each_other(dispatcher: Dispatcher, tmp_path: Path) -> None:
    """R32: each waits until all four are running at once."""
    turn = await dispatcher.dispatch(
        calls(
            *(("meet", {"folder": str(tmp_path), "label": f"{n}", "expected": 4}) for n in range(4))
        )
    )
    assert [result.data for result in turn] == [4] * 4


async def test_a_write_waits_and_holds(dispatcher: Dispatcher, tmp_path: Path) -> None:
    """R32: what came before it has ended, and what comes after it has not begun; failed or not."""
    trace = tmp_path / "trace"
    at = {"trace": str(trace)}
    turn = await dispatcher.dispatch(
        calls(
            ("read", at | {"label": "r1"}),
            ("read", at | {"label": "r2"}),
            ("write", at | {"label": "w1", "fail": True}),
            ("write", at | {"label": "w2"}),
            ("read", at | {"label": "r3"}),
        )
    )
    assert codes(turn) == [None, None, Code.RAISED, None, None]
    seen = lines(trace)
    assert sorted(seen[:2]) == ["start r1", "start r2"]
    assert sorted(seen[2:4]) == ["end r1", "end r2"]
    assert seen[4:] == ["start w1", "end w1", "start w2", "end w2", "start r3", "end r3"]


# --- what a call carries


async def test_a_calls_own_timeout_replaces_the_tools(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """R33."""
    turn = await dispatcher.dispatch(
        call("hold", gate=str(tmp_path / "gate"), trace=str(tmp_path / "trace")), timeout=0.2
    )
    assert (turn[0].code, turn[0].executed, turn[0].retryable) == (
        Code.TIMEOUT, Executed.UNKNOWN, False,
    )  # fmt: skip
    assert turn[0].error is not None
    assert "timed out after 0.2 s" in turn[0].error
    await eventually(lambda: "cancelled " in lines(tmp_path / "trace"), "the tool is stopped")


async def test_host_context_reaches_the_tool(dispatcher: Dispatcher) -> None:
    context = {"user": "u-7"}
    turn = await dispatcher.dispatch(call("who_asks", "c-9"), session="s-1", context=context)
    assert turn[0].data == {"session": "s-1", "id": "c-9", "context": context}


# --- asking again


async def test_a_call_asked_again_is_answered_again_and_not_run_again(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """R18: the same call of the same turn of the same session."""
    trace = tmp_path / "trace"
    response = call("count", file=str(trace))
    first = await dispatcher.dispatch(response, session="s-1", turn="t-1")
    again = await dispatcher.dispatch(response, session="s-1", turn="t-1")
    assert first[0].data == again[0].data == "ran"
    assert lines(trace) == ["ran"]


async def test_a_failure_asked_again_is_the_same_failure(dispatcher: Dispatcher) -> None:
    response = call("fail", message="broken")
    first = await dispatcher.dispatch(response, session="s-1", turn="t-f")
    again = await dispatcher.dispatch(response, session="s-1", turn="t-f")
    assert first[0].payload() == again[0].payload()


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"name": "count_process"}, {}),
        ({"label": "other"}, {}),
        ({"id": "c-2"}, {}),
        ({}, {"turn": "t-2"}),
        ({}, {"session": "s-2"}),
        ({}, {"session": None}),
        ({}, {"turn": None}),
    ],
    ids=str,
)
async def test_anything_else_is_another_call(
    dispatcher: Dispatcher, tmp_path: Path, changed: dict[str, str], options: dict[str, Any]
) -> None:
    """R18: ids repeat in real conversations, so an id alone says nothing."""
    trace = tmp_path / "trace"
    same = {"session": "s-1", "turn": f"t-{tmp_path.name}"}
    name, id_, label = ({"name": "count", "id": "c-1", "label": "ran"} | changed).values()
    await dispatcher.dispatch(call("count", "c-1", file=str(trace), label="ran"), **same)
    second = await dispatcher.dispatch(
        call(name, id_, file=str(trace), label=label), **same | options
    )
    assert second[0].ok
    assert len(lines(trace)) == 2


async def test_a_call_asked_again_while_it_runs_is_joined(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    response = call("hold", gate=str(gate), trace=str(trace), label="it")
    asked = [
        asyncio.ensure_future(dispatcher.dispatch(response, session="s-1", turn="t-j"))
        for _ in range(5)
    ]
    await eventually(lambda: lines(trace), "the call runs")
    gate.touch()
    assert [(await turn)[0].data for turn in asked] == ["it"] * 5
    assert lines(trace) == ["start it"]


async def test_another_dispatcher_attaches_to_the_same_record(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """A restarted agent host asks again: its answer is the first one's."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    response = call("hold", gate=str(gate), trace=str(trace), label="it")
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        first = asyncio.ensure_future(one.dispatch(response, session="s-1", turn="t-a"))
        await eventually(lambda: lines(trace), "the call runs")
        second = asyncio.ensure_future(other.dispatch(response, session="s-1", turn="t-a"))
        await eventually(lambda: other.in_flight() == 1, "the other has asked")
        gate.touch()
        assert (await first)[0].data == (await second)[0].data == "it"
        for dispatcher in (one, other):
            await nothing_is_left(dispatcher)
    async with fleets.connected(fleet) as third:
        assert (await third.dispatch(response, session="s-1", turn="t-a"))[0].data == "it"
    assert lines(trace) == ["start it"]


async def test_two_calls_with_one_id_in_one_turn_are_two_calls(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    turn = await dispatcher.dispatch(
        call("count", "c", file=str(trace)) * 2, session="s-1", turn=f"t-{tmp_path.name}"
    )
    assert [(result.call_id, result.data) for result in turn] == [("c", "ran")] * 2
    assert lines(trace) == ["ran", "ran"]


# --- nobody wants it any more


async def test_a_cancelled_dispatch_cancels_its_calls(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """R34: the tool is stopped, and the record says so to whoever asks again."""
    trace = tmp_path / "trace"
    response = calls(
        ("hold", {"gate": str(tmp_path / "gate"), "trace": str(trace), "label": "it"}),
        ("echo", {"value": 1}),
    )
    asked = {"session": "s-1", "turn": f"t-{tmp_path.name}"}
    turn = asyncio.ensure_future(dispatcher.dispatch(response, **asked))
    await eventually(lambda: lines(trace), "the call runs")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert dispatcher.in_flight() == 0
    await eventually(lambda: "cancelled it" in lines(trace), "the tool is stopped")
    again = await dispatcher.dispatch(response, **asked)
    assert (again[0].code, again[0].executed) == (Code.CANCELLED, Executed.UNKNOWN)
    assert again[1].data == 1
    assert lines(trace) == ["start it", "cancelled it"]


async def test_a_call_that_somebody_else_waits_for_is_not_cancelled(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    response = call("hold", gate=str(gate), trace=str(trace), label="it")
    asked = {"session": "s-1", "turn": f"t-{tmp_path.name}"}
    leaves = asyncio.ensure_future(dispatcher.dispatch(response, **asked))
    stays = asyncio.ensure_future(dispatcher.dispatch(response, **asked))
    await eventually(lambda: lines(trace), "the call runs")
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    gate.touch()
    assert (await stays)[0].data == "it"
    assert lines(trace) == ["start it"]


async def test_a_cancelled_call_that_never_left_was_not_run(
    open_road: Open, tmp_path: Path
) -> None:
    """Behind another in its session's line, and cancelled there."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    async with open_road(in_flight_per_session=1) as dispatcher:
        first = asyncio.ensure_future(
            dispatcher.dispatch(call("hold", gate=str(gate), trace=str(trace)), session="s-1")
        )
        await eventually(lambda: lines(trace), "the first runs")
        second = asyncio.ensure_future(
            dispatcher.dispatch(call("count", file=str(trace)), session="s-1")
        )
        await eventually(lambda: dispatcher.in_flight() == 2, "the second waits")
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.touch()
        assert (await first)[0].ok
    assert lines(trace) == ["start "]


# --- too much


async def test_a_full_waiting_room_answers_overloaded_and_drops_nothing(
    open_road: Open, tmp_path: Path
) -> None:
    """What was accepted is run, and what was not says when to come back."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    async with open_road(in_flight_per_session=2, waiting_per_session=5) as dispatcher:
        turns = [
            asyncio.ensure_future(
                dispatcher.dispatch(
                    call("hold", f"c{n}", gate=str(gate), trace=str(trace), label=f"{n}"),
                    session="s-1",
                )
            )
            for n in range(20)
        ]
        other = await dispatcher.dispatch(call("echo", value=1), session="s-2")
        assert other[0].ok, "another session has a room of its own"
        await eventually(lambda: len(lines(trace)) == 2, "two of the session run")
        gate.touch()
        results = [(await turn)[0] for turn in turns]
    refused = [result for result in results if not result.ok]
    assert 13 <= len(refused) <= 15
    for result in refused:
        assert (result.code, result.executed, result.retryable) == (
            Code.OVERLOADED, Executed.NO, True,
        )  # fmt: skip
        assert result.payload()["retryAfter"] > 0
    ran = sorted(f"start {result.data}" for result in results if result.ok)
    assert ran == sorted(lines(trace))
    assert len(ran) == 20 - len(refused)


async def test_a_dispatcher_has_a_waiting_room_for_all_sessions(
    open_road: Open, tmp_path: Path
) -> None:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    async with open_road(in_flight_per_session=1, waiting_per_dispatcher=4) as dispatcher:
        turns = [
            asyncio.ensure_future(
                dispatcher.dispatch(
                    call("hold", gate=str(gate), trace=str(trace), label=f"{n}"),
                    session=f"s-{n % 2}",
                )
            )
            for n in range(12)
        ]
        await eventually(lambda: len(lines(trace)) == 2, "one of each session runs")
        gate.touch()
        results = [(await turn)[0] for turn in turns]
    assert set(codes(results)) == {None, Code.OVERLOADED}
    assert len(lines(trace)) == Counter(codes(results))[None]


async def test_closing_ends_what_still_runs(open_road: Open, tmp_path: Path) -> None:
    """Whoever still waits for a call gets its result, and not an exception."""
    trace = tmp_path / "trace"
    async with open_road() as dispatcher:
        turn = asyncio.ensure_future(
            dispatcher.dispatch(call("hold", gate=str(tmp_path / "gate"), trace=str(trace)))
        )
        await eventually(lambda: lines(trace), "the call runs")
        await dispatcher.close()
        assert codes(await turn) == [Code.CANCELLED]


# --- providers' own objects


def _anthropic_response() -> Any:
    return anthropic.types.Message.model_validate(
        {
            "id": "msg_road", "type": "message", "role": "assistant", "model": "m",
            "stop_reason": "tool_use", "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"value": [1]}},
                {"type": "tool_use", "id": "toolu_2", "name": "echo", "input": {}},
            ],
        }
    )  # fmt: skip


def _openai_response() -> Any:
    def block(id_: str, arguments: str) -> dict[str, Any]:
        function = {"name": "echo", "arguments": arguments}
        return {"id": id_, "type": "function", "function": function}

    tool_calls = [block("call_1", '{"value": [1]}'), block("call_2", "{}")]
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return openai.types.chat.ChatCompletion.model_validate(
        {
            "id": "chatcmpl-road", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("response", "message_type"),
    [
        (_anthropic_response(), anthropic.types.MessageParam),
        (_openai_response(), openai.types.chat.ChatCompletionToolMessageParam),
    ],
    ids=["anthropic", "openai"],
)
async def test_the_sdks_own_objects_go_in_and_their_own_messages_come_out(
    dispatcher: Dispatcher, response: Any, message_type: Any
) -> None:
    turn = await dispatcher.dispatch(response, session=f"s-{type(response).__name__}")
    assert [result.ok for result in turn] == [True, False]
    assert turn[0].data == [1]
    messages = turn.messages()
    for message in messages:
        TypeAdapter(message_type).validate_python(message)
    assert json.dumps(messages).count("Please rewrite the tool input") == 1
    as_json = await dispatcher.dispatch(
        response.model_dump_json(), session=f"s-{type(response).__name__}"
    )
    assert as_json.messages() == messages
