"""What comes to Sentry of real workers and a dispatcher: what is broken, once, and no value."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentry_sdk

from tests.integration.fleet import call
from tests.sentry_sink import SentrySink, sentry_sink
from tests.waiting import eventually
from toolpool import Dispatcher, Misconfigured, Sentry, Settings
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long

SECRET = "hunter2-424242"
TOOLS = """
import os
from toolpool import ToolContext, ToolError, tool

class Gone(Exception):
    pass

def deeper(token):
    local = {"nested": [token]}
    raise Gone(f"no order for {token} in {local}")

@tool
async def on_the_loop(token: str, ctx: ToolContext) -> str:
    "Fail on the loop."
    deeper(token)

@tool(run_in="thread")
def in_a_thread(token: str) -> str:
    "Fail in a thread."
    deeper(token)

@tool
def in_a_child(token: str) -> str:
    "Fail in a child."
    try:
        {}[token]
    except KeyError as error:
        raise Gone(token) from error

@tool
def dies(token: str) -> str:
    "Die."
    os._exit(3)

@tool
async def reports(token: str) -> str:
    "Report."
    raise ToolError(f"no such customer: {token}")

@tool(effects="read", retries=2)
async def fails_always(token: str) -> str:
    "Fail, and be tried again."
    deeper(token)

@tool
async def works(token: str) -> str:
    "Work."
    return token

@tool(timeout=0.2)
async def hangs(token: str) -> str:
    "Hang."
    import asyncio
    await asyncio.sleep(60)
