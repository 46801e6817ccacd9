"""Equal reads of a fleet share a run, on a real server with real workers (R56)."""

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.processes import kill_hard, python, read_line
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long

QUICK = {"lease_ttl": 2.0}


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.sharing", **QUICK) as started:
        yield started


class Scene:
    """Files that a test and its tools share."""

    def __init__(self, folder: Path) -> None:
        self.trace = folder / "trace"
        self.gate = folder / "gate"

    @property
    def both(self) -> dict[str, str]:
        return {"trace": str(self.trace), "gate": str(self.gate)}

    @property
    def runs(self) -> list[str]:
        return self.trace.read_text().split() if self.trace.exists() else []

    def open(self) -> None:
        self.gate.touch()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def notes(fleet: LocalFleet) -> list[str]:
    """The keys of all notes of shared runs."""
    with redis.Redis.from_url(str(fleet.settings.redis_url), decode_responses=True) as client:
        return list(client.scan_iter(RedisKeys(fleet.settings.key_prefix).shared("*")))


def ask(dispatcher: Dispatcher, name: str, who: int, arguments: Any) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(
        dispatcher.dispatch(call(name, f"c{who}", **arguments), session=f"s{who % 50}")
    )


def have_joined(dispatcher: Dispatcher, count: int) -> bool:
    """Whether so many calls wait for a run that the ledger knows of."""
    asked = [pending for pending in dispatcher._in_flight.all_open() if pending.shares_run]
    return len(asked) == count and all(each.share and each.share.run for each in asked)


async def test_a_hundred_equal_calls_of_two_dispatchers_are_one_run(
    fleet: LocalFleet, scene: Scene
) -> None:
    """Of fifty sessions; each has its result, under its own id."""
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(fleets.connected(fleet)) for _ in range(2)]
        asked = [ask(both[n % 2], "look", n, scene.both) for n in range(100)]
        await eventually(lambda: scene.runs, "it runs")
        await eventually(lambda: all(have_joined(d, 50) for d in both), "all wait for it")
        scene.open()
        results = [(await turn)[0] for turn in asked]
    assert scene.runs == ["look"]
    assert [result.data for result in results] == ["seen"] * 100
    assert [result.call_id for result in results] == [f"c{n}" for n in range(100)]
    assert sum(result.note is None for result in results) == 1


async def test_a_failing_run_fails_for_all_and_the_next_call_runs_again(
    fleet: LocalFleet, scene: Scene
) -> None:
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        asked = [ask((one, other)[n % 2], "fail", n, scene.both) for n in range(20)]
        await eventually(lambda: have_joined(one, 10) and have_joined(other, 10), "all wait")
        await eventually(lambda: scene.runs, "it runs")
        scene.open()
        assert {(await turn)[0].code for turn in asked} == {Code.REPORTED}
        assert scene.runs == ["fail"]
        for dispatcher in (one, other):
            assert (await ask(dispatcher, "fail", 0, scene.both))[0].code is Code.REPORTED
    assert scene.runs == ["fail"] * 3


async def test_all_are_answered_though_the_worker_of_their_run_is_killed(scene: Scene) -> None:
    """By one run more, in the second attempt."""
    with fleets.running("tests.fleets.sharing", **QUICK) as own:
        async with fleets.connected(own) as one, fleets.connected(own) as other:
            asked = [ask((one, other)[n % 2], "die_once", n, scene.both) for n in range(20)]
            await eventually(lambda: have_joined(one, 10) and have_joined(other, 10), "all wait")
            await eventually(lambda: scene.runs, "it runs")
            scene.open()
            results = [(await turn)[0] for turn in asked]
    assert [result.data for result in results] == ["survived"] * 20
    assert {result.attempts for result in results} == {2}
    assert scene.runs == ["die_once"] * 2


ASKS = """
import asyncio, json, sys
from toolpool import Dispatcher
from toolpool.contract.settings import Settings

async def main():
    asked = json.loads(sys.argv[1])
    async with Dispatcher.connect(settings=Settings(**json.loads(sys.argv[2]))) as dispatcher:
        print("asks", flush=True)
        await dispatcher.dispatch(asked, session="s")

asyncio.run(main())
"""


async def test_the_others_have_the_result_though_the_dispatcher_that_began_it_is_killed(
    fleet: LocalFleet, scene: Scene
) -> None:
    given = fleet.settings.model_fields_set & {"redis_url", "key_prefix", *QUICK}
    settings = {name: getattr(fleet.settings, name) for name in given}
    asked = call("look", "first", **scene.both)
    assert fleet.settings.signing_key is not None
    key = fleet.settings.signing_key.get_secret_value()
    with python(ASKS, json.dumps(asked), json.dumps(settings), TOOLPOOL_SIGNING_KEY=key) as first:
        await asyncio.to_thread(read_line, first)
        await eventually(lambda: scene.runs, "it runs for the first")
        async with fleets.connected(fleet) as other:
            joined = [ask(other, "look", n, scene.both) for n in range(5)]
            await eventually(lambda: other.in_flight() == 5, "the others ask")
            await eventually(lambda: _replies(fleet) == [2], "and are noted")
            await asyncio.to_thread(kill_hard, first)
            scene.open()
            results = [(await turn)[0] for turn in joined]
    assert [result.data for result in results] == ["seen"] * 5
    assert scene.runs == ["look"]


def _replies(fleet: LocalFleet) -> list[int]:
    """How many dispatchers are told of each call that runs."""
    names = RedisKeys(fleet.settings.key_prefix)
    with redis.Redis.from_url(str(fleet.settings.redis_url), decode_responses=True) as client:
        found = [client.hmget(key, "state", "replies") for key in client.scan_iter(names.call("*"))]
    return [len(str(replies).split()) for state, replies in found if state == "claimed"]


