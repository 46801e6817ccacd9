"""R69: values that somebody without the key puts in place of any key stop nothing else.

They may stop the call whose key it is. Everything else goes on, and whatever starts comes up.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.fleet import call, connected, running
from tests.integration.test_approvals import one_waits
from tests.integration.test_deadlines import worker
from tests.waiting import eventually
from toolpool import AskApproval, Dispatcher, Hooks
from toolpool.contract import encoding
from toolpool.contract.ledger.approval_steps import DecisionStep, RedisApprovals
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.protocols import (
    NEW,
    SENT,
    Claim,
    ClaimRenewal,
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    Release,
    Settlement,
)
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.ledger.shared_runs import RedisShared, SharedRunRequest
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server.connection import open_async
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.local import LocalFleet

NAMES = RedisKeys()
TOOLS = ("tests.fleets.road", "tests.fleets.limited")
NUMBERS = ("attempt", "until", "deadline", "claims", "releases", "keep", "expires", "anew")
OTHERS = {"other": b"string", "toolpools:catalog": b"string", "_x:toolpool:workers": b"string"}
"""Keys of somebody else, which nobody may delete."""
START_SECONDS = 60.0
"""A process that starts is the slowest on a busy machine."""


def record(state: str | bytes, number: str) -> dict[str, str | bytes]:
    return {"state": state, **dict.fromkeys(NUMBERS, number)}


PLANTS: dict[str, Callable[[Any, str], object]] = {
    "empty": lambda client, key: client.set(key, b""),
    "text": lambda client, key: client.set(key, b"junk \xff \n nan"),
    "number": lambda client, key: client.set(key, b"9" * 30),
    "list": lambda client, key: client.rpush(key, b"junk", b"\xff", b""),
    "set": lambda client, key: client.sadd(key, b"junk", b"\xff"),
    "hash": lambda client, key: client.hset(key, mapping={b"junk": b"junk", b"\xff": b"", "": "x"}),
    "claimed": lambda client, key: client.hset(key, mapping=record("claimed", "nan")),
    "open": lambda client, key: client.hset(key, mapping=record("open", "9" * 40)),
    "approved": lambda client, key: client.hset(key, mapping=record("approved", "-inf")),
    "settled": lambda client, key: client.hset(key, mapping=record("settled", "x")),
    "zset": lambda client, key: client.zadd(key, {b"junk": "inf", b"\xff": "-inf", b"": 1e300}),
    "numbers": lambda client, key: client.zadd(key, {b"a#b@c": -1e300, b"x:9": 1, b"y": 9e15}),
    "stream": lambda client, key: client.xadd(key, {b"junk": b"\xff", b"b": b"", b"n": b"nan"}),
    "last": lambda client, key: client.xadd(key, {b"s": b"\xff"}, id=f"{2**64 - 1}-{2**64 - 1}"),
}
SHORT = ("empty", "claimed", "numbers", "last")


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with running(*TOOLS, circuit_scope="fleet") as started:
        yield started


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=fleet.settings.redis_url.removeprefix("unix://")) as opened:
        yield opened


async def ask_about(request: Any) -> AskApproval | None:
    return AskApproval() if request.arguments.get("value") == "ask" else None


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    hooks = Hooks(before_call=ask_about)
    async with Dispatcher.connect(settings=fleet.settings, hooks=hooks) as opened:

        async def has_all() -> bool:  # which the junk of another test may have taken away
            calls = [*call("echo_process", value=1), *call("few", "d", trace="/dev/null")]
            return all(result.ok for result in await opened.dispatch(calls))

        await eventually(has_all, "workers have put their tools back")
        yield opened


def keys(client: Any) -> list[str]:
    """One key of each kind that there is, and of each that there might be."""
    fixed = {value for value in vars(NAMES).values() if value.startswith("toolpool:")}
    found = sorted(fixed - {NAMES.call_prefix, NAMES.ran_prefix})
    found += ["toolpool:binding.x"]
    found += [NAMES.queue("default", kind) for kind in RunIn]
    for name, member in vars(RedisKeys).items():
        if name.startswith("_") or name in ("queue", "catalog_field"):
            continue
        some = list(itertools.islice(client.scan_iter(member(NAMES, "*"), count=1000), 2))
        found += [key.decode() for key in some] or [member(NAMES, "x")]
    return found


def plant(client: Any, key: str, kind: str) -> None:
    pipeline = client.pipeline(transaction=True)
    pipeline.delete(key)
    PLANTS[kind](pipeline, key)
    pipeline.expire(key, 3600)
    pipeline.execute()


numbers = itertools.count()


async def served(dispatcher: Dispatcher, trace: Path, said: str) -> None:
    """Calls of every kind, each of a session of its own, are answered right."""
    number = next(numbers)
    for name, arguments, expected in [
        ("echo", {"value": number}, number),
        ("echo_process", {"value": number}, number),
        ("few", {"trace": str(trace / "few"), "seconds": 0}, "done"),
        ("cached", {"word": "same"}, "same"),
        ("refuse", {"reason": "no"}, None),
    ]:
        answers = await dispatcher.dispatch(
            call(name, **arguments), session=f"{name}{number}", timeout=10
        )
        assert answers[0].data == expected, (said, name, answers)


async def approved(fleet: LocalFleet, dispatcher: Dispatcher, said: str) -> None:
    """A call that waits for a person is shown, approved and run."""
    session = f"asks{next(numbers)}"
    async with Approvals.connect(settings=fleet.settings) as approvals:
        response = call("echo", value="ask")
        asked = asyncio.ensure_future(dispatcher.dispatch(response, session=session, timeout=10))
        approval = await one_waits(approvals, session)
        await approvals.approve(approval.id, by="anna", digest=approval.digest)
        answers = await asked
        assert answers[0].data == "ask", (said, answers)


async def starts(fleet: LocalFleet, client: Any, said: str) -> None:
    """A dispatcher and a worker that start now serve."""

    def leases() -> set[bytes]:
        return set(client.scan_iter(NAMES.worker("*"), count=1000))

    before = leases()
    with worker(fleet.settings, "tests.fleets.road"):
        await eventually(lambda: leases() - before, f"{said}: a worker starts", START_SECONDS)
        async with connected(fleet, circuit_scope="fleet") as fresh:
            pids = set()

            async def is_served() -> bool:  # by the new worker too
                [answer] = await fresh.dispatch(call("whoami"), session=f"new{next(numbers)}")
                pids.add(answer.data)
                return len(pids - {None}) == 2

            await eventually(is_served, f"{said}: it serves", START_SECONDS)


async def survives(
    fleet: LocalFleet, client: Any, dispatcher: Dispatcher, trace: Path, kind: str
) -> None:
    client.mset(OTHERS)
    await served(dispatcher, trace, "before")
    await approved(fleet, dispatcher, "before")
    for key in keys(client):
        plant(client, key, kind)
        await served(dispatcher, trace, f"{kind} in {key}")
    for key in keys(client):
        plant(client, key, kind)
    await starts(fleet, client, f"{kind} everywhere")
    await served(dispatcher, trace, f"{kind} everywhere")
    await approved(fleet, dispatcher, f"{kind} everywhere")
    assert client.mget(OTHERS) == list(OTHERS.values())


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", SHORT)
async def test_junk_in_place_of_any_key_stops_nothing_else(
    fleet: LocalFleet, client: Any, dispatcher: Dispatcher, tmp_path: Path, kind: str
) -> None:
    await survives(fleet, client, dispatcher, tmp_path, kind)


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", [kind for kind in PLANTS if kind not in SHORT])
async def test_other_junk_in_place_of_any_key_stops_nothing_else(
    fleet: LocalFleet, client: Any, dispatcher: Dispatcher, tmp_path: Path, kind: str
) -> None:
    await survives(fleet, client, dispatcher, tmp_path, kind)


STATES = ("open", "claimed", "settled", "waiting", "approved", b"junk \xff")
AWAY = "_x:toolpool:reply:d"
"""What a record may name as a reply stream, and is somebody else's."""