"""


@pytest.fixture
def sink() -> Iterator[SentrySink]:
    with sentry_sink() as sink:
        yield sink


@pytest.fixture
def tools(tmp_path: Path, sink: SentrySink, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shop_tools.py"
    path.write_text(TOOLS)
    monkeypatch.setenv("SENTRY_DSN", sink.dsn)
    return path


def fleet_of(tools: Path, **settings: object) -> LocalFleet:
    return LocalFleet([str(tools)], Settings(retry_delay=0.01, **settings))  # type: ignore[arg-type]


def issues(sink: SentrySink) -> Counter[tuple[str, str]]:
    return Counter((e["tags"]["tool"], e["tags"]["code"]) for e in sink.of("event"))


async def test_a_fault_is_one_issue_and_a_model_s_mistake_is_no_issue(
    tools: Path, sink: SentrySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTRY_TRACES_SAMPLE_RATE", "1.0")
    monkeypatch.setenv("PLANTED", f"{SECRET}-env")
    fleet = fleet_of(tools)
    try:
        async with Dispatcher.connect(
            settings=fleet.settings, observers=[Sentry(settings=fleet.settings)]
        ) as dispatcher:
            for number, name in enumerate(
                ["on_the_loop", "in_a_thread", "in_a_child", "dies", "reports", "fails_always",
                 "works", "hangs", "unknown"]
            ):  # fmt: skip
                await dispatcher.dispatch(
                    call(name, f"c-{number}", token=SECRET), session="s-1", context={"key": SECRET}
                )
            await dispatcher.dispatch(call("works", "c-9", token=1, other=SECRET), session="s-1")
    finally:
        fleet.close()
    assert issues(sink) == {
        ("on_the_loop", "runtime.raised"): 1,
        ("in_a_thread", "runtime.raised"): 1,
        ("in_a_child", "runtime.raised"): 1,
        ("dies", "runtime.crashed"): 1,
        ("fails_always", "runtime.raised"): 1,
    }
    sent = b"".join(sink.bodies).decode()
    assert SECRET not in sent
    assert "shop_tools.py" in sent
    by_tool = {event["tags"]["tool"]: event for event in sink.of("event")}
    for tool in ("on_the_loop", "in_a_thread"):
        event = by_tool[tool]
        (raised,) = event["exception"]["values"]
        assert (raised["type"], raised["module"], raised["value"]) == ("Gone", "shop_tools", "")
        frames = raised["stacktrace"]["frames"]
        assert [frame["function"] for frame in frames] == [tool, "deeper"]
        assert all(frame["in_app"] and "vars" not in frame for frame in frames)
        assert event["fingerprint"][1:] == [
            tool, "runtime.raised", "shop_tools.Gone", "shop_tools.py:deeper",
            'raise Gone(f"…")',
        ]  # fmt: skip
        assert event["tags"]["session"] == "s-1"
    assert [e["type"] for e in by_tool["in_a_child"]["exception"]["values"]] == ["KeyError", "Gone"]
    assert by_tool["in_a_child"]["tags"]["run_mode"] == "process"
    assert by_tool["fails_always"]["tags"]["attempt"] == "3", "only the last of three tries"
    assert by_tool["dies"]["logentry"]["formatted"] == (
        "The process that ran dies exited with code 3"
    )
    assert by_tool["dies"]["tags"]["cause"] == "exited with code 3"


async def test_a_trace_goes_through_queue_and_worker_in_the_names_that_dashboards_read(
    tools: Path, sink: SentrySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own trace is the root, whatever the rate says of others."""
    fleet = fleet_of(tools)
    sentry_sdk.init(dsn=sink.dsn, traces_sample_rate=1.0, default_integrations=False)
    try:
        with sentry_sdk.start_transaction(name="agent", op="gen_ai.invoke_agent") as root:
            async with Dispatcher.connect(
                settings=fleet.settings, observers=[Sentry("shop-bot", settings=fleet.settings)]
            ) as dispatcher:
                await dispatcher.dispatch(call("works", token=SECRET), session="s-1")
                await dispatcher.dispatch(call("reports", token=SECRET), session="s-1")
                await dispatcher.dispatch(call("works", token=3), session="s-1")
                await dispatcher.dispatch(call("on_the_loop", token=SECRET), session="s-1")
    finally:
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)
        fleet.close()
    transactions = sink.of("transaction")
    assert {each["contexts"]["trace"]["trace_id"] for each in transactions} == {root.trace_id}
    spans = [span for each in transactions for span in each["spans"]]
    ids = {each["contexts"]["trace"]["span_id"] for each in transactions}
    ids |= {span["span_id"] for span in spans}
    parents = {span["parent_span_id"] for span in spans}
    parents |= {each["contexts"]["trace"].get("parent_span_id") or root.span_id
                for each in transactions}  # fmt: skip
    assert parents <= ids | {root.span_id}, "every span hangs under one that was sent"
    published = [span for span in spans if span["op"] == "queue.publish"]
    processed = [span for span in spans if span["op"] == "queue.process"]
    executed = [span for span in spans if span["op"] == "gen_ai.execute_tool"]
    assert (len(published), len(processed), len(executed)) == (3, 3, 4)
    for span in [*published, *processed]:
        data = span["data"]
        assert data["messaging.system"] == "redis"
        assert data["messaging.destination.name"] == "toolpool.default.loop"
        assert data["messaging.message.id"]
        assert data["messaging.message.body.size"] > 0
        assert data["messaging.message.retry.count"] == 0
    assert all(0 <= s["data"]["messaging.message.receive.latency"] < 60_000 for s in processed)
    assert {s["data"]["messaging.message.id"] for s in published} == {
        s["data"]["messaging.message.id"] for s in processed
    }
    statuses = {(s["description"], s["status"]) for s in executed}
    assert statuses == {
        ("execute_tool works", "ok"),
        ("execute_tool reports", "failed_precondition"),
        ("execute_tool works", "invalid_argument"),
        ("execute_tool on_the_loop", "internal_error"),
    }
    for span in executed:
        assert span["data"]["gen_ai.operation.name"] == "execute_tool"
        assert span["data"]["gen_ai.conversation.id"] == "s-1"
        assert span["data"]["gen_ai.agent.name"] == "shop-bot"
        assert span["data"]["gen_ai.provider.name"] == "bare"
    failed = [t for t in transactions if t["contexts"]["trace"].get("status") == "internal_error"]
    assert {t["transaction"] for t in failed} == {"on_the_loop", "dispatch on_the_loop"}
    (issue,) = sink.of("event")
    assert issue["contexts"]["trace"]["trace_id"] == root.trace_id


async def test_a_flood_is_capped_and_counted(tools: Path, sink: SentrySink) -> None:
    fleet = fleet_of(tools, sentry_per_minute=20, circuit_minimum_calls=1000)
    try:
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            for turn in range(3):
                calls = [call("on_the_loop", f"c-{turn}-{n}", token=SECRET)[0] for n in range(10)]
                await dispatcher.dispatch(calls)
    finally:
        fleet.close()
    assert len([e for e in sink.of("event") if "exception" in e]) == 2
    held = [e for e in sink.of("event") if e["fingerprint"] == ["toolpool", "held back"]]
    assert [e["contexts"]["tool call"]["held_back"] for e in held] == [28]


