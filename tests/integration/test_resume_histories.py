"""Histories that hosts keep in their own way: every call in them is answered once all the same."""

import copy
import time
from typing import Any

import pytest

from tests.integration.conversations import (
    CALL,
    OWN,
    chat,
    gated,
    gemini,
    item,
    ollama,
    output,
    response_of,
    result,
    said,
    told,
    use,
    user,
)
from tests.integration.twins import Gate, alone


@pytest.mark.parametrize("effects", ["read", "write"])
@pytest.mark.parametrize("open_call", [0, 1, 2])
async def test_a_response_whose_answers_stand_between_its_calls_is_read_as_one(
    effects: str, open_call: int
) -> None:
    gate = Gate()
    gate.open()
    before = [{**item(7)}, output(7)]
    history = [*before, *(each for n in range(3) for each in (item(n), output(n)))]
    history.remove(output(open_call))
    async with alone([gated(gate, effects)]) as dispatcher:
        for id, output_ in (("r0", [item(7)]), ("r", [item(n) for n in range(3)])):
            response = {"object": "response", "id": id, "status": "completed", "output": output_}
            await dispatcher.dispatch(response, session="s")
        resumed = await dispatcher.resume(history, session="s")
    assert gate.came == ["7", "0", "1", "2"]
    at = history.index(item(open_call)) + 1
    while at < len(history) and history[at]["type"] == "function_call" and open_call != 2:
        at += 1  # right after what was said in one go
    assert resumed == [*history[:at], output(open_call), *history[at:]]


