"""Approval on a real server: it outlives dispatchers, and whoever is there goes on with it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration import fleet as fleets
from tests.waiting import eventually
from toolpool import Approval, ApprovalRefused, Code, Dispatcher, Executed, Hooks, Rewrite, tool
from toolpool.cli.app import run_command
from toolpool.contract.approval_messages import ApprovalState
from toolpool.contract.encoding import digest
from toolpool.contract.redis_keys import RedisKeys
from toolpool.dispatcher.approvals import Approvals
from toolpool.local import LocalFleet

HOST = """
import asyncio, json, sys
from toolpool import Dispatcher

async def main(response, session, wait):
    async with Dispatcher.connect() as dispatcher:
        print("ready", flush=True)
        turn = await dispatcher.dispatch(response, session=session, wait=wait)
        print(json.dumps(turn.messages()), flush=True)
        await asyncio.sleep(600)

asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.paying") as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


def environment(fleet: LocalFleet) -> dict[str, str]:
    """What a process needs to be of this fleet."""
    key = fleet.settings.signing_key
    return {
        "TOOLPOOL_REDIS_URL": str(fleet.settings.redis_url),
        **({"TOOLPOOL_SIGNING_KEY": key.get_secret_value()} if key is not None else {}),
    }


def response(trace: Path, amount: int = 5) -> dict[str, Any]:
    """A provider's response with one call that needs approval."""
    use = {
        "type": "tool_use",
        "id": "toolu_01",
        "name": "pay",
        "input": {"trace": str(trace), "amount": amount},
    }
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "content": [use],
        "stop_reason": "tool_use",
    }


async def one_waits(approvals: Approvals, session: str) -> Approval:
    """The only approval of a session, as soon as it waits."""

    async def waits() -> bool:
        return len(await approvals.waiting(session=session)) == 1

    await eventually(waits, "a call waits for approval")
    [approval] = await approvals.waiting(session=session)
    return approval


