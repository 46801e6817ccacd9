"""Whatever lies on the queue: it stops no worker, it runs no tool, and the next call is answered.

Anybody who reaches the broker can write there, and Celery on Redis duplicates and reorders.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from msgspec.structs import replace

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.processes import is_running
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.envelope import Batch, Envelope
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.transports import celery_message
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.local import LocalFleet
from toolpool.workers.celery.message_guard import MessageValidator

LOOP = RedisKeys().queue("default", RunIn.LOOP)
MEGABYTES_50 = 50_000_000


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.road") as running:
        yield running


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator["redis.Redis"]:
    assert fleet.settings.redis_url is not None
    with redis.Redis.from_url(fleet.settings.redis_url) as opened:
        yield opened


@pytest.fixture
async def dispatcher(fleet: LocalFleet, client: "redis.Redis") -> AsyncIterator[Dispatcher]:
    """Afterwards the same process answers, and its queue is empty."""
    async with fleets.connected(fleet) as connected:
        pid = await whoami(connected)
        yield connected
        assert await whoami(connected) == pid
        assert is_running(pid)
        await eventually(lambda: not client.llen(LOOP), "the queue is empty")


async def whoami(dispatcher: Dispatcher) -> int:
    result = (await dispatcher.dispatch(call("whoami")))[0]
    assert result.ok, result
    return int(result.data)


def envelope(fleet: LocalFleet) -> Envelope:
    return Envelope(connection.keyring(fleet.settings))


class Aside(RedisTransport):
    """Notes calls as ever, and lays their messages aside instead of on the queue."""

    LIST = "aside"

    async def publish(self, *args: Any, **options: Any) -> Any:
        """See `Transport.publish`."""
        return await super().publish(*args, **options | {"queue": self.LIST})

    async def recover(self, *args: Any, **options: Any) -> Any:
        """See `Transport.recover`."""
        return await super().recover(*args, **options | {"queue": self.LIST})


@pytest.fixture
async def aside(fleet: LocalFleet, client: "redis.Redis") -> AsyncIterator[Dispatcher]:
    async with Dispatcher(
        Aside(fleet.settings), settings=fleet.settings, envelope=envelope(fleet)
    ) as connected:
        yield connected
    client.delete(Aside.LIST)


async def laid_aside(client: "redis.Redis", count: int) -> list[bytes]:
    await eventually(lambda: client.llen(Aside.LIST) == count, "the messages are published")
    return client.lrange(Aside.LIST, 0, -1)


# --- not of Celery's form


def element(**changes: Any) -> bytes:
    """A sound element with some of its fields changed; `...` removes one."""
    sound = json.loads(celery_message.redis_message(LOOP, b"signed"))
    for name, value in changes.items():
        known = sound.get(name)
        partly = isinstance(known, dict) and isinstance(value, dict) and value
        sound[name.replace("_", "-")] = _without_gaps(known | value) if partly else value
    return json.dumps(_without_gaps(sound)).encode()


def _without_gaps(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ...}


def headed(**changes: Any) -> bytes:
    return element(headers=changes)


def tagged(**changes: Any) -> bytes:
    return element(properties=changes)


GARBAGE: dict[str, bytes] = {
    "bytes": b"\x00\xff\xfe",
    "empty": b"",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "text": b'"text"',
    "an empty object": b"{}",
    "deep": b'{"body":' * 100_000,
    "no body": element(body=...),
    "null for a body": element(body=None),
    "a number for a body": element(body=5),
    "an object for a body": element(body={}),
    "a body that is not JSON": element(body="{nope"),
    "a body that is an empty list": element(body="[]"),
    "a body that is an object": element(body='{"args": 1}'),
    "a body that is text": element(body='"abc"'),
    "a deep body": element(body="[" * 100_000),
    "an object for arguments": element(body='[{"a": 1}, {}, {}]'),
    "null for arguments": element(body="[null, {}, {}]"),
    "no argument": element(body="[[], {}, {}]"),
    "two arguments": element(body='[["a", "b"], {}, {}]'),
    "a number for an argument": element(body="[[1], {}, {}]"),
    "half a surrogate pair": element(body='[["\\ud800"], {}, {}]'),
    "a list for keywords": element(body='[["x"], [], {}]'),
    "null for callbacks": element(body='[["x"], {}, null]'),
    "no headers": element(headers=...),
    "null for headers": element(headers=None),
    "a list for headers": element(headers=[]),
    "no id": headed(id=...),
    "an object for an id": headed(id={}),
    "null for an id": headed(id=None),
    "no task": headed(task=...),
    "a list for a task": headed(task=[]),
    "null for a task": headed(task=None),
    "an unknown task": headed(task="somebody.elses"),
    "an unknown task without an id": headed(task="somebody.elses", id=...),
    "a task of Celery's own": headed(task="celery.backend_cleanup"),
    "a nonsensical eta": headed(eta="nonsense"),
    "a far eta": headed(eta="2999-01-01T00:00:00"),
    "a past expiry": headed(expires="2001-01-01T00:00:00"),
    "a number for time limits": headed(timelimit=5),
    "an unknown compression": headed(compression="nonsense"),
    "a sound compression": element(
        headers={"compression": "application/x-gzip"},
        properties={"body_encoding": "base64"},
        body=base64.b64encode(zlib.compress(b'[["x"], {}, {}]')).decode(),
    ),
    "a broken compression": headed(compression="application/x-gzip"),
    "protocol 1 without arguments": element(headers={}, body='{"task": "toolpool.batch"}'),
    "protocol 1 with a list for a task": element(headers={}, body='{"task": ["x"]}'),
    "no properties": element(properties=...),
    "null for properties": element(properties=None),
    "no delivery tag": tagged(delivery_tag=...),
    "null for a delivery tag": tagged(delivery_tag=None),
    "an object for a delivery tag": tagged(delivery_tag={"a": 1}),
    "no delivery info": tagged(delivery_info=...),
    "null for delivery info": tagged(delivery_info=None),
    "an unknown body encoding": tagged(body_encoding="nonsense"),
    "a wrong body encoding": tagged(body_encoding="base64"),
    "pickle": element(content_type="application/x-python-serialize"),
    "an unknown content type": element(content_type="text/x"),
    "null for a content type": element(content_type=None),
    "a list for a content type": element(content_type=[]),
    "no content type": element(content_type=...),
    "an unknown content encoding": element(content_encoding="nonsense"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
async def test_what_is_no_celery_message_is_dropped(
    dispatcher: Dispatcher, client: "redis.Redis", garbage: bytes
) -> None:
    """Without workers/celery/inbox.py some twenty of these end a Celery 5.7 worker."""
    client.lpush(LOOP, garbage)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_compressed_message_is_not_unpacked(
    dispatcher: Dispatcher, client: "redis.Redis", kind: str
) -> None:
    """It needs no key to be sent, and two megabytes of it took three gigabytes of the worker's."""
    pid = await whoami(dispatcher)
    before = most_memory(pid)
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(600)) + packer.flush()
    assert len(bomb) < 1 << 20
    message = element(
        headers={"compression": "application/x-gzip"},
        properties={"body_encoding": "base64"},
        body=base64.b64encode(bomb).decode(),
    )
    queue = LOOP.replace("loop", kind)
    client.lpush(queue, *[message] * 3)
    await eventually(lambda: not client.llen(queue), "they are read")
    await whoami(dispatcher)
    assert most_memory(pid) - before < 100_000, "kB"