@pytest.mark.parametrize("name", ["price", "price_process"])
async def test_a_kept_result_is_given_until_it_is_too_old(
    fleet: LocalFleet, scene: Scene, name: str
) -> None:
    arguments = {"trace": str(scene.trace)}
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        first = (await ask(one, name, 1, arguments))[0]
        kept = [(await ask(each, name, 2, arguments))[0] for each in (one, other)]
        assert [first.data, *(result.data for result in kept)] == [1, 1, 1]
        assert first.note is None and all("s old" in str(result.note) for result in kept)
        assert {result.executed for result in kept} == {Executed.YES}
        if name == "price":

            async def is_new() -> bool:
                return bool((await ask(one, name, 3, arguments))[0].data == 2)

            await eventually(is_new, "it is too old")
    assert len(scene.runs) == (2 if name == "price" else 1)


async def test_a_tool_with_a_context_never_answers_another_session_or_context(
    fleet: LocalFleet, scene: Scene
) -> None:
    arguments = {"trace": str(scene.trace)}
    hosts: list[dict[str, Any]] = [
        {"session": session, "context": context}
        for session in ("a", "b", None)
        for context in ({"user": 1}, {"user": "1"}, {"user": 1.0}, {"user": [1]}, None)
    ]
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        for _ in range(2):
            asked = [
                (host, asyncio.ensure_future(each.dispatch(call("mine", **arguments), **host)))
                for host in hosts
                for each in (one, other)
            ]
            for host, turn in asked:
                result = (await turn)[0]
                assert result.data[0] == host["session"]
                assert json.dumps(result.data[1]) == json.dumps(host["context"] or {})
    shared, alone = 2 * 5, 5 * 2 * 2
    assert len(scene.runs) == shared + alone


async def test_a_read_behind_a_write_of_its_turn_runs_anew(fleet: LocalFleet, scene: Scene) -> None:
    arguments = {"trace": str(scene.trace)}
    calls = (
        call("price_process", "r1", **arguments)
        + call("put", "w", **arguments)
        + call("price_process", "r2", **arguments)
    )
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        assert (await ask(other, "price_process", 1, arguments))[0].data == 1
        turn = await one.dispatch(calls, session="s")
        assert [result.data for result in turn] == [1, None, 3]
        assert (await ask(other, "price_process", 1, arguments))[0].data == 3


@pytest.mark.parametrize("how", ["text", "list", "foreign", "bytes", "expired"])
async def test_garbage_in_its_place_costs_a_run_and_nothing_else(
    fleet: LocalFleet, scene: Scene, how: str
) -> None:
    arguments = {"trace": str(scene.trace)}
    before = set(notes(fleet))
    async with fleets.connected(fleet) as dispatcher:
        assert (await ask(dispatcher, "price_process", 1, arguments))[0].data == 1
        (key,) = set(notes(fleet)) - before
        with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
            note = client.get(key)
            assert isinstance(note, bytes)
            client.delete(key)
            if how == "text":
                client.set(key, "what is this", px=60_000)
            elif how == "bytes":
                client.set(key, secrets.token_bytes(100) + b" 1 1 1 1", px=60_000)
            elif how == "list":
                client.rpush(key, "a")
                client.expire(key, 60)
            elif how == "foreign":  # a record of another call, which would be another's result
                await dispatcher.dispatch(call("put", **arguments), session="z", turn="t")
                record = next(
                    each.decode().rpartition(":")[2]
                    for each in client.scan_iter(RedisKeys(fleet.settings.key_prefix).call("*"))
                    if note.split()[0] not in each
                )
                client.set(key, f"{record} 1 {10**15} {10**15} 1", px=60_000)
        again = (await ask(dispatcher, "price_process", 2, arguments))[0]
        assert again.data == len(scene.runs) > 1
        kept = (await ask(dispatcher, "price_process", 3, arguments))[0]
    assert kept.data == again.data and "s old" in str(kept.note)


async def test_a_forged_result_is_not_taken(fleet: LocalFleet, scene: Scene) -> None:
    """Whoever can write to the server can make no result of it."""
    arguments = {"trace": str(scene.trace)}
    before = set(notes(fleet))
    async with fleets.connected(fleet) as dispatcher:
        assert (await ask(dispatcher, "price_process", 1, arguments))[0].data == 1
        (key,) = set(notes(fleet)) - before
        with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
            run = client.get(key).split()[0].decode()  # type: ignore[union-attr]
            record = RedisKeys(fleet.settings.key_prefix).call(run)
            client.hset(record, "outcome", b'{"ok":true,"data":99}')
        assert (await ask(dispatcher, "price_process", 2, arguments))[0].data == 2


async def test_a_server_that_lost_its_data_costs_a_run(scene: Scene) -> None:
    with fleets.running("tests.fleets.sharing", **QUICK) as own:
        async with fleets.connected(own) as one, fleets.connected(own) as other:
            arguments = {"trace": str(scene.trace)}
            assert (await ask(one, "price_process", 1, arguments))[0].data == 1
            asked = [ask(each, "look", 1, scene.both) for each in (one, other)]
            await eventually(lambda: "look" in scene.runs, "it runs")
            with redis.Redis.from_url(str(own.settings.redis_url)) as client:
                client.flushall()
            again = (await ask(other, "price_process", 2, arguments))[0]
            scene.open()
            assert [(await turn)[0].data for turn in asked] == ["seen"] * 2
    assert again.ok and again.note is None
