"""The loop guard, in memory (R30)."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from toolpool import Dispatcher, Hooks, ToolError, ToolResult, tool
from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.failure_memory import MemoryFailures
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings
from toolpool.dispatcher.admission.loop_guard import LoopGuard, digest_of
from toolpool.dispatcher.observer import Loop, Observer, Observers

runs: list[str] = []


@tool
async def fails(what: str, times: int = 1) -> str:
    """Report failure."""
    runs.append(what)
    raise ToolError(f"no {what}")


@tool
async def raises(what: str) -> str:
    """Raise."""
    raise RuntimeError(what)


@tool
async def flaky(key: str) -> str:
    """Fail until told otherwise."""
    if key in broken:
        raise ToolError("not now")
    return "fine"


broken: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    runs.clear()
    broken.clear()


TOOLS = [fails, raises, flaky]


async def ask(
    dispatcher: Dispatcher, name: str, _session: str | None = "s", /, **given: Any
) -> ToolResult:
    call = {"id": "c", "name": name, "input": given}
    return (await dispatcher.dispatch(call, session=_session))[0]


async def codes(dispatcher: Dispatcher, *calls: tuple[str, dict[str, Any]]) -> list[Code | None]:
    return [(await ask(dispatcher, name, **given)).code for name, given in calls]


SAME = ("fails", {"what": "x"})
OTHER = ("fails", {"what": "y"})


async def test_the_fourth_identical_failure_is_not_run() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        assert await codes(dispatcher, SAME, SAME, SAME) == [Code.REPORTED] * 3
        result = await ask(dispatcher, "fails", what="x")
        assert runs == ["x"] * 3
        assert (result.code, result.executed.value, result.retryable) == (Code.LOOP, "no", False)
        assert "the same call has failed 3 times" in str(result.error)
        assert result.recommendations == ()
        assert await codes(dispatcher, SAME, OTHER) == [Code.LOOP, Code.REPORTED]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("raises", {"what": "x"}), Code.RAISED),
        (("fails", {"what": 3}), Code.INVALID_ARGUMENTS),
        (("fails", {}), Code.INVALID_ARGUMENTS),
    ],
)
async def test_every_failure_of_the_call_counts(call: Any, code: Code) -> None:
    async with Dispatcher.in_memory(TOOLS, settings=Settings(repair=False)) as dispatcher:
        assert await codes(dispatcher, *[call] * 4) == [code] * 3 + [Code.LOOP]


async def test_a_call_that_cannot_run_is_told_what_is_wrong_and_to_stop() -> None:
    """R30: the fourth says both; the list of tools is what an unknown name needs (R26)."""
    unknown = ("fials", {"what": "x"})
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        assert await codes(dispatcher, *[unknown] * 3) == [Code.UNKNOWN_TOOL] * 3
        result = await ask(dispatcher, "fials", what="x")
        assert (result.code, result.executed.value) == (Code.LOOP, "no")
        assert result.error == (
            "Tool 'fials' not found. Did you mean 'fails'? Available tools: fails, flaky, raises. "
            "This has failed 3 times: do not send it again. Change the call, use another tool, or "
            "tell the user what keeps failing."
        )
        assert await codes(dispatcher, ("fials", {"what": "y"})) == [Code.UNKNOWN_TOOL]
        call = {"id": "c", "name": "fails", "input": '{"what": '}
        found = [(await dispatcher.dispatch(call, session="t"))[0] for _ in range(4)]
        assert [result.code for result in found] == [Code.UNPARSEABLE] * 3 + [Code.LOOP]
        assert str(found[3].error).startswith("The arguments are not valid JSON: it ends too early")
        assert "This has failed 3 times: do not send it again." in str(found[3].error)


async def test_calls_are_the_same_in_any_key_order_white_space_and_number_form() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        texts = [
            '{"what": "x", "times": 1}',
            '{"times":1,"what":"x"}',
            '{ "what" : "x",\n "times": 1.0 }',
            '{"times": 1e0, "what": "x"}',
        ]
        found = []
        for text in texts:
            function = {"name": "fails", "arguments": text}
            response = {
                "choices": [{"message": {"tool_calls": [{"id": "c", "function": function}]}}]
            }
            found.append((await dispatcher.dispatch(response, session="s"))[0].code)
        assert found == [Code.REPORTED] * 3 + [Code.LOOP]


async def test_a_call_that_is_asked_again_has_its_own_result_whatever_failed_since() -> None:
    """It ran: that it is refused as a loop would say that it did not."""

    async def asked_in(turn: str) -> ToolResult:
        call = {"id": "c", "name": "fails", "input": {"what": "x"}}
        return (await dispatcher.dispatch(call, session="s", turn=turn))[0]

    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        first = [await asked_in(turn) for turn in "abc"]
        assert [result.code for result in first] == [Code.REPORTED] * 3
        assert (await asked_in("d")).code is Code.LOOP
        again = [await asked_in(turn) for turn in "abc"]
        assert [(r.code, r.executed) for r in again] == [(r.code, r.executed) for r in first]
        assert (await asked_in("d")).code is Code.LOOP
    assert runs == ["x"] * 3


async def test_a_success_resets_its_call() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        flaky_call = ("flaky", {"key": "k"})
        broken.add("k")
        await codes(dispatcher, flaky_call, flaky_call, SAME)
        broken.clear()
        assert await codes(dispatcher, flaky_call) == [None]
        broken.add("k")
        assert await codes(dispatcher, *[flaky_call] * 4) == [Code.REPORTED] * 3 + [Code.LOOP]


async def test_two_calls_that_take_turns_are_a_loop() -> None:
    """A-B-A-B: the fourth is not run."""
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        found = await codes(dispatcher, SAME, OTHER, SAME, OTHER)
        assert found == [Code.REPORTED] * 3 + [Code.LOOP]
        text = str((await ask(dispatcher, *OTHER[:1], **OTHER[1])).error)
        assert "it and another call have been failing alternately" in text
        third = ("fails", {"what": "z"})
        assert await codes(dispatcher, third) == [Code.REPORTED]


async def test_sessions_and_calls_without_one_stay_apart() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        await codes(dispatcher, SAME, SAME, SAME)
        assert (await ask(dispatcher, "fails", "t", what="x")).code is Code.REPORTED
        for _ in range(5):
            assert (await ask(dispatcher, "fails", None, what="x")).code is Code.REPORTED


class Recording(Observer):
    def __init__(self) -> None:
        self.loops: list[Loop] = []

    def looped(self, loop: Loop) -> None:
        self.loops.append(loop)


class Broken(Observer):
    def looped(self, loop: Loop) -> None:
        raise RuntimeError("observer")


async def test_the_threshold_is_a_setting() -> None:
    async with Dispatcher.in_memory(
        TOOLS, settings=Settings(failure_loop_threshold=1)
    ) as dispatcher:
        assert await codes(dispatcher, SAME, SAME) == [Code.REPORTED, Code.LOOP]
    async with Dispatcher.in_memory(
        TOOLS, settings=Settings(failure_loop_threshold=0)
    ) as dispatcher:
        assert await codes(dispatcher, *[SAME] * 6) == [Code.REPORTED] * 6


async def test_a_hook_can_allow_the_call_and_all_observers_are_notified() -> None:
    """R45: sync or async; one that raises or hangs refuses."""
    asked: list[Loop] = []

    async def allow(loop: Loop) -> bool:
        asked.append(loop)
        return True

    def refuse(loop: Loop) -> bool:
        return False

    def broken_hook(loop: Loop) -> bool:
        raise RuntimeError("hook")

    async def hangs(loop: Loop) -> bool:
        await asyncio.Event().wait()
        return True

    settings = Settings(hook_timeout=0.05)
    for hook, code in ((allow, Code.REPORTED), (refuse, Code.LOOP), (broken_hook, Code.LOOP),
                       (hangs, Code.LOOP)):  # fmt: skip
        seen = Recording()
        async with Dispatcher.in_memory(
            TOOLS, settings=settings, hooks=Hooks(on_loop=hook), observers=[Broken(), seen]
        ) as dispatcher:
            assert await codes(dispatcher, *[SAME] * 4) == [Code.REPORTED] * 3 + [code]
        assert seen.loops == [
            Loop(session="s", tool="fails", call_id="c", failures=3, alternates=False)
        ]
    assert asked == seen.loops


async def test_a_loop_is_published_to_event_followers() -> None:
    """R30: beside the hook, and whatever it answers."""
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        events = dispatcher.events()
        next_one = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await codes(dispatcher, *[SAME] * 4)
        event = await next_one
        while event.kind != "monitor:loop":
            event = await anext(events)
        assert (event.tool, event.call_id, event.session, event.state) == ("fails", "c", "s", None)
        assert event.detail == {"failures": 3, "alternates": False}


async def test_a_tool_that_rejects_too_much_is_an_event() -> None:
    """R43: it names the tool and the field."""
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        events = dispatcher.events(channels=["monitor"])
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await codes(dispatcher, *[("fails", {"what": n}) for n in range(10)])
        event = await following
        while event.kind == "error":  # each rejection is one
            event = await anext(events)
        assert (event.kind, event.tool, event.state) == ("monitor:rejections", "fails", None)
        assert event.detail == {"field": "what", "rate": 1.0}


class Away(MemoryFailures):
    """A server that does not answer."""

    def suspects(self, session: str) -> bool:
        return True

    async def look(self, *_: Any) -> Any:
        raise ServerUnavailable("loop", sent=False)

    async def note(self, *_: Any) -> Any:
        raise ServerUnavailable("loop", sent=False)


async def test_a_server_that_is_away_holds_nothing_up() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        dispatcher._pipeline._loops = LoopGuard(Away(), Settings(), Observers())
        assert await codes(dispatcher, *[SAME] * 5) == [Code.REPORTED] * 5


async def test_a_session_without_failures_costs_no_question() -> None:
    class Counting(MemoryFailures):
        asked = 0

        async def look(self, *given: Any) -> Any:
            self.asked += 1
            return await super().look(*given)

        async def note(self, *given: Any) -> Any:
            self.asked += 1
            return await super().note(*given)

    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        counting = Counting()
        dispatcher._pipeline._loops = LoopGuard(counting, Settings(), Observers())
        await codes(dispatcher, *[("flaky", {"key": "k"})] * 5)
        assert counting.asked == 0
        await codes(dispatcher, SAME)
        assert counting.asked == 1


async def test_memory_is_bounded() -> None:
    loops = MemoryFailures()
    await loops.note("s", [(str(n), True) for n in range(38)], 0.0)
    seen = await loops.look("s", [str(n) for n in range(38)], 0.0)
    assert [found.failures for found in seen] == [0] * 6 + [1] * 32


def call(arguments: Any, name: str = "t") -> ToolCall:
    if arguments is None:
        return ToolCall(index=0, id="c", name=name, flaw=Flaw(Code.UNPARSEABLE, "no_form"))
    return ToolCall(index=0, id="c", name=name, arguments=arguments)


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.floats(-5, 5) | st.text(max_size=3)))
def test_a_digest_does_not_change_with_the_form(arguments: dict[str, Any]) -> None:
    shuffled = dict(reversed(list(arguments.items())))
    text = json.dumps(shuffled, indent=2)
    assert digest_of(call(arguments)) == digest_of(call(json.loads(text)))
    floated = {
        k: float(v) if isinstance(v, int) and abs(v) < 2**53 else v for k, v in arguments.items()
    }
    assert digest_of(call(floated)) == digest_of(call(arguments))


def test_different_calls_have_different_digests() -> None:
    different = [
        call({}), call({}, "u"), call(None), call({"a": 1}), call({"a": "1"}), call({"a": True}),
        call({"a": None}), call({"a": 1.5}), call({"a": [1, 2]}), call({"a": [2, 1]}),
    ]  # fmt: skip
    assert len({digest_of(one) for one in different}) == len(different)