def most_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


async def test_a_flood_of_garbage_does_not_wear_the_worker_down(
    dispatcher: Dispatcher, client: "redis.Redis"
) -> None:
    """None keeps a place among the messages that a worker may hold at once."""
    small = [garbage for garbage in GARBAGE.values() if len(garbage) < 1000]
    client.lpush(LOOP, *(small * 10))


# --- of Celery's form, and not a batch of ours

Forge = Callable[[Keyring, Batch], bytes]


def _unsigned(keys: Keyring, batch: Batch) -> bytes:
    return Envelope(keys).encode_batch(batch).split(b".", 2)[2]


def _foreign(keys: Keyring, batch: Batch) -> bytes:
    return Envelope(Keyring([generate_key()])).encode_batch(batch)


def _changed(keys: Keyring, batch: Batch) -> bytes:
    return Envelope(keys).encode_batch(batch).replace(b'"ran"', b'"run"')


def _for_another_purpose(keys: Keyring, batch: Batch) -> bytes:
    return keys.sign("reply", _unsigned(keys, batch))


def _of_a_newer_version(keys: Keyring, batch: Batch) -> bytes:
    return Envelope(keys).encode_batch(replace(batch, version=2))


def _without_calls(keys: Keyring, batch: Batch) -> bytes:
    return Envelope(keys).encode_batch(replace(batch, calls=()))


def _of_another_form(keys: Keyring, batch: Batch) -> bytes:
    return keys.sign("batch", b'{"id": 1}')


def _of_another_attempt(keys: Keyring, batch: Batch) -> bytes:
    (call,) = batch.calls
    return Envelope(keys).encode_batch(replace(batch, calls=(replace(call, attempt=2),)))


