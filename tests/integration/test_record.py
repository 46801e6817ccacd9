"""The session record: two rows a call, whatever becomes of it, and never felt by a call (R39)."""

import asyncio
import errno
import json
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.integration.twins import Gate
from tests.waiting import eventually, wait_until
from toolpool import (
    Dispatcher,
    Hooks,
    ProposedCall,
    SessionRecord,
    Settings,
    SyncDispatcher,
    ToolResult,
    tool,
)
from toolpool.contract.errors import Misconfigured
from toolpool.contract.outcome import Code
from toolpool.dispatcher.analytics import read_record
from toolpool.dispatcher.observers import record_writer

GATE = Gate()


@tool(effects="read")
async def echo(value: int) -> dict[str, int]:
    """Give it back."""
    return {"value": value}


@tool
async def fail() -> None:
    """Fail."""
    raise ValueError("broken")


@tool(effects="read")
async def much(size: int) -> str:
    """Give a lot."""
    return "x" * size


TOOLS = [echo, fail, much]


class Sink:
    """What a host may write rows to; fails as it is told to."""

    def __init__(self) -> None:
        self.lines: list[tuple[str | None, bytes]] = []
        self.fails_with: Exception | None = None
        self.tried = 0
        self.is_closed = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        self.tried += 1
        self.goes_on.wait(20)
        if self.fails_with is not None:
            raise self.fails_with
        self.lines += [(session, line) for line in lines]

    def close(self) -> None:
        self.is_closed = True

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for _, line in self.lines]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["type"] == kind]


@asynccontextmanager
async def recorded(
    sink: Any, tools: Sequence[Any] = TOOLS, hooks: Hooks | None = None, **settings: Any
) -> AsyncIterator[Dispatcher]:
    options = {"settings": Settings(**settings), "record": sink, "hooks": hooks}
    async with Dispatcher.in_memory(tools, **options) as dispatcher:
        yield dispatcher


def response(*calls: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "tool_use", **each} for each in calls]
    return {"type": "message", "id": "msg_1", "model": "model-1", "content": content}


async def test_every_call_has_two_rows(tmp_path: Path) -> None:
    """R39: to the field; what was rejected as well."""
    asked = response(
        {"id": "a", "name": "echo", "input": {"value": 1}},
        {"id": "b", "name": "echo", "input": {"value": "one"}},
        {"id": "c", "name": "fail", "input": {}},
    )
    async with recorded(tmp_path / "r.jsonl") as dispatcher:
        turn = await dispatcher.dispatch(asked, session="s", context={"user": "secret-context"})
    text = (tmp_path / "r.jsonl").read_text()
    assert "secret-context" not in text
    rows = [json.loads(line) for line in text.splitlines()]
    calls, results = rows[:3], rows[3:]
    assert [row["type"] for row in rows] == ["tool_call"] * 3 + ["tool_result"] * 3
    assert len({row["id"] for row in rows}) == 6
    fields = ["id", "parentId", "timestamp", "type", "content", "callId"]
    assert all(list(row) == fields for row in calls)
    assert [row["callId"] for row in rows] == ["a", "b", "c"] * 2
    assert {row["parentId"] for row in calls} == {"msg_1"}
    assert [json.loads(row["content"]) for row in calls] == [
        {"name": "echo", "input": {"value": 1}},
        {"name": "echo", "input": {"value": "one"}},
        {"name": "fail", "input": {}},
    ]
    assert [row["parentId"] for row in results] == [row["id"] for row in calls]
    assert [json.loads(row["content"]) for row in results] == [r.payload() for r in turn]
    well, wrong, failed = (row["metadata"] for row in results)
    assert well | {"duration": 0} == {
        "error": False, "executed": "yes", "duration": 0, "attempts": 1, "session": "s",
        "turn": "msg_1", "model": "model-1",
    }  # fmt: skip
    assert well["duration"] > 0
    assert (wrong["error"], wrong["code"], wrong["executed"], wrong["fields"]) == (
        True, "validation.arguments", "no", [["value", "type"]],
    )  # fmt: skip
    assert (failed["errorType"], failed["retryable"]) == ("runtime", True)
    assert all(isinstance(row["timestamp"], int) for row in rows)


async def test_what_is_written_is_read_by_the_analytics(tmp_path: Path) -> None:
    """`tools check --from` reads the same."""
    async with recorded(tmp_path / "r.jsonl") as dispatcher:
        for value in (1, "x", "y"):
            await dispatcher.dispatch(call("echo", value=value), session="s")
    analytics, unread = read_record((tmp_path / "r.jsonl").read_text().splitlines())
    [figures] = analytics.tools()
    assert (figures.calls, figures.rejected, unread) == (3, 2, 0)
    assert figures.fields == {("value", "type"): 2}


