"""An operator's commands against a fleet with real workers: what waits, why, and what is denied."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import AskApproval, Dispatcher, Hooks, tool
from toolpool.cli import main
from toolpool.contract.outcome import Code
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.local import LocalFleet

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running(
        "tests.fleets.operated", circuit_minimum_calls=2, failure_loop_threshold=0
    ) as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


@pytest.fixture
def command(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command with `--json` beside the dispatcher; its exit code and what it wrote."""
    assert fleet.settings.signing_key is not None
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", str(fleet.settings.redis_url))
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", fleet.settings.signing_key.get_secret_value())

    async def run(*argv: str) -> tuple[int, Any]:
        capfd.readouterr()
        code = await asyncio.to_thread(main, [*argv, "--json"])
        out, err = capfd.readouterr()
        return int(code), json.loads(out) if out else err

    return run


def gate_of(tmp_path: Path) -> str:
    return str(tmp_path / "gate")


async def opened(gate: str, *turns: "asyncio.Task[Any]") -> None:
    Path(gate).touch()
    await asyncio.gather(*turns)


async def started(dispatcher: Dispatcher, name: str, id_: str, **given: Any) -> "asyncio.Task[Any]":
    """A call of `name` that is dispatched and open."""
    before = dispatcher.in_flight()
    turn = asyncio.ensure_future(dispatcher.dispatch(call(name, id_, **given), session="s-1"))
    await eventually(lambda: dispatcher.in_flight() > before, "the call is open")
    return turn


async def found(command: Command, target: str, is_there: Callable[[dict[str, Any]], bool]) -> Any:
    """The first call that `find` names, as soon as it is as it should be."""
    told: list[dict[str, Any]] = []

    async def looks_right() -> bool:
        told[:] = (await command("find", target))[1]["calls"]
        return bool(told) and is_there(told[0])

    await eventually(looks_right, f"{target} is found as it should be")
    return told[0]