async def host(fleet: LocalFleet, asked: Any, session: str, wait: float) -> subprocess.Popen[str]:
    """A process of its own that dispatches, and says when it is connected."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, json.dumps(asked), session, str(wait)],
        env={**os.environ, **environment(fleet)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def runs(trace: Path) -> list[str]:
    return trace.read_text().split() if trace.exists() else []


async def test_the_dispatcher_dies_after_its_handle_and_another_goes_on(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    async with Approvals.connect(settings=fleet.settings) as approvals:
        process = await host(fleet, response(trace), "handle-dies", 0.2)
        approval = await one_waits(approvals, "handle-dies")
        assert process.stdout is not None
        told = await asyncio.to_thread(process.stdout.readline)
        killed(process)
        assert "runs only if a person approves it" in told
        await approvals.approve(approval.id, by="anna")
        handle = told.partition("the handle '")[2].partition("'")[0]
        async with fleets.connected(fleet) as other:
            result = await other.task_result(handle, session="handle-dies", wait=30)
            assert result is not None and result.data == "paid 5"
    assert runs(trace) == ["5"]


async def test_the_dispatcher_dies_while_it_waits_and_another_goes_on(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """R57: approved elsewhere, it runs; the resumed conversation has its one result."""
    trace, session = tmp_path / "trace", "dies"
    asked = response(trace)
    async with Approvals.connect(settings=fleet.settings) as approvals:
        process = await host(fleet, asked, session, 60)
        approval = await one_waits(approvals, session)
        killed(process)
        await approvals.approve(approval.id, by="anna", digest=approval.digest)
        assert runs(trace) == []  # nobody is there to send it

        async with fleets.connected(fleet) as other:
            await eventually(lambda: runs(trace) == ["5"], "another goes on", within_seconds=30)
            history = [{"role": "user", "content": "pay"}, {"role": "assistant", **_said(asked)}]
            resumed = await other.resume(history, session=session)
            answer = resumed[-1]["content"][0]
            assert (answer["tool_use_id"], "paid 5" in str(answer["content"])) == ("toolu_01", True)
            again = await other.dispatch(asked, session=session)
            assert again[0].data == "paid 5"
            resumed = await other.resume(history, session=session)  # answered, and told, before
            assert "may have run before" in str(resumed[-1])
            assert await approvals.waiting(session=session) == []
        found = await approvals.get(approval.id)
        assert (found.state, found.decided_by) == (ApprovalState.SENT, "anna")
    assert runs(trace) == ["5"]


def _said(asked: dict[str, Any]) -> dict[str, Any]:
    return {"content": asked["content"]}


async def test_what_waits_is_resumed_and_waits_on(fleet: LocalFleet, tmp_path: Path) -> None:
    trace, asked = tmp_path / "trace", response(tmp_path / "trace")
    process = await host(fleet, asked, "waits-on", 60)
    async with Approvals.connect(settings=fleet.settings) as approvals:
        approval = await one_waits(approvals, "waits-on")
        killed(process)
        async with fleets.connected(fleet) as other:
            history = [{"role": "assistant", **_said(asked)}]
            resuming = asyncio.ensure_future(other.resume(history, session="waits-on", wait=60))
            await asyncio.sleep(0)
            assert [a.id for a in await approvals.waiting(session="waits-on")] == [approval.id]
            await approvals.approve(approval.id, by="anna")
            assert "paid 5" in str((await resuming)[-1])
    assert runs(trace) == ["5"]


async def test_any_dispatcher_knows_the_handle_of_what_waits(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    async with fleets.connected(fleet) as first:
        turn = await first.dispatch(response(trace), session="handle", wait=0)
        handle = turn[0].handle
        assert handle is not None
    async with fleets.connected(fleet) as other:
        assert await other.task_result(handle, session="handle") is None
        [listed] = await other.task_list(session="handle")
        assert listed["state"] == "WAITING"
        approval = await one_waits(other.approvals, "handle")
        await other.approvals.approve(approval.id, by="anna")
        result = await other.task_result(handle, session="handle", wait=20)
        assert result is not None and result.data == "paid 5"
    assert runs(trace) == ["5"]


async def test_a_denial_is_found_by_the_handle_too(fleet: LocalFleet, tmp_path: Path) -> None:
    async with fleets.connected(fleet) as first:
        turn = await first.dispatch(response(tmp_path / "trace"), session="no", wait=0)
        approval = await one_waits(first.approvals, "no")
    handle = turn[0].handle
    assert handle is not None
    async with Approvals.connect(settings=fleet.settings) as approvals:
        await approvals.deny(approval.id, by="anna", reason="spent")
    async with fleets.connected(fleet) as other:
        result = await other.task_result(handle, session="no", wait=20)
        assert result is not None
        assert (result.code, result.executed) == (Code.DENIED, Executed.NO)
        assert "anna denied it: spent" in (result.error or "")
    assert runs(tmp_path / "trace") == []


async def test_what_one_tenant_approves_no_dispatcher_of_another_holds_up(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """R57: nobody of the tenant is there as it is approved, and somebody of another one is."""
    trace = tmp_path / "trace"
    async with fleets.connected(fleet, tenant="other") as other:
        async with fleets.connected(fleet, tenant="ours") as first:
            turn = await first.dispatch(response(trace), session="tenants", wait=0)
            approval = await one_waits(first.approvals, "tenants")
        ours = fleet.settings.model_copy(update={"tenant": "ours"})
        async with Approvals.connect(settings=ours) as approvals:
            await approvals.approve(approval.id, by="anna")
        turned = await other.dispatch(response(trace, 7), session="theirs", wait=0)
        theirs = await one_waits(other.approvals, "theirs")
        await other.approvals.approve(theirs.id, by="ben")
        handle = turned[0].handle
        assert handle is not None  # and with it, the other one has looked for what was approved
        told = await other.task_result(handle, session="theirs", wait=20)
        assert told is not None and told.data == "paid 7"
        async with fleets.connected(fleet, tenant="ours") as second:
            handle = turn[0].handle
            await eventually(lambda: "5" in runs(trace), "the tenant's own one goes on with it")
            assert handle is not None
            told = await second.task_result(handle, session="tenants", wait=20)
            assert told is not None and told.data == "paid 5"


async def test_the_kill_switch_holds_for_the_arguments_that_were_approved(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """R31: those of the hook that asked first, whatever the one that asks again makes of them."""
    trace, session = tmp_path / "trace", "switched"

    def hooks(amount: int) -> Hooks:
        return Hooks(before_call=lambda call: Rewrite({**call.arguments, "amount": amount}))

    settings = fleet.settings
    async with Dispatcher.connect(settings=settings, hooks=hooks(500)) as first:
        turn = await first.dispatch(response(trace), session=session, wait=0)
        handle = turn[0].handle
        approval = await one_waits(first.approvals, session)
        assert approval.arguments["amount"] == 500 and handle is not None
    async with Dispatcher.connect(settings=settings, hooks=hooks(400)) as second:
        asking = asyncio.ensure_future(second.dispatch(response(trace), session=session, wait=60))
        await second.deny("pay", argument="amount", value=500, reason="too much")
        await second.approvals.approve(approval.id, by="anna")
        result = (await asking)[0]
        await second.allow("pay", argument="amount", value=500)
    assert (result.code, result.executed) == (Code.DENIED, Executed.NO)
    assert "too much" in (result.error or "") and runs(trace) == []


async def test_many_approve_and_many_wait_and_it_runs_once(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as two:
        asked = response(trace)
        waits = [
            asyncio.ensure_future(each.dispatch(asked, session="many", wait=60))
            for each in (one, two, one, two)
        ]
        approval = await one_waits(one.approvals, "many")
        decisions = await asyncio.gather(
            *(
                each.approvals.approve(approval.id, by=f"p{i}")
                for i in range(8)
                for each in (one, two)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(decision, Approval) for decision in decisions) == 1
        refused = [d for d in decisions if isinstance(d, ApprovalRefused)]
        assert len(refused) == 15 and {error.reason for error in refused} == {"decided"}
        assert [turn[0].data for turn in await asyncio.gather(*waits)] == ["paid 5"] * 4
    assert runs(trace) == ["5"]


async def test_approved_and_denied_at_once_is_one_of_them(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as two:
        for i in range(20):
            trace, session = tmp_path / f"trace-{i}", f"race-{i}"
            waiting = asyncio.ensure_future(one.dispatch(response(trace), session=session, wait=60))
            approval = await one_waits(two.approvals, session)
            decisions = await asyncio.gather(
                one.approvals.approve(approval.id, by="anna"),
                two.approvals.deny(approval.id, by="ben"),
                return_exceptions=True,
            )
            [won] = [d for d in decisions if isinstance(d, Approval)]
            result = (await waiting)[0]
            assert result.ok is (won.state is ApprovalState.APPROVED)
            assert runs(trace) == (["5"] if result.ok else [])


async def test_a_mark_without_a_signature_approves_nothing(
    fleet: LocalFleet, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """Whoever can write to the server and has no key: it waits on, and nothing runs."""
    trace = tmp_path / "trace"
    await dispatcher.dispatch(response(trace), session="forged", wait=0)
    approval = await one_waits(dispatcher.approvals, "forged")
    with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
        names, owner = RedisKeys(fleet.settings.key_prefix), digest(fleet.settings.tenant)
        waiting, approved = names.approvals(owner), names.approved(owner)
        key = names.call(approval.id)
        assert client.zscore(waiting, approval.id) is not None
        client.hset(key, mapping={"state": "approved", "approval": "approved", "decision": b"no"})
        client.zadd(approved, {approval.id: 0})
        for garbage in (b"", b"\xff\x00", b"{}", b"x" * 1000):
            client.zadd(approved, {garbage: 0})
            client.zadd(waiting, {garbage: 1e15})
        for junk in (b"junk-1", b"junk-2"):
            client.set(names.call_prefix.encode() + junk, b"no hash")
            client.zadd(approved, {junk: 0})
            client.zadd(waiting, {junk: 1e15})
        other = await dispatcher.dispatch(response(tmp_path / "other", 7), session="true", wait=0)
        assert other[0].is_running
        true = await one_waits(dispatcher.approvals, "true")
        await dispatcher.approvals.approve(true.id, by="anna")
        await eventually(lambda: runs(tmp_path / "other") == ["7"], "what is signed is taken")
        assert runs(trace) == []
        client.delete(approved, waiting, key)


async def test_what_a_server_lost_is_asked_about_again(tmp_path: Path) -> None:
    with fleets.running("tests.fleets.paying") as fleet:
        async with fleets.connected(fleet) as dispatcher:
            trace = tmp_path / "trace"
            waiting = asyncio.ensure_future(
                dispatcher.dispatch(response(trace), session="s", wait=60)
            )
            await one_waits(dispatcher.approvals, "s")
            with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
                client.flushall()
            approval = await one_waits(dispatcher.approvals, "s")
            await dispatcher.approvals.approve(approval.id, by="anna")
            assert (await waiting)[0].data == "paid 5" and runs(trace) == ["5"]


def test_a_call_is_approved_from_the_command_line(
    fleet: LocalFleet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment(fleet).items():
        monkeypatch.setenv(name, value)
    trace = tmp_path / "trace"

    async def ask() -> None:
        async with fleets.connected(fleet) as dispatcher:
            await dispatcher.dispatch(response(trace), session="cli", wait=0)
            await one_waits(dispatcher.approvals, "cli")

    asyncio.run(ask())

    def told(*argv: str) -> tuple[int, str, str]:
        code = run_command(["approvals", *argv])
        out, error = capsys.readouterr()
        return code, out, error

    code, out, _ = told("list", "--session", "cli", "--json")
    [listed] = json.loads(out)
    assert code == 0 and listed["arguments"]["amount"] == 5
    code, out, _ = told("list")
    assert code == 0 and listed["id"][:10] in out and "pay" in out
    code, out, _ = told("show", listed["id"][:6])
    assert code == 0 and '"amount": 5' in out and listed["digest"] in out
    code, _, error = told("approve", listed["id"], "--by", "anna", "--digest", "0" * 32)
    assert code == 1 and "other arguments" in error
    code, _, error = told("approve", "nothing", "--by", "anna")
    assert code == 2 and "no approval" in error
    code, out, _ = told("deny", listed["id"][:8], "--by", "anna", "--reason", "spent")
    assert code == 0 and "denied" in out and "spent" in out
    code, _, error = told("approve", listed["id"], "--by", "ben")
    assert code == 1 and "denied by anna" in error
    assert runs(trace) == []


async def test_a_session_that_is_no_text_is_an_error_where_approvals_are_listed() -> None:
    @tool
    async def look() -> None:
        """Look."""

    async with Dispatcher.in_memory([look]) as dispatcher:
        with pytest.raises(ValueError, match="session must be a string"):
            await dispatcher.approvals.waiting(session=1)  # type: ignore[arg-type]