async def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        assert dispatcher._parts.watching.recorder is None
    async with Dispatcher.in_memory(TOOLS, settings=Settings(record=str(tmp_path))) as dispatcher:
        await dispatcher.dispatch(call("echo", value=1), session="s")
    assert list(tmp_path.glob("??/s.jsonl"))


@pytest.mark.parametrize(("name", "executed"), [(None, "no"), ("t", "unknown")])
async def test_the_rows_of_a_cancelled_dispatch_are_written(
    name: str | None, executed: str
) -> None:
    """One that ran, and one that was never sent: another dispatcher may be asked for it."""
    gate, sink = Gate(), Sink()

    @tool(effects="write")
    async def write() -> None:
        """Write."""
        await gate.wait("write")

    async with recorded(sink, [write, echo]) as dispatcher:
        asked = call("write", "w") + call("echo", "e", value=1) + call("echo", "x", value="x")
        turn = asyncio.ensure_future(dispatcher.dispatch(asked, session="s", turn=name))
        await eventually(lambda: gate.came, "it runs")
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await eventually(lambda: len(sink.of("tool_result")) == 3, "all are written")
    told = [
        (row["metadata"]["code"], row["metadata"]["executed"]) for row in sink.of("tool_result")
    ]
    assert told == [
        ("aborted.cancelled", "unknown"),
        ("aborted.cancelled", executed),
        ("validation.arguments", "no"),
    ]


async def test_what_is_answered_after_the_dispatcher_was_closed_is_recorded() -> None:
    """Its hook still runs."""
    gate, sink = Gate(), Sink()

    async def slow(result: ToolResult, call: ProposedCall) -> None:
        await gate.wait("hook")

    hooks = Hooks(after_result=slow)
    async with recorded(sink, [echo], hooks=hooks) as dispatcher:
        asking = asyncio.create_task(dispatcher.dispatch(call("echo", "e", value=1), session="s"))
        await eventually(lambda: gate.came, "its result is shown to the hook")
        asyncio.get_running_loop().call_later(0.2, gate.open)
    turn = await asking
    assert turn.ok
    assert [row["metadata"]["executed"] for row in sink.of("tool_result")] == ["yes"]


async def test_the_end_of_a_background_call_is_a_further_row() -> None:
    gate, sink = Gate(), Sink()

    @tool(effects="read")
    async def work(label: str) -> str:
        """Work."""
        await gate.wait(label)
        return label

    async with recorded(sink, [work]) as dispatcher:
        await dispatcher.dispatch(call("work", label="one"), session="s", wait=0.0)
        await eventually(lambda: len(sink.rows) == 2, "the handle is written")
        gate.open()
        await eventually(lambda: len(sink.rows) == 3, "the end is written")
        held, ended = sink.of("tool_result")
        assert held["metadata"]["handle"]
        assert ended["parentId"] == held["parentId"]
        assert json.loads(ended["content"]) == {"ok": True, "data": "one"}
        gate._open.clear()
        await dispatcher.dispatch(call("work", label="two"), session="s", wait=0.0)
        await eventually(lambda: len(gate.came) == 2, "it runs")
    assert len(sink.of("tool_result")) == 3  # it goes on, and nobody knows its end here
    assert sink.is_closed


@pytest.mark.parametrize("target", ["missing", "missing/r.jsonl"])
async def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, target: str) -> None:
    """R9: on entering, saying what to do."""
    with pytest.raises(Misconfigured, match="set TOOLPOOL_RECORD to a folder that exists"):
        async with recorded(tmp_path / target):
            pass
    with pytest.raises(Misconfigured, match="write"):
        Dispatcher.in_memory(TOOLS, record=5)  # type: ignore[arg-type]