def _of_50_megabytes(keys: Keyring, batch: Batch) -> bytes:
    (call,) = batch.calls
    large = replace(call, arguments=call.arguments | {"label": "x" * MEGABYTES_50})
    return Envelope(keys).encode_batch(replace(batch, calls=(large,)))


def _without_a_record(keys: Keyring, batch: Batch) -> bytes:
    (call,) = batch.calls
    return Envelope(keys).encode_batch(replace(batch, calls=(replace(call, key="never-opened"),)))


FORGERIES: list[Forge] = [
    _unsigned, _foreign, _changed, _for_another_purpose, _of_a_newer_version, _without_calls,
    _of_another_form, _of_another_attempt, _of_50_megabytes, _without_a_record,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__.lstrip("_"))
async def test_only_the_message_that_a_dispatcher_wrote_runs_its_call(
    fleet: LocalFleet,
    aside: Dispatcher,
    dispatcher: Dispatcher,
    client: "redis.Redis",
    tmp_path: Path,
    forge: Forge,
) -> None:
    """A call that waits for its message: a forgery does not run it, and does not use it up."""
    trace = tmp_path / "trace"
    keys = connection.keyring(fleet.settings)
    turn = asyncio.ensure_future(aside.dispatch(call("count", file=str(trace), label="ran")))
    (message,) = await laid_aside(client, 1)
    signed = json.loads(json.loads(message)["body"])[0][0].encode()
    forged = forge(keys, Envelope(keys).decode_batch(signed))
    client.lpush(LOOP, celery_message.redis_message(LOOP, forged))
    await whoami(dispatcher)
    await whoami(dispatcher)  # what came before is claimed or refused
    assert not trace.exists()
    client.lpush(LOOP, message)
    assert (await turn)[0].ok
    assert trace.read_text() == "ran\n"


async def test_50_megabytes_of_nothing(dispatcher: Dispatcher, client: "redis.Redis") -> None:
    client.lpush(LOOP, b"x" * MEGABYTES_50)
    client.lpush(LOOP, celery_message.redis_message(LOOP, b"x" * MEGABYTES_50))


async def test_garbage_on_every_other_list_that_is_read(
    fleet: LocalFleet, dispatcher: Dispatcher, client: "redis.Redis"
) -> None:
    """Cancels, replies, the catalog and the leases are read back, so they are signed as well."""
    names = RedisKeys()
    foreign = Keyring([generate_key()]).sign("batch", b"{}")
    workers = [worker.decode() for worker in client.zrange(names.workers, 0, -1)]
    for worker in workers:
        client.rpush(names.cancel(worker), b"\xff", b"", foreign)
        client.set(names.worker(worker), b"\xff", px=8000)
    for key in client.scan_iter(names.reply("*")):
        for garbage in (b"\xff", b"", foreign):
            client.xadd(key, {"b": garbage})
        client.xadd(key, {"another": "field", "and": "more"})
    client.hset(names.catalog, mapping={"x\0y": b"\xff", "z": foreign})
    client.zadd(names.workers, {"\udcff".encode(errors="surrogateescape"): 9e12})
    try:
        client.set(names.catalog_version, "another")
        async with fleets.connected(fleet) as another:
            await whoami(another)
        await whoami(dispatcher)
        await eventually(
            lambda: not any(client.exists(names.cancel(worker)) for worker in workers),
            "the cancels are read",
        )
    finally:
        client.hdel(names.catalog, "x\0y", "z")
        client.zrem(names.workers, b"\xff")


# --- ours, and delivered in every wrong way


async def test_messages_in_another_order_are_each_answered_with_their_own_result(
    aside: Dispatcher, dispatcher: Dispatcher, client: "redis.Redis"
) -> None:
    """Each in a message of its own, delivered backwards."""
    turns = []
    for number in range(10):
        turns.append(asyncio.ensure_future(aside.dispatch(call("echo", value=number))))
        await laid_aside(client, number + 1)
    client.rpush(LOOP, *await laid_aside(client, 10))
    results = [turn[0].data for turn in await asyncio.gather(*turns)]
    assert results == list(range(10))


