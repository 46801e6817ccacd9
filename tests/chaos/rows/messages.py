"""What nobody sent, what somebody sent twice, and what came in another order."""

import json
import re
import time
from ast import literal_eval
from collections.abc import Collection

from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.servers import Server
from toolpool.contract.envelope import Batch, CallMessage, Envelope
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.transports.celery_message import redis_message

_QUEUES = [RedisKeys().queue("default", run_in) for run_in in RunIn]
_HUGE = 50_000_000
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"')


@row("bad-messages", short=30, long=500)
async def bad_messages(scene: Scene) -> None:
    """Malformed, foreign, unsigned, replayed, 50 MB: each is dropped, and no worker ends."""
    server = await scene.server()
    settings = scene.settings(server.url)
    fleet = await scene.fleet(settings)
    pids = [await scene.off_loop(lambda worker=worker: worker.pid) for worker in fleet.workers]
    tap = _Tap(server)
    kinds = list(_KINDS)
    scene.rng.shuffle(kinds)

    async def push() -> Collection[str]:
        kind = kinds[scene.figures.faults % len(kinds)]
        queue = scene.rng.choice(_QUEUES)
        replayed = tap.some(scene) if kind == "replayed" else b""
        await scene.off_loop(lambda: tap.push(queue, replayed or _KINDS[kind](queue)))
        return [queue.rpartition(".")[2]]

    async with scene.load(settings):
        await scene.off_loop(lambda: tap.listen(1.0))
        await scene.repeat(push, 0.01, 0.2)
    after = [await scene.off_loop(lambda worker=worker: worker.pid) for worker in fleet.workers]
    if pids != after:
        scene.figures.problems.append("a message ended a worker")


@row("duplicates", short=300, long=5000)
async def duplicates(scene: Scene) -> None:
    """The same messages are published again, up to three times and in another order."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)
    tap = _Tap(server)
    async with scene.load(settings):
        while scene.figures.faults < scene.faults:
            await scene.off_loop(lambda: tap.listen(0.5))
            again = [m for m in tap.take() for _ in range(scene.rng.randrange(4))]
            scene.rng.shuffle(again)
            for queue, message in again:
                await scene.off_loop(lambda q=queue, m=message: tap.push(q, m))
                scene.fault()
        await scene.recovered(ALL_MODES)


class _Tap:
    """Sees what is published, with MONITOR, and publishes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: list[tuple[str, bytes]] = []

    def listen(self, seconds: float) -> None:
        """Note the messages of so long."""
        until = time.monotonic() + seconds
        with self._server.client() as client, client.monitor() as monitor:
            while time.monotonic() < until:  # there is always a lease renewed, or a queue looked at
                self._note(monitor.connection.read_response(disable_decoding=True))

    def take(self) -> list[tuple[str, bytes]]:
        """What was seen since the last time."""
        seen, self._seen = self._seen, []
        return seen

    def some(self, scene: Scene) -> bytes:
        """One of what was seen."""
        return scene.rng.choice(self._seen)[1]

    def push(self, queue: str, message: bytes) -> None:
        """Publish as it is."""
        with self._server.client() as client:
            client.lpush(queue, message)

    def _note(self, line: bytes) -> None:
        """`1339518083.107412 [0 lua] "LPUSH" "queue" "message"`, quoted as Python quotes bytes."""
        words = [literal_eval(f"b{word}") for word in _WORD.findall(line.decode())]
        if words[0] == b"LPUSH" and words[1].decode() in _QUEUES:
            self._seen.append((words[1].decode(), words[2]))


def _signed_by_nobody_known(queue: str) -> bytes:
    call = CallMessage(key="x", id="x", tool="write_loop", digest="", arguments={"key": "foreign"})
    batch = Batch(id="b", reply="r", calls=(call,))
    return redis_message(queue, Envelope(Keyring([generate_key()])).encode_batch(batch))


def _without(field: str) -> "dict[str, object]":
    message = json.loads(redis_message(_QUEUES[0], b"x"))
    del message[field]
    return message  # type: ignore[no-any-return]


def _with(**fields: object) -> bytes:
    return json.dumps({**json.loads(redis_message(_QUEUES[0], b"x")), **fields}).encode()


_KINDS = {
    "not json": lambda queue: b"\x00\xff not json",
    "empty": lambda queue: b"",
    "another form": lambda queue: b'{"hello": "world"}',
    "a number": lambda queue: b"7",
    "no body": lambda queue: json.dumps(_without("body")).encode(),
    "no headers": lambda queue: json.dumps(_without("headers")).encode(),
    "no properties": lambda queue: json.dumps(_without("properties")).encode(),
    "pickle": lambda queue: _with(**{"content-type": "application/x-python-serialize"}),
    "bad body": lambda queue: _with(body="]["),
    "unknown task": lambda queue: _with(headers={"task": "os.system", "id": "1", "lang": "py"}),
    "unsigned": lambda queue: redis_message(queue, b'{"id": "b", "calls": []}'),
    "foreign key": _signed_by_nobody_known,
    "50 MB": lambda queue: redis_message(queue, b"x" * _HUGE),
    "replayed": lambda queue: b"",
}