async def test_a_full_disk_is_logged_once_and_delays_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It recovers, and nothing is lost that there was room for."""
    sink = Sink()
    sink.fails_with = OSError(errno.ENOSPC, "No space left on device")
    async with recorded(sink) as dispatcher:
        for value in range(3):
            assert (await dispatcher.dispatch(call("echo", value=value), session=f"s{value}"))[0].ok
            await eventually(lambda tried=sink.tried: sink.tried > tried, "it is tried again")
        sink.fails_with = None
        await eventually(lambda: len(sink.rows) == 6, "all are written")
    warned = [line for line in caplog.messages if "record_not_written" in line]
    assert len(warned) == 1
    assert "make room on the disk" in warned[0]
    assert "record_written_again dropped=0" in caplog.messages


async def test_a_result_is_on_disk_although_its_host_blocks_the_event_loop() -> None:
    """What a host has in hand when it dies is in the record."""
    sink = Sink()
    async with recorded(sink) as dispatcher:
        await dispatcher.dispatch(call("echo", value=1), session="s")
        wait_until(lambda: sink.of("tool_result"), "its row is written")
        assert [row["type"] for row in sink.rows] == ["tool_call", "tool_result"]


async def test_what_there_is_no_room_for_is_counted_in_the_record(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "_MAX_ROWS", 4)
    caplog.set_level(logging.WARNING)
    sink = Sink()
    sink.goes_on.clear()
    async with recorded(sink) as dispatcher:
        await dispatcher.dispatch(call("echo", value=0), session="s")
        await eventually(lambda: sink.tried, "the first are being written")
        for value in range(5):
            assert (await dispatcher.dispatch(call("echo", value=value), session="s"))[0].ok
        await asyncio.sleep(0)  # the turn of the event loop in which the last row is noted
        sink.goes_on.set()
        await eventually(lambda: sink.of("dropped"), "it is said")
    dropped = sum(json.loads(row["content"])["rows"] for row in sink.of("dropped"))
    assert dropped + len(sink.of("tool_call")) + len(sink.of("tool_result")) == 12
    assert dropped >= 6
    assert sum("record_too_slow" in line for line in caplog.messages) == 1


async def test_an_error_of_a_sink_is_reported_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink()
    sink.fails_with = KeyError("mine")
    async with recorded(sink) as dispatcher:
        await dispatcher.dispatch(call("echo", value=1), session="s")
        await eventually(lambda: sink.tried, "it is tried")
        sink.fails_with = None
        await dispatcher.dispatch(call("echo", value=2), session="s")
        await eventually(lambda: sink.of("dropped"), "it is said in the record")
    assert sum("record_not_written" in line for line in caplog.messages) == 1


async def test_redact_sees_everything_before_it_is_written() -> None:
    """On the record's own thread, on a copy."""
    sink, seen = Sink(), []

    def redact(name: str, what: str, value: Any) -> Any:
        seen.append((name, what, threading.current_thread() is threading.main_thread()))
        value["value" if what == "input" else "data"] = "***"
        return value

    async with recorded(SessionRecord(sink, redact=redact)) as dispatcher:
        turn = await dispatcher.dispatch(call("echo", value=42), session="s")
    assert turn[0].data == {"value": 42}
    assert seen == [("echo", "input", False), ("echo", "result", False)]
    assert "42" not in "".join(row["content"] for row in sink.rows)


async def test_what_redact_fails_on_is_not_written() -> None:
    sink = Sink()

    def redact(name: str, what: str, value: Any) -> Any:
        raise RuntimeError("mine")

    async with recorded(SessionRecord(sink, redact=redact)) as dispatcher:
        await dispatcher.dispatch(call("echo", value=424242), session="s")
    assert len(sink.rows) == 2
    assert all("424242" not in row["content"] and "redact_failed" in row["content"]
               for row in sink.rows)  # fmt: skip


async def test_values_that_are_too_large_are_cut_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.observers.record_rows.VALUE_BYTES", 1_000)
    sink = Sink()
    async with recorded(sink) as dispatcher:
        await dispatcher.dispatch(call("much", size=50_000), session="s")
        await dispatcher.dispatch(call("echo", value="x" * 50_000), session="s")
    assert all(len(line) < 2_000 for _, line in sink.lines)
    asked, cut = json.loads(sink.rows[2]["content"]), json.loads(sink.rows[1]["content"])
    assert (asked["input"], "truncated" in asked) == (None, True)
    assert (cut["ok"], cut["data"][:10]) == (True, '{"ok":true')
    assert sink.rows[1]["metadata"]["truncated"] is True


@pytest.mark.parametrize("odd", [{5: 1}, {"value": {1}}, {"value": 5j}, {"value": "\ud800"}])
async def test_whatever_a_host_put_together_is_recorded(odd: Any) -> None:
    sink = Sink()
    async with recorded(sink) as dispatcher:
        await dispatcher.dispatch([{"id": "c", "name": "echo", "input": odd}], session="s")
    assert [row["type"] for row in sink.rows] == ["tool_call", "tool_result"]
    assert sink.rows[1]["metadata"]["errorType"] == "validation"


def test_real_workers_and_blocking_code(tmp_path: Path) -> None:
    with fleets.running("tests.fleets.road") as fleet:
        with SyncDispatcher.connect(settings=fleet.settings, record=tmp_path) as dispatcher:
            for number in range(20):
                dispatcher.dispatch(call("echo", value=number), session=f"s{number % 2}")
            lost = dispatcher.dispatch(call("fail", message="no"), session="s0")[0]
            assert lost.code is Code.RAISED
    rows = [
        json.loads(line) for name in ("s0", "s1")
        for file in tmp_path.glob(f"??/{name}.jsonl") for line in file.read_text().splitlines()
    ]  # fmt: skip
    assert len(rows) == 42
    parents = {row["parentId"] for row in rows if row["type"] == "tool_result"}
    assert parents == {row["id"] for row in rows if row["type"] == "tool_call"}