async def test_a_running_call_is_found_with_the_worker_that_runs_it(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    turn = await started(dispatcher, "hold", "toolu_1", gate=gate)
    row = await found(command, "toolu_1", lambda row: bool(row["state"] == "RUNNING"))
    assert row["tool"] == "hold"
    assert row["session"] == "s-1"
    assert row["why"].startswith(f"it runs on worker {row['worker']} (pid ")
    assert gate not in json.dumps(row)
    of_session = await found(command, "s-1", lambda row: True)
    assert of_session["call"] == "toolu_1"
    await opened(gate, turn)
    assert (await command("find", "toolu_1"))[0] == 1


async def test_a_call_at_its_tools_own_limit_says_so(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    first = await started(dispatcher, "alone", "first", gate=gate)
    await found(command, "first", lambda row: bool(row["state"] == "RUNNING"))
    second = await started(dispatcher, "alone", "second", gate=gate)
    row = await found(command, "second", lambda row: True)
    assert (row["state"], row["waits_for"]) == ("PENDING", "concurrency")

    async def is_reported() -> bool:
        waiting = (await command("status"))[1]["waiting"]
        return any(
            (row["tool"], row["waits_for"], row["calls"]) == ("alone", "concurrency", 1)
            for row in waiting
        )

    await eventually(is_reported, "status counts the call that waits")
    await opened(gate, first, second)


async def test_a_call_over_its_rate_limit_and_the_places_taken_are_shown(
    fleet: LocalFleet, command: Command
) -> None:
    async with fleets.connected(fleet, queue_timeout=120.0) as patient:
        await patient.dispatch(call("rare", "r-1"), session="s-1")
        turn = await started(patient, "rare", "r-2")
        row = await found(command, "r-2", lambda row: True)
        assert row["waits_for"] == "rate_limit"
        _, report = await command("status")
        assert {"tool": "rare", "counts": "tool", "limit": "1/min", "used": 1, "most": 1} in (
            report["limits"]
        )
        _, preview = await command("call", "rare", "--dry-run")
        assert "the tool's limit 1/min has no place free" in preview["warnings"]
        turn.cancel()


async def test_status_counts_slots_used_and_dispatchers(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    turn = await started(dispatcher, "hold", "slot", gate=gate)

    async def is_counted() -> bool:
        report = (await command("status"))[1]
        used = sum(sum(worker["slots_used"].values()) for worker in report["workers"])
        return used == 1 and [d["running"] for d in report["dispatchers"]] == [1]

    await eventually(is_counted, "the slot and the running call are counted")
    await opened(gate, turn)


async def test_a_switch_is_turned_listed_and_taken_back_by_commands(
    dispatcher: Dispatcher, command: Command
) -> None:
    where = ["--argument", "gate", "--value", '"/forbidden"']
    code, switches = await command("switch", "deny", "hold", *where, "--reason", "incident 7")
    assert (code, switches[0]["reason"], switches[0]["value"]) == (0, "incident 7", "/forbidden")

    async def is_denied() -> bool:
        [preview] = await dispatcher.preview(call("hold", gate="/forbidden"))
        return preview.decision == "deny"

    await eventually(is_denied, "the dispatcher follows")
    denied = await dispatcher.dispatch(call("hold", gate="/forbidden"))
    assert denied[0].code is Code.DENIED
    assert (await command("switch", "list"))[1] == switches
    assert (await command("status"))[1]["switches"] == switches
    code, preview = await command("call", "hold", '{"gate": "/forbidden"}', "--dry-run")
    assert (code, preview["decision"], preview["reason"]) == (3, "deny", "incident 7")
    assert preview["by"] == "the kill switch"
    assert await command("switch", "allow", "hold", *where) == (0, [])
    assert (await command("switch", "allow", "hold", *where))[0] == 1
    assert (await command("switch", "deny", "hold", "--argument", "gate", "--reason", "x"))[0] == 2


async def test_an_open_circuit_is_seen_by_status_and_by_a_dry_run(
    dispatcher: Dispatcher, command: Command
) -> None:
    for number in range(2):
        await dispatcher.dispatch(call("fails", f"f-{number}", secret="hunter2"))

    async def is_open() -> bool:
        circuits = (await command("status"))[1]["circuits"]
        return [circuit["tool"] for circuit in circuits] == ["fails"]

    await eventually(is_open, "status shows the open circuit")
    code, preview = await command("call", "fails", "--dry-run")
    assert (code, preview["accepted"]) == (0, True)
    [warning] = preview["warnings"]
    assert "circuit is open" in warning
    code, report = await command("status", "--since", "10m")
    worst = report["failures"]["tools"][0]
    assert (worst["tool"], worst["codes"]) == ("fails", {"runtime.raised": 2})
    assert "hunter2" not in json.dumps(report)
    assert (await command("status", "--since", "soon"))[0] == 2


async def test_a_handle_is_found_when_its_dispatcher_is_gone(
    fleet: LocalFleet, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    async with fleets.connected(fleet) as dispatcher:
        turn = await dispatcher.dispatch(call("hold_write", "bg", gate=gate), wait=0.05)
        handle = str(turn[0].handle)
        row = await found(command, handle, lambda row: bool(row["state"] == "RUNNING"))
        assert row["background"] and row["dispatcher"]
    row = await found(command, handle, lambda row: row["dispatcher"] is None)
    assert (row["state"], row["call"]) == ("RUNNING", "bg")
    assert "no running dispatcher has it open" in row["why"]
    Path(gate).touch()
    row = await found(command, handle, lambda row: bool(row["state"] in ("COMPLETED", "FAILED")))
    assert row["code"] == "ok"


async def test_a_handle_that_the_server_lost_is_found_and_cancelled_at_its_dispatcher(
    fleet: LocalFleet, dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    asked = call("hold_write", "bg-4", gate=gate_of(tmp_path))
    turn = await dispatcher.dispatch(asked, session="s-1", wait=0.05)
    handle = str(turn[0].handle)
    with connection.open_sync(fleet.settings) as client:
        await eventually(
            lambda: client.delete(RedisKeys().background(handle)), "the handle is lost"
        )
    row = await found(command, handle, lambda row: bool(row["dispatcher"]))
    assert (row["call"], row["session"]) == ("bg-4", "s-1")
    code, told = await command("cancel", handle)
    assert (code, told["cancelled"]) == (0, True), told


async def test_a_question_that_is_old_or_unsigned_is_not_answered(
    fleet: LocalFleet, dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    from toolpool.contract.envelope import Envelope, Question
    from toolpool.contract.redis_keys import RedisKeys

    gate = gate_of(tmp_path)
    turn = await started(dispatcher, "hold", "kept", gate=gate)
    names, envelope = RedisKeys(), Envelope(connection.keyring(fleet.settings))
    with connection.open_sync(fleet.settings) as client:
        [id_] = client.zrange(names.dispatchers, 0, -1)
        old = Question(id="old", ends_at=1.0, call="kept", cancel=True)
        client.xadd(names.reply(id_.decode()), {"b": envelope.encode_reply(old)})
        client.xadd(names.reply(id_.decode()), {"b": b"{}"})
        row = await found(command, "kept", lambda row: bool(row["state"] == "RUNNING"))
        assert row["call"] == "kept"
        assert not client.exists(names.reply("old"))
    await opened(gate, turn)


async def test_an_operator_cancels_an_open_call_by_its_id(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    turn = await started(dispatcher, "hold", "stuck", gate=gate)
    await found(command, "stuck", lambda row: bool(row["state"] == "RUNNING"))
    code, told = await command("cancel", "stuck")
    assert (code, told["cancelled"], told["executed"]) == (0, True, "unknown")
    assert (await turn)[0].code is Code.CANCELLED
    code, said = await command("cancel", "stuck")
    assert code == 1
    assert "no running dispatcher has a call 'stuck' open" in said


async def test_a_cancel_of_an_id_that_two_sessions_have_asks_which(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    turns = [
        asyncio.ensure_future(dispatcher.dispatch(call("hold", "twin", gate=gate), session=session))
        for session in ("s-1", "s-2")
    ]
    await eventually(lambda: dispatcher.in_flight() == 2, "both are open")
    code, said = await command("cancel", "twin")
    assert code == 2
    assert "several sessions have this id; choose one with --session: s-1, s-2" in said
    assert (await command("cancel", "twin", "--session", "s-2"))[0] == 0
    assert (await turns[1])[0].code is Code.CANCELLED
    assert not turns[0].done()
    await opened(gate, turns[0])


async def test_an_operator_cancels_a_background_write_that_another_dispatcher_waits_for(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    turn = await dispatcher.dispatch(
        call("hold_write", "bg-2", gate=gate_of(tmp_path)), session="s-1", wait=0.05
    )
    handle = str(turn[0].handle)
    code, told = await command("cancel", handle)
    assert (code, told["cancelled"], told["call"]) == (0, True, "bg-2")
    ended = await dispatcher.task_result(handle, session="s-1", wait=5.0)
    assert ended is not None and ended.code is Code.CANCELLED
    assert (await command("cancel", handle))[0] == 0


async def test_a_call_behind_a_write_of_its_turn_is_found_and_cancelled(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    calls = call("hold_write", "first", gate=gate) + call("hold", "behind", gate=gate)
    turn = asyncio.ensure_future(dispatcher.dispatch(calls, session="s-1"))
    row = await found(command, "behind", lambda row: True)
    assert (row["state"], row["waits_for"]) == ("PENDING", "turn")
    assert "a write before it in its turn" in row["why"]
    code, told = await command("cancel", "behind")
    assert (code, told["cancelled"], told["executed"]) == (0, True, "no")
    await opened(gate, turn)
    assert [result.code for result in await turn] == [None, Code.CANCELLED]


async def test_a_question_of_a_provider_is_found_and_cancelled(
    fleet: LocalFleet, command: Command
) -> None:
    hooks = Hooks(before_call=lambda call: AskApproval())
    async with Dispatcher.connect(settings=fleet.settings, hooks=hooks) as dispatcher:
        asked = {
            "type": "mcp_approval_request",
            "id": "mcpr-1",
            "name": "remote",
            "arguments": "{}",
            "server_label": "db",
        }
        response = {"object": "response", "status": "completed", "output": [asked]}
        turn = asyncio.ensure_future(dispatcher.dispatch(response, session="s-1", wait=60))
        row = await found(command, "mcpr-1", lambda row: True)
        assert (row["state"], row["waits_for"], row["tool"]) == ("WAITING", "approval", "db.remote")
        code, told = await command("cancel", "mcpr-1")
        assert (code, told["cancelled"], told["executed"]) == (0, True, "no")
        assert (await turn)[0].code is Code.CANCELLED


async def test_a_preview_knows_the_switch_of_a_tool_by_the_name_it_was_offered_under() -> None:
    @tool(effects="read", name="fs.read")
    async def fs() -> int:
        """Read."""
        return 1

    async with Dispatcher.in_memory([fs]) as dispatcher:
        name = next(
            each["function"]["name"]
            for each in dispatcher.tools("openai")
            if each["function"]["name"].startswith("fs")
        )
        assert name != "fs.read"
        await dispatcher.deny("fs.read", reason="off")
        called = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [called]}
        [preview] = await dispatcher.preview(message, session="s")
        assert (preview.decision, preview.by) == ("deny", "the kill switch")


async def test_a_call_that_two_dispatchers_have_open_is_found_once_and_cancelled(
    fleet: LocalFleet, dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    asked = call("hold_write", "both", gate=gate_of(tmp_path))
    async with fleets.connected(fleet) as other:
        turns = [
            asyncio.ensure_future(each.dispatch(asked, session="s-1", turn="t-1"))
            for each in (dispatcher, other)
        ]
        await eventually(
            lambda: dispatcher.in_flight() == other.in_flight() == 1, "both have it open"
        )
        of_session = (await command("find", "s-1"))[1]["calls"]
        assert [row["call"] for row in of_session].count("both") == 1
        code, told = await command("cancel", "both")
        assert (code, told["cancelled"]) == (0, True), told
        assert [turn[0].code for turn in await asyncio.gather(*turns)] == [Code.CANCELLED] * 2


async def test_a_background_call_that_another_dispatcher_has_read_is_cancelled_by_its_id(
    fleet: LocalFleet, dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    turn = await dispatcher.dispatch(
        call("hold_write", "bg-3", gate=gate_of(tmp_path)), session="s-1", wait=0.05
    )
    async with fleets.connected(fleet) as other:
        await other.task_result(str(turn[0].handle), session="s-1", wait=0.05)
        assert len((await command("find", str(turn[0].handle)))[1]["calls"]) == 1
        code, told = await command("cancel", "bg-3")
        assert (code, told["cancelled"]) == (0, True), told


async def test_a_call_that_shares_a_run_is_cancelled_by_its_id_and_its_equal_goes_on(
    dispatcher: Dispatcher, command: Command, tmp_path: Path
) -> None:
    gate = gate_of(tmp_path)
    turns = [await started(dispatcher, "hold_shared", id_, gate=gate) for id_ in ("one", "equal")]
    row = await found(command, "one", lambda row: bool(row["worker"]))
    assert row["why"].startswith(f"it runs on worker {row['worker']} (pid ")
    code, told = await command("cancel", "one")
    assert (code, told["cancelled"], told["call"]) == (0, True, "one"), told
    assert (await turns[0])[0].code is Code.CANCELLED
    assert not turns[1].done()
    code, told = await command("cancel", "equal")
    assert (code, told["cancelled"], told["call"]) == (0, True, "equal"), told
    assert (await turns[1])[0].code is Code.CANCELLED


async def test_a_switch_that_fits_no_call_is_refused_and_text_stays_text_where_the_schema_says_so(
    fleet: LocalFleet, dispatcher: Dispatcher, command: Command
) -> None:
    code, switches = await command(
        "switch", "deny", "hold", "--argument", "gate", "--value", "12345", "--reason", "typo"
    )
    assert (code, [(s["argument"], s["value"]) for s in switches]) == (0, [("gate", "12345")])
    await command("switch", "allow", "hold", "--argument", "gate", "--value", "12345")
    refused = ["switch", "deny", "hold", "--reason", "typo", "--value"]
    assert (await command(*refused, "x", "--argument", "gaet"))[0] == 2
    assert (await command(*refused, "[1]", "--argument", "gate"))[0] == 0
    assert (await command("switch", "list"))[1][0]["value"] == "[1]"
    await command("switch", "allow", "hold", "--argument", "gate", "--value", "[1]")