def closing(key: str) -> Closing:
    more = {"unsent": True, "leaves_mark": False}
    return Closing(key, f"n-{key}", "", 9.0, b"no", b"lost", b"unknown", b"cancel", **more)


def recovery(key: str) -> RecoveryRequest:
    return RecoveryRequest(key, f"r-{key}", "w", 1, 9.0, b"m", b"n", 9.0, b"lost")


@pytest.mark.parametrize("number", ["nan", "inf", "-9", "9" * 40, "1e300", "x", ""])
async def test_junk_in_the_fields_of_a_record_fails_no_step_for_other_calls(
    redis_url: str, number: str
) -> None:
    settings = Settings(redis_url=redis_url)
    connection = open_async(settings)
    steps = LuaScripts(connection)
    ledger, reply = RedisLedger(steps, NAMES), NAMES.reply("d")
    approvals = RedisApprovals(steps, NAMES, reply, settings.tenant)
    transport = RedisTransport(settings)
    until: dict[str, Any] = {"give_up_at": time.monotonic() + 30.0}
    await connection.set(AWAY, "theirs", ex=60)

    async def planted(state: str | bytes) -> None:
        await connection.delete(NAMES.call("junk"), NAMES.call("good"), reply)
        opened = Opening("good", 1, True, wait=9.0, deadline=9.0, keep=9.0)
        await ledger.open([opened], nonce="g", reply=reply, queue="", message=b"", **until)
        junk = record(state, number) | {"claimed": "c-junk", "replies": AWAY, "worker": "w"}
        await connection.hset(NAMES.call("junk"), mapping=junk)
        await connection.expire(NAMES.call("junk"), 60)

    for state in STATES:
        await planted(state)
        opening = [
            Opening(key, 1, False, wait=9.0, deadline=9.0, keep=9.0, asked_at=2.0, approved=True)
            for key in ("junk", "good")
        ]
        found = await ledger.open(opening, nonce="g", reply=reply, queue="", message=b"", **until)
        assert found[1][1] == NEW
        await planted(state)
        claims = [Claim(key, 1, f"c-{key}") for key in ("junk", "good")]
        assert isinstance((await ledger.claim(claims, worker="w", **until))[1], float)
        renewals = [ClaimRenewal(key, 1, f"c-{key}") for key in ("junk", "good")]
        assert (await ledger.renew(renewals, worker="w", **until))[1] == "renewed"
        releases = [Release(k, f"c-{k}", b"told", 9.0, b"no", False) for k in ("junk", "good")]
        assert (await ledger.release(releases, worker="w", **until))[1] == "released"
        settlements = [Settlement(k, f"s-{k}", 9.0, AWAY, b"done") for k in ("junk", "good")]
        await planted(state)
        assert (await ledger.settle(settlements, **until))[1] == "first"
        await planted(state)
        recoveries = [recovery("junk"), recovery("good")]
        answers = await ledger.recover(recoveries, reply=reply, queue="", **until)
        assert answers[1] == SENT
        for end in CloseReason:
            await planted(state)
            closings = [closing("junk"), closing("good")]
            assert (await ledger.close(closings, reply=reply, end=end, **until))[1] is not None
        await planted(state)
        await connection.zadd(NAMES.approvals(encoding.digest(settings.tenant)), {"junk": 9e15})
        assert await approvals.waiting(9, now=1.0) is not None
        assert (await transport.states(["junk", "absent"]))[1] is None
        await approvals.read("junk", now=1.0, unsent_in="junk")
        await approvals.decide(DecisionStep("junk", "n", b"yes", b"told", True, 9.0), now=1.0)
    assert await connection.get(AWAY) == b"theirs"
    await connection.delete(NAMES.approvals(encoding.digest(settings.tenant)))
    await transport.close()
    await connection.aclose()


async def test_records_that_look_like_retries_hold_the_server_up_only_so_long(
    redis_url: str,
) -> None:
    connection = open_async(Settings(redis_url=redis_url))
    shared = RedisShared(LuaScripts(connection), NAMES)
    run = "a" * 32
    ask = SharedRunRequest(run, run, timeout=10.0, wait=10.0, cached=5.0)
    await shared.ask([ask])
    pipeline = connection.pipeline()
    for number in range(1, 3001):
        pipeline.set(NAMES.call(f"{run}.{number}"), "junk", ex=60)
    await pipeline.execute()
    await connection.config_resetstat()
    await shared.ask([ask])
    looked = (await connection.info("commandstats"))["cmdstat_exists"]["calls"]
    assert looked <= 1001
    await connection.aclose()
