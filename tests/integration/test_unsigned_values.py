"""What an operator's commands make of values that somebody without our key wrote to the server."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.integration.test_deadlines import worker
from tests.waiting import eventually
from toolpool import call_search
from toolpool.cli import main
from toolpool.contract import encoding
from toolpool.contract.envelope import (
    BackgroundCall,
    CallMessage,
    CatalogEntry,
    Envelope,
    Question,
    Toolset,
    WorkerLease,
)
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.protocols import NEW, Claim, Opening
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.operator_messages import (
    Answer,
    CallStatus,
    DispatcherReport,
    answer_stream,
)
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server.connection import keyring, open_async
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.transports.base import NoteBatch, TurnNote
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.fleet_reader import read_fleet, set_switch

NAMES = RedisKeys()
Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def settings(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", redis_url)
    return Settings(redis_url=redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as connected:
        yield connected
        connected.delete(NAMES.switches)


@pytest.fixture
def command(settings: Settings, capfd: pytest.CaptureFixture[str]) -> Command:
    def run(*argv: str) -> tuple[int, Any]:
        capfd.readouterr()
        code = main([*argv, "--json"])
        out, err = capfd.readouterr()
        return int(code), json.loads(out) if out else err

    return run


def handed_over(settings: Settings, client: Any, handle: str, **more: Any) -> BackgroundCall:
    """A background call as a dispatcher stores it."""
    message = CallMessage(id="c", key="k-1", tool="t", digest="", arguments={}, session="s")
    known = {"tenant": settings.tenant, "session": "s", "queue": "q", "started_at": time.time()}
    call = BackgroundCall(handle=handle, message=message, deadline=0.0, **(known | more))
    body = Envelope(keyring(settings)).encode(call)
    client.set(NAMES.background(handle), body, ex=60)
    return call


def test_an_answer_to_another_question_is_not_believed(
    settings: Settings, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "q" * 32)
    envelope = Envelope(keyring(settings))
    stream = answer_stream(NAMES, Question(id="q" * 32, ends_at=0.0))
    for question, code in (("old", "aborted.cancelled"), ("q" * 32, "")):
        status = CallStatus(call="c", tool="t", key="k", state="RUNNING", age=1.0, cancelled=code)
        answer = Answer(question=question, dispatcher="d", calls=[status])
        client.xadd(stream, {"b": envelope.encode(answer)})
    client.expire(stream, 60)
    report = DispatcherReport(
        id="d", host="h", pid=1, version="1", tenant="default", started_at=0.0
    )
    answers = call_search.ask(settings, [report], key="k", cancel=True)
    assert [status.cancelled for _, status in answers.calls] == [""]


@pytest.mark.parametrize(("handle", "tenant"), [("one", "another"), ("copied", "default")])
def test_a_handle_of_another_tenant_or_another_handles_copy_is_unknown(
    settings: Settings, client: Any, handle: str, tenant: str
) -> None:
    handed_over(settings, client, "one", tenant=tenant)
    client.copy(NAMES.background("one"), NAMES.background("copied"), replace=True)
    assert call_search.Finder(settings).handed_over(handle) is None


def test_an_old_state_of_a_switch_does_not_show_as_denied(settings: Settings, client: Any) -> None:
    assert not set_switch(settings, "t", None, None, "incident", on=True)
    [denied] = client.hvals(NAMES.switches)
    assert [switch.tool for switch in read_fleet(settings).switches] == ["t"]
    assert set_switch(settings, "t", None, None, "", on=False)
    client.hset(NAMES.switches, "copy", denied)
    assert read_fleet(settings).switches == []
    assert not set_switch(settings, "t", None, None, "", on=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", b"x"),
        ("deadline", b"zz"),
        ("deadline", b"9" * 400),
        ("worker", b"\xff"),
        ("state", b"\xff"),
    ],
)
def test_a_record_that_holds_anything_is_found(
    settings: Settings, client: Any, command: Command, field: str, value: bytes
) -> None:
    handed_over(settings, client, "handle")
    record = {"state": "claimed", "attempt": "2", "worker": "w", field: value}
    client.hset(NAMES.call("k-1"), mapping=record)
    client.expire(NAMES.call("k-1"), 60)
    code, told = command("find", "handle")
    assert code == 0, told
    [row] = told["calls"]
    assert (row["call"], row["attempt"]) == ("c", 1 if field == "attempt" else 2)


def test_a_member_of_handles_that_is_no_text_is_passed_over(
    settings: Settings, client: Any, command: Command
) -> None:
    handed_over(settings, client, "handle")
    key = NAMES.handles(encoding.digest([settings.tenant, "s"]))
    client.zadd(key, {b"\xff": 1.0, b"handle": 2.0})
    client.expire(key, 60)
    code, told = command("find", "s")
    assert (code, [row["handle"] for row in told["calls"]]) == (0, ["handle"]), told


@pytest.mark.parametrize("score", ["-inf", "+inf", "-1e15"])
def test_the_time_that_a_toolset_was_served_may_be_anything(
    settings: Settings, client: Any, score: str
) -> None:
    envelope = Envelope(keyring(settings))
    entry = CatalogEntry(spec=sealed(ToolSpec(name="t")), published_at=1.0, version="1")
    toolset = Toolset(digest="a" * 8, tools={"t": entry.spec.digest})
    try:
        client.hset(NAMES.catalog, "t", envelope.encode(entry))
        client.set(NAMES.toolset(toolset.digest), envelope.encode(toolset), ex=60)
        client.zadd(NAMES.toolsets, {toolset.digest: score})
        assert main(["tools", "list"]) == 0
        assert main(["status"]) == 1
    finally:
        client.delete(NAMES.catalog, NAMES.toolsets)


def test_one_worker_is_one_worker(settings: Settings, client: Any, command: Command) -> None:
    handed_over(settings, client, "handle")
    client.hset(NAMES.call("k-1"), "state", "open")
    client.expire(NAMES.call("k-1"), 60)
    lease = WorkerLease(id="w", host="h", pid=1, version="1", started_at=1.0, slots={"q": 4})
    try:
        client.zadd(NAMES.workers, {"w": time.time() + 60.0})
        client.set(NAMES.worker("w"), Envelope(keyring(settings)).encode(lease), ex=60)
        _, told = command("find", "handle")
    finally:
        client.delete(NAMES.workers, NAMES.worker("w"), NAMES.call("k-1"))
    assert "queue q (1 worker, 4 slots free)" in told["calls"][0]["why"]


async def test_junk_in_place_of_a_record_costs_no_other_call(
    settings: Settings, client: Any
) -> None:
    """R69: also of those that are in the same step, or are looked at together."""
    connected = open_async(settings)
    ledger, reply = RedisLedger(LuaScripts(connected), NAMES), NAMES.reply("d")
    give_up_at = time.monotonic() + 9.0
    openings = [Opening(key, 1, True, wait=9.0, deadline=9.0, keep=9.0) for key in ("a", "b")]

    async def open_both(nonce: str) -> list[bytes]:
        _, answers = await ledger.open(
            openings, nonce=nonce, reply=reply, queue="", message=b"", give_up_at=give_up_at
        )
        return answers

    assert await open_both("one") == [NEW, NEW]
    client.set(NAMES.call("a"), "junk", ex=60)
    transport = RedisTransport(settings)
    assert await transport.states(["a", "b"]) == [None, "open"]
    assert await transport.outcomes(["a", "b"]) == [None, None]
    claims = [Claim("a", 1, "c-a"), Claim("b", 1, "c-b")]
    lost, left = await ledger.claim(claims, worker="w", give_up_at=give_up_at)
    assert lost == "absent" and isinstance(left, float)
    client.set(NAMES.call("a"), "junk", ex=60)
    assert await open_both("two") == [NEW, b"running w"]
    for state in ("5", "inf", "nan", "60_000"):  # no seconds that are left
        client.delete(NAMES.call("a"))
        client.hset(NAMES.call("a"), mapping={"state": state, "attempt": "1"})
        client.expire(NAMES.call("a"), 60)
        refused, _ = await ledger.claim(claims, worker="w", give_up_at=give_up_at)
        assert refused == "absent"
    for junk in ({"state": "open"}, {"state": "claimed"}, {"state": "open", "until": "soon"}):
        client.delete(NAMES.call("a"))
        client.hset(NAMES.call("a"), mapping=junk)
        client.expire(NAMES.call("a"), 60)
        assert (await open_both("three"))[1] == b"running w"
    await transport.close()
    await connected.aclose()


async def test_junk_among_the_notes_of_turns_hides_no_note(settings: Settings, client: Any) -> None:
    key = NAMES.turns(int(client.time()[0] // 3600))
    ends = (b"junk", b"a\0", b"a\0{}", b"a\0[]", b"a\0[1]", b'a\0["1","2","3","4"]', b"a\0\xff")
    members = [b"s\0" + end for end in ends]
    transport = RedisTransport(settings)
    await transport.open()
    await transport.survey([])
    await transport.note_turns(
        [NoteBatch(transport.server_time(), [TurnNote("s", "t", "n", "", is_answered=False)])]
    )
    client.zadd(key, dict.fromkeys(members, 0))
    assert [note.turn for note in await transport.turns("s")] == ["t"]
    await transport.close()
    client.delete(key)


async def test_a_record_that_says_it_may_run_twice_makes_no_call_run_twice(
    settings: Settings, client: Any
) -> None:
    """R63: whether it may is what its signed message says."""
    connected = open_async(settings)
    ledger, give_up_at = RedisLedger(LuaScripts(connected), NAMES), time.monotonic() + 9.0
    opening = Opening("once", 1, False, wait=9.0, deadline=9.0, keep=9.0)
    await ledger.open(
        [opening], nonce="n", reply=NAMES.reply("d"), queue="", message=b"", give_up_at=give_up_at
    )
    copied = client.dump(NAMES.call("once"))
    won: list[bool] = []
    for nonce in ("first", "second"):
        client.restore(NAMES.call("once"), 9000, copied, replace=True)
        client.hset(NAMES.call("once"), "rerun", "1")
        claims = [Claim("once", 1, nonce, rerunnable=False)]
        (answer,) = await ledger.claim(claims, worker="w", give_up_at=give_up_at)
        won.append(isinstance(answer, float))
    await connected.aclose()
    assert won == [True, False]


@pytest.mark.parametrize("starts", ["dispatcher", "worker"])
async def test_an_unsigned_clock_offset_moves_no_starting_process(
    settings: Settings, client: Any, starts: str
) -> None:
    """R63: else it would take an old decision, put back with its record, for a good one."""
    client.set(NAMES.epoch, "random -3600000 0")

    def is_undone() -> bool:
        return bool(client.get(NAMES.epoch).split(b" ")[1] == b"0")

    try:
        if starts == "worker":
            with worker(settings):
                await eventually(is_undone, "its offset is undone")
        else:
            transport = RedisTransport(settings)
            await transport.open()
            await transport.survey([])
            assert abs(transport.server_time() - client.time()[0]) < 2.0
            assert is_undone()
            await transport.close()
    finally:
        client.delete(NAMES.epoch)


async def test_an_unsigned_clock_offset_moves_no_command(settings: Settings, client: Any) -> None:
    before = client.get(NAMES.epoch)
    try:
        client.set(NAMES.epoch, "r 86400000 0 version none")
        assert abs(read_fleet(settings).now - client.time()[0]) < 60
    finally:
        if before is None:
            client.delete(NAMES.epoch)
        else:
            client.set(NAMES.epoch, before)