@pytest.mark.parametrize("trouble", ["refuses", "fails", "hangs"])
async def test_calls_go_on_where_sentry_does_not(
    tools: Path, sink: SentrySink, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "fails":
        sink.status = 500
    elif trouble == "refuses":
        sink.close()
    else:
        monkeypatch.setattr(SentrySink, "hold", True)
    fleet = fleet_of(tools)
    try:
        async with Dispatcher.connect(
            settings=fleet.settings, observers=[Sentry(settings=fleet.settings)]
        ) as dispatcher:
            for number in range(20):
                turn = await dispatcher.dispatch(call("on_the_loop", str(number), token=SECRET))
                assert turn[0].code is not None
                turn = await dispatcher.dispatch(call("works", str(number), token=SECRET))
                assert turn[0].ok
        for pid in fleet.worker_pids:
            os.kill(pid, 15)
        await eventually(
            lambda: fleet.log().count("Traceback") >= 1 and not _alive(fleet), "they end", 20.0
        )
        if trouble == "refuses":
            assert fleet.log().count("sentry_unreachable") == 1, (
                "one line of each process, with why"
            )
    finally:
        fleet.close()


def _alive(fleet: LocalFleet) -> bool:
    return any(process.poll() is None for process, _ in fleet._workers)


async def test_one_worker_of_a_pool_checks_in(tools: Path, sink: SentrySink) -> None:
    fleet = fleet_of(tools, lease_ttl=2.0)
    try:
        await eventually(lambda: sink.of("check_in"), "it has checked in", 20.0)
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            await dispatcher.dispatch(call("works", token=SECRET))
    finally:
        fleet.close()
    (check_in,) = sink.of("check_in")
    assert check_in["monitor_slug"] == "toolpool-toolpool"
    assert check_in["status"] == "ok"


@pytest.mark.parametrize("dsn", ["nonsense", "http://", "https://sentry.io/1"])
def test_an_invalid_dsn_is_refused_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTRY_DSN", dsn)
    with pytest.raises(Misconfigured, match="SENTRY_DSN is not a DSN"):
        Sentry()


@pytest.mark.parametrize("rate", ["often", "2", "-1", "nan"])
def test_an_invalid_rate_is_refused_at_once(
    rate: str, sink: SentrySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTRY_TRACES_SAMPLE_RATE", rate)
    with pytest.raises(Misconfigured, match="set it to a number from 0 to 1"):
        Sentry(dsn=sink.dsn)


def test_no_dsn_is_refused_with_what_to_do() -> None:
    with pytest.raises(Misconfigured, match="set SENTRY_DSN"):
        Sentry()


def test_a_worker_with_a_wrong_dsn_does_not_start(redis_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolpool", "worker"],
        env={**os.environ, "TOOLPOOL_REDIS_URL": redis_url, "SENTRY_DSN": "nonsense",
             "TOOLPOOL_SIGNING_KEY": "k" * 43},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "SENTRY_DSN is not a DSN" in done.stderr


LEAKS = """
import asyncio
from toolpool import tool
from toolpool.workers.running import leak_check

leak_check._LOOK_SECONDS, leak_check._MANY = 0.1, 20

async def polls():
    await asyncio.sleep(3600)

kept = []

@tool
async def leaks() -> int:
    "Leak."
    kept.append(asyncio.create_task(polls()))
    return len(kept)
"""


async def test_tasks_that_tools_leave_behind_are_an_issue(
    tmp_path: Path, sink: SentrySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "leaking_tools.py"
    tools.write_text(LEAKS)
    monkeypatch.setenv("SENTRY_DSN", sink.dsn)
    fleet = fleet_of(tools)
    try:
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            await dispatcher.dispatch([call("leaks", f"c-{n}")[0] for n in range(30)])
            await eventually(lambda: sink.of("event"), "it is reported", 20.0)
        assert "tasks_left_behind" in fleet.log()
    finally:
        fleet.close()
    event = sink.of("event")[0]
    assert event["tags"]["code"] == "left_behind"
    assert event["exception"]["values"][0]["type"] == "TasksLeftBehind"
    assert event["exception"]["values"][0]["stacktrace"]["frames"][0]["function"] == "polls"
