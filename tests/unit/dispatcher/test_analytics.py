"""Validation analytics: live, and read back from a record (R43)."""

import json
from typing import Any

from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.analytics import Analytics, read_record
from toolpool.dispatcher.observer import Alert, Observer, Observers


@tool
async def edit(path: str, edits: list[dict[str, int]]) -> str:
    """Edit."""
    return path


def response(model: str, *calls: dict[str, Any]) -> dict[str, Any]:
    blocks = [
        {"type": "tool_use", "id": f"t{n}", "name": "edit", "input": given}
        for n, given in enumerate(calls)
    ]
    return {"type": "message", "model": model, "content": blocks}


GOOD = {"path": "a", "edits": []}


async def test_rejections_are_counted_by_tool_field_and_model() -> None:
    async with Dispatcher.in_memory([edit], settings=Settings(repair=False)) as dispatcher:
        bad = {"path": "SECRET", "edits": [{"x": "SECRET"}, {"y": "SECRET"}], "SEC": 1}
        for given, model, session in (
            (bad, "large", "s"), (GOOD, "large", "s"), ({}, "small", "s"), ({}, "small", "s"),
            (GOOD, "small", None),
        ):  # fmt: skip
            await dispatcher.dispatch(response(model, given), session=session)
        for _ in range(5):  # the loop guard's answer to an unknown name is not counted either
            await dispatcher.dispatch([{"name": "nothing", "input": {}}], session="s")
        [figures] = dispatcher.analytics.tools()
    assert (figures.tool, figures.calls, figures.rejected) == ("edit", 5, 3)
    assert (figures.retried, figures.right_at_once) == (2, 1)
    assert figures.models == {"large": [2, 1], "small": [3, 2]}
    assert figures.fields == {
        ("edits.*.x", "type"): 1,
        ("edits.*.y", "type"): 1,
        ("SEC", "additionalProperties"): 1,
        ("path", "required"): 2,
        ("edits", "required"): 2,
    }
    assert "SECRET" not in repr(figures)


def count(analytics: Analytics, rejected: bool, times: int) -> None:
    for _ in range(times):
        analytics.count(
            "t", session=None, model=None, rejected=rejected, fields=[("limit", "type")]
        )


def test_only_the_call_after_the_first_rejection_is_a_first_retry() -> None:
    """Not the one beside it, nor the third in a row."""

    def retries(*turns: list[bool]) -> tuple[int, int]:
        """How many were retried, and right at once. A turn says of each call if it was rejected."""
        analytics = Analytics(observers=Observers())
        for turn in turns:
            analytics.note(
                [
                    ToolResult(
                        call_id="c",
                        name="t",
                        ok=not rejected,
                        code=Code.INVALID_ARGUMENTS if rejected else None,
                    )
                    for rejected in turn
                ],
                session="s",
                model=None,
            )
        [figures] = analytics.tools()
        return figures.retried, figures.right_at_once

    assert retries([True], [False]) == (1, 1)
    assert retries([True], [True], [True], [True], [False]) == (1, 0)
    assert retries([True, False]) == (0, 0)
    assert retries([True, False], [False, True], [False]) == (2, 2)
    assert retries([True, True], [False, False]) == (1, 1)


def test_a_high_rate_is_logged_once_until_it_recovers() -> None:
    told: list[Alert] = []

    class Told(Observer):
        def alerted(self, alert: Alert) -> None:
            told.append(alert)

    observers = Observers()
    observers.add(Told())
    analytics = Analytics(observers=observers)
    count(analytics, True, 9)
    assert told == []  # too few to say
    count(analytics, True, 5)
    assert told == [Alert(tool="t", field="limit", rate=1.0)]
    count(analytics, False, 20)
    count(analytics, True, 9)
    assert len(told) == 1
    count(analytics, True, 2)
    assert told[1:] == [Alert(tool="t", field="limit", rate=0.5)]


def rows(name: str, payload: Any, number: int, **metadata: Any) -> list[str]:
    call = {
        "id": f"c{number}",
        "parentId": None,
        "timestamp": 1,
        "type": "tool_call",
        "content": json.dumps({"name": name, "input": {}}),
    }
    result = {
        "id": f"r{number}",
        "parentId": f"c{number}",
        "timestamp": 2,
        "type": "tool_result",
        "content": payload if isinstance(payload, str) else json.dumps(payload),
        "metadata": {"error": bool(metadata or isinstance(payload, dict)), **metadata},
    }
    return [json.dumps(call), json.dumps(result)]


REJECTED = {
    "ok": False,
    "error": "Please rewrite the tool input with valid arguments. Errors: edits.0.path: Required",
    "errorType": "validation",
    "code": "validation.arguments",
}
RECORD = [
    *rows("edit", REJECTED, 1, fields=[["edits.*.path", "required"], ["limit", "type"]]),
    *rows("edit", "fine", 2),
    *rows("edit", {"ok": False, "error": "x", "errorType": "runtime"}, 3),
    *rows("edit", "", 4, code="validation.arguments", fields=[["limit", "type"]], model="m"),
    *rows("gone", {"code": "validation.unknown_tool", "errorType": "validation"}, 5),
    "",
    "{broken",
    '{"type": "tool_call"}',
    "[]",
]


def test_a_record_is_read_back() -> None:
    analytics, unread = read_record(RECORD)
    assert unread == 3
    [figures] = analytics.tools()
    assert (figures.calls, figures.rejected) == (4, 2)
    assert (figures.retried, figures.right_at_once) == (1, 1)
    assert figures.fields == {
        ("edits.*.path", "required"): 1,
        ("limit", "type"): 2,
    }
    assert figures.models == {"m": [1, 1]}
    assert Code.UNKNOWN_TOOL.value not in repr(figures)