async def test_of_a_response_that_was_cut_off_the_last_call_alone_is_refused() -> None:
    """Also where its calls have answers between them."""
    gate = Gate()
    gate.open()
    response = {"object": "response", "id": "r", "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [item(0), item(1), {**item(2), "arguments": '{"label": "2'}]}  # fmt: skip
    async with alone([gated(gate, "write")]) as dispatcher:
        await dispatcher.dispatch(response, session="s")
        history = [item(0), item(1), output(1), response["output"][2]]
        resumed = await dispatcher.resume(history, session="s")
    assert gate.came == ["0", "1"]
    assert [each["type"] for each in resumed].count("function_call_output") == 3
    assert output(0) in resumed
    assert "validation.truncated" in resumed[-1]["output"]


async def test_a_response_that_its_host_keeps_as_several_messages_is_read_as_one() -> None:
    """A limit may have cut off the last call of it alone."""
    gate = Gate()
    gate.open()
    calls = [use(f"{OWN}{n}", str(n)) for n in range(3)]
    response = {**response_of(said(*calls)), "stop_reason": "max_tokens"}
    async with alone([gated(gate, "write")]) as dispatcher:
        [answers] = (await dispatcher.dispatch(response, session="s")).messages()
        resumed = await dispatcher.resume([said(call) for call in calls], session="s")
    assert gate.came == ["0", "1"]
    assert [message["content"] for message in resumed[1::2]] == [
        [block] for block in answers["content"]
    ]


async def test_a_late_answer_goes_to_its_place_and_no_other_is_given() -> None:
    gate = Gate()
    gate.open()
    late = result(f"{OWN}a")
    text = {"type": "text", "text": "?"}
    call, hm = said(use(f"{OWN}a", "x")), said({"type": "text", "text": "hm"})
    async with alone([gated(gate, "read")]) as dispatcher:
        for history, expected in (
            ([call, user(text), hm, user(late)], [call, user(late, text), hm]),
            ([call, hm, user(late, text)], [call, user(late), hm, user(text)]),
            ([user(late), call], [call, user(late)]),
            (
                [call, said(use(f"{OWN}b", "y")), user(result(f"{OWN}b"), late)],
                [call, user(late), said(use(f"{OWN}b", "y")), user(result(f"{OWN}b"))],
            ),
        ):
            before = copy.deepcopy(history)
            assert await dispatcher.resume(history, session="s") == expected
            assert history == before
            assert await dispatcher.resume(expected, session="s") == expected
    assert gate.came == []


async def test_late_answers_that_are_messages_go_to_their_place() -> None:
    gate = Gate()
    gate.open()
    system, ask = {"role": "system", "content": "Go."}, {"role": "user", "content": "?"}
    hm = {"role": "assistant", "content": "hm"}
    async with alone([gated(gate, "read")]) as dispatcher:
        for history, expected in (
            ([chat("c"), system, told("c")], [chat("c"), told("c"), system]),
            (
                [chat("c", "d"), told("d"), ask, hm, told("c")],
                [chat("c", "d"), told("d"), told("c"), ask, hm],
            ),
            ([chat("c"), ask, chat("c"), told("c")], None),  # the newer one's
        ):
            resumed = await dispatcher.resume(history, session="s")
            if expected is not None:
                assert resumed == expected
                assert gate.came == []
        assert [each["role"] for each in resumed] == [
            "assistant", "tool", "user", "assistant", "tool",
        ]  # fmt: skip
        assert "did x" in resumed[1]["content"]
        assert resumed[-1] == told("c")


@pytest.mark.parametrize("form", ["dispatched", "resumed"])
async def test_calls_that_share_an_id_have_an_answer_each(form: str) -> None:
    """Providers refuse an id that is there twice, in calls and in answers."""
    gate = Gate()
    gate.open()
    message = said(use("c", "x"), use("c", "y"), use("c-2", "z"), use("c", "w"))
    async with alone([gated(gate, "read")]) as dispatcher:
        if form == "dispatched":
            turn = await dispatcher.dispatch(response_of(message), session="s")
            called, answers = [*turn.assistant(), *turn.messages()]
        else:
            called, answers = await dispatcher.resume([message], session="s")
    ids = ["c", "c-3", "c-2", "c-4"]
    assert [block["id"] for block in called["content"]] == ids
    assert [block["tool_use_id"] for block in answers["content"]] == ids
    assert [block["content"] for block in answers["content"]] == [
        f"did {label}" for label in "xyzw"
    ]
    assert gate.came == ["x", "y", "z", "w"]


async def test_of_calls_that_share_an_id_the_open_one_alone_is_renamed() -> None:
    gate = Gate()
    async with alone([gated(gate, "write")]) as dispatcher:
        gate.open()
        response = {"id": "r", "choices": [{"message": chat("c", "c")}]}
        turn = await dispatcher.dispatch(response, session="s")
        assert [message["tool_call_id"] for message in turn.messages()] == ["c", "c-2"]
        resumed = await dispatcher.resume([chat("c", "c"), told("c")], session="s")
        assert [call["id"] for call in resumed[0]["tool_calls"]] == ["c", "c-2"]
        assert [message["tool_call_id"] for message in resumed[1:]] == ["c", "c-2"]
        assert resumed[1] == told("c")
        history = [chat("c", "c"), told("c"), told("c")]
        assert await dispatcher.resume(history, session="s") == history
    assert gate.came == ["x", "x"]


async def test_items_that_share_an_id_are_renamed_where_they_stand() -> None:
    gate = Gate()
    gate.open()
    items = [{**CALL, "call_id": "c", "arguments": '{"label": "x"}'} for _ in range(2)]
    async with alone([gated(gate, "read")]) as dispatcher:
        made = await dispatcher.resume(items, session="s")
    assert [item["call_id"] for item in made] == ["c", "c-2"] * 2


async def test_a_call_without_an_id_has_the_one_that_its_answer_names() -> None:
    gate = Gate()
    gate.open()
    call = use("", "x")
    del call["id"]
    async with alone([gated(gate, "read")]) as dispatcher:
        called, answer = await dispatcher.resume([said(call)], session="s")
    assert called["content"][0]["id"] == answer["content"][0]["tool_use_id"]


ODD: dict[str, list[Any]] = {
    "nothing said": [None, {"role": "assistant", "content": None}],
    "unknown roles": [{"role": "developer", "content": "x"}, {"role": 3}, {"kind": "odd"}],
    "answers to nobody": [user(result("nobody")), {"role": "tool", "content": "?"}],
    "odd answers": [user({"type": "tool_result"}, {"type": "tool_result", "tool_use_id": ["x"]})],
    "odd blocks": [{"role": "user", "content": ["text", None, 3]}],
    "odd calls": [said({"type": "tool_use"}), user(result("turn-x"))],
    "no messages": ["text", b"bytes", 3, [], {}],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("before", [True, False])
async def test_whatever_else_is_in_a_history_its_calls_are_answered_once(
    name: str, before: bool
) -> None:
    gate = Gate()
    gate.open()
    call = said(use(f"{OWN}a", "x"))
    async with alone([gated(gate, "read")]) as dispatcher:
        history = [*ODD[name], call] if before else [call, *ODD[name]]
        resumed = await dispatcher.resume(history, session="s")
        assert await dispatcher.resume(resumed, session="s") == resumed
    answers = [
        block["content"]
        for message in resumed
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
        if isinstance(block, dict) and block.get("tool_use_id") == f"{OWN}a"
    ]
    assert answers == ["did x"]
    assert gate.came == ["x"]


async def test_answers_without_ids_are_known_by_their_tool_or_their_order() -> None:
    """As Ollama's were before they named their tool."""
    gate = Gate()
    gate.open()
    async with alone([gated(gate, "read")]) as dispatcher:
        for answer in ({"name": "work"}, {"tool_name": "work"}, {}):
            history = [ollama("x"), {"role": "tool", "content": "mine", **answer}]
            assert await dispatcher.resume(history, session="s") == history
    assert gate.came == []


async def test_a_placeholder_of_a_signature_tells_no_call_from_others() -> None:
    gate, message = Gate(), gemini("x")
    gate.open()
    message["parts"][0]["thoughtSignature"] = "skip_thought_signature_validator"
    async with alone([gated(gate, "write")]) as dispatcher:
        await dispatcher.dispatch(response_of(message), session="s")
        resumed = await dispatcher.resume([message], session="s")
    assert "did x" not in str(resumed)


async def test_one_signature_is_enough_for_calls_that_were_made_together() -> None:
    """Gemini signs the first of parallel calls."""
    gate = Gate()
    gate.open()
    message = {"role": "model", "parts": [*gemini("x")["parts"], *gemini("y")["parts"]]}
    message["parts"][0]["thoughtSignature"] = "c2lnbmF0dXJl"
    async with alone([gated(gate, "write")]) as dispatcher:
        turn = await dispatcher.dispatch(response_of(message), session="s")
        resumed = await dispatcher.resume([message], session="s")
    assert resumed == [message, *turn.messages()]
    assert gate.came == ["x", "y"]


async def test_a_huge_history_is_read_in_time() -> None:
    gate = Gate()
    gate.open()
    history: list[Any] = []
    for n in range(5_000):
        history += [item(n), output(n)]
    history += [item(5_000)]
    async with alone([gated(gate, "read")]) as dispatcher:
        began = time.process_time()
        resumed = await dispatcher.resume(history, session="s")
        took = time.process_time() - began
    assert resumed[:-1] == history
    assert took < 10.0


@pytest.mark.parametrize("is_held", [True, False])
async def test_langchain_s_messages_are_answered_in_the_form_that_they_are_kept_in(
    is_held: bool,
) -> None:
    """`messages_from_dict` reads what `messages_to_dict` made, and nothing beside it."""
    gate = Gate()
    gate.open()
    calls = [{"type": "tool_call", "id": "c", "name": "work", "args": {"label": n}} for n in "xy"]
    message = {"type": "ai", "content": "", "tool_calls": calls, "id": None}
    history = [{"type": "ai", "data": message}] if is_held else [message]
    async with alone([gated(gate, "read")]) as dispatcher:
        resumed = await dispatcher.resume(history, session="s")
        assert await dispatcher.resume(resumed, session="s") == resumed
    plain = [each["data"] for each in resumed] if is_held else resumed
    assert all(each.keys() == {"type", "data"} for each in resumed) == is_held
    assert [call["id"] for call in plain[0]["tool_calls"]] == ["c", "c-2"]
    assert [(each["tool_call_id"], each["content"]) for each in plain[1:]] == [
        ("c", "did x"),
        ("c-2", "did y"),
    ]