async def test_a_message_delivered_many_times_runs_once(
    aside: Dispatcher, dispatcher: Dispatcher, client: "redis.Redis", tmp_path: Path
) -> None:
    """While the call runs, and after it was answered: the claim decides, not the delivery."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    turn = asyncio.ensure_future(
        aside.dispatch(call("hold", gate=str(gate), trace=str(trace), label="it"))
    )
    (message,) = await laid_aside(client, 1)
    client.lpush(LOOP, *[message] * 20)
    await whoami(dispatcher)
    await eventually(trace.exists, "the call runs")
    gate.touch()
    assert (await turn)[0].data == "it"
    client.lpush(LOOP, *[message] * 20)
    await whoami(dispatcher)
    await whoami(dispatcher)  # what came before is claimed or refused
    assert trace.read_text() == "start it\n"


async def test_a_cancelled_call_whose_record_and_message_are_restored_does_not_run(
    aside: Dispatcher, dispatcher: Dispatcher, client: "redis.Redis", tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    asked = call("count", file=str(trace))
    turn = asyncio.ensure_future(aside.dispatch(asked, session="restored", turn="t"))
    (message,) = await laid_aside(client, 1)
    records = {key: client.dump(key) for key in client.scan_iter(RedisKeys().call("*"))}
    assert await aside.cancel("restored") == 1
    assert (await turn)[0].executed == "no"
    for key, value in records.items():
        client.restore(key, 60_000, value, replace=True)
    client.lpush(LOOP, message)
    await whoami(dispatcher)
    await whoami(dispatcher)  # what came before is claimed or refused
    assert not trace.exists()


async def test_a_message_from_before_its_record_runs_nothing(
    aside: Dispatcher, dispatcher: Dispatcher, client: "redis.Redis", tmp_path: Path
) -> None:
    """Replayed when the record is gone, as after a loss of data."""
    trace = tmp_path / "trace"
    turn = asyncio.ensure_future(aside.dispatch(call("count", file=str(trace))))
    (message,) = await laid_aside(client, 1)
    records = list(client.scan_iter(RedisKeys().call("*")))
    client.delete(*[key for key in records if client.hget(key, "state") == b"open"])
    client.lpush(LOOP, message)
    await whoami(dispatcher)
    await eventually(lambda: not client.llen(LOOP), "the queue is empty")
    assert not trace.exists()
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)


# --- sound, and held


class Held(NamedTuple):
    """A worker with one slot that runs a call, and holds the message of another."""

    fleet: LocalFleet
    client: "redis.Redis"
    turns: list[asyncio.Task[Any]]
    gate: Path
    trace: Path


@contextlib.asynccontextmanager
async def a_held_message(tmp_path: Path, **settings: Any) -> AsyncIterator[Held]:
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    with fleets.running("tests.fleets.road", slots_loop=1, **settings) as fleet:
        assert fleet.settings.redis_url is not None
        with redis.Redis.from_url(fleet.settings.redis_url) as client:
            async with fleets.connected(fleet) as dispatcher:
                turns = [
                    asyncio.create_task(
                        dispatcher.dispatch(call("hold", str(n), gate=str(gate), trace=str(trace)))
                    )
                    for n in range(2)
                ]
                await eventually(trace.exists, "the first call runs")
                await eventually(lambda: not client.llen(LOOP), "the second message is held")
                yield Held(fleet, client, turns, gate, trace)


@pytest.mark.long
async def test_a_message_that_a_busy_worker_holds_survives_its_broker_connection(
    tmp_path: Path,
) -> None:
    """The server has no copy of it."""
    async with a_held_message(tmp_path) as held:
        before = _taking(held.client)
        assert not list(held.client.scan_iter("*unacked*"))
        for number in before:
            held.client.client_kill_filter(_id=number)
        await eventually(lambda: _taking(held.client) - before, "the worker is back", 20.0)
        held.gate.touch()
        assert all(turn.ok for turn in await asyncio.gather(*held.turns))
        assert held.trace.read_text().count("start") == 2


@pytest.mark.long
async def test_a_worker_that_stops_puts_back_what_it_holds(tmp_path: Path) -> None:
    async with a_held_message(tmp_path, drain_timeout=0.5) as held:
        for pid in held.fleet.worker_pids:
            os.kill(pid, signal.SIGTERM)
        await eventually(lambda: _put_back(held.client), "it is put back", 20.0)
        for element in held.client.lrange(LOOP, 0, -1):
            MessageValidator(1 << 20).check_element(element)
        for turn in held.turns:
            turn.cancel()
        await asyncio.gather(*held.turns, return_exceptions=True)


def _put_back(client: "redis.Redis") -> bool:
    """Whether a message on the queue was delivered before; dispatchers send new ones."""
    return any(b'"redelivered": true' in element for element in client.lrange(LOOP, 0, -1))


def _taking(client: "redis.Redis") -> set[str]:
    """The connections that take messages."""
    return {one["id"] for one in client.client_list() if one["cmd"] == "brpop"}
