"""A broker that is not the records' Redis: records in one place, the queue in another.

Another database of the same server stands in for it, reached as any broker is: by Celery and kombu
alone, with `broker_url`.
"""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from tests.amqp_refusal import refusing_broker
from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.fleets import road
from tests.integration.fleet import call
from tests.integration.test_deadlines import worker
from tests.waiting import eventually
from toolpool import Dispatcher, SigningKeyMissing
from toolpool.checks import Level, check_broker
from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import BrokerUnreachable
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key
from toolpool.contract.spec import RunIn
from toolpool.workers.catalog_publisher import CatalogPublisher

LOOP = RedisKeys().queue("default", RunIn.LOOP)

# kombu keeps the sockets of its failed attempts in the frames of their tracebacks.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    """Here, where the warnings about them are expected, and not in whichever test comes next."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"), listen="port")
    yield started
    started.close()


@pytest.fixture(scope="module")
def settings(server: Server) -> Settings:
    return Settings(
        redis_url=server.url,
        broker_url=f"redis://127.0.0.1:{server.port}/1",
        signing_key=SecretStr(generate_key()),
        queue_timeout=5.0,
    )


@pytest.fixture
def broker(settings: Settings) -> Iterator["redis.Redis"]:
    assert settings.broker_url is not None
    with redis.Redis.from_url(settings.broker_url) as client:
        yield client


@pytest.fixture
def records(server: Server) -> Iterator["redis.Redis"]:
    with server.client() as client:
        yield client


@pytest.fixture
async def dispatcher(settings: Settings) -> AsyncIterator[Dispatcher]:
    with worker(settings):
        async with Dispatcher.connect(settings=settings) as connected:
            yield connected


async def test_calls_go_through_the_broker_and_records_stay_in_redis(
    dispatcher: Dispatcher, broker: "redis.Redis", records: "redis.Redis", tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    response = call("count", file=str(trace))
    turns = await asyncio.gather(
        *(dispatcher.dispatch(call("echo", value=number)) for number in range(200)),
        dispatcher.dispatch(response, session="s-1", turn="t-1"),
    )
    assert [turn[0].data for turn in turns] == [*range(200), "ran"]
    again = await dispatcher.dispatch(response, session="s-1", turn="t-1")
    assert (again[0].data, trace.read_text()) == ("ran", "ran\n")
    ours, theirs = (
        {key.decode().split(":")[0].split(".")[0] for key in client.scan_iter()}
        for client in (records, broker)
    )
    assert ours == {"toolpool"}, "no queue and nothing of kombu's beside the records"
    assert "toolpool:call" not in {key.decode()[:13] for key in broker.scan_iter()}
    assert theirs <= {"_kombu", "toolpool"}


async def test_a_call_waits_in_the_broker_for_a_worker_that_starts_later(
    settings: Settings, broker: "redis.Redis", records: "redis.Redis"
) -> None:
    envelope = Envelope(connection.keyring(settings))
    with connection.open_sync(settings) as client:
        CatalogPublisher(client, [road.echo.spec], envelope=envelope, settings=settings).stock(
            b"", time.time()
        )
    patient = settings.model_copy(update={"queue_timeout": 30.0})
    async with Dispatcher.connect(settings=patient) as dispatcher:
        turn = asyncio.ensure_future(dispatcher.dispatch(call("echo", value=1)))
        await eventually(lambda: broker.llen(LOOP) == 1, "the message is in the broker")
        assert records.llen(LOOP) == 0
        assert list(records.scan_iter(RedisKeys().call("*")))
        with worker(settings):
            assert (await turn)[0].data == 1


async def test_a_broker_that_is_away_is_said_at_once(settings: Settings) -> None:
    nowhere = settings.model_copy(
        update={"broker_url": "redis://127.0.0.1:1/0", "connect_timeout": 0.5}
    )
    with pytest.raises(BrokerUnreachable, match="check that it runs and that TOOLPOOL_BROKER_URL"):
        async with Dispatcher.connect(settings=nowhere):
            pass


async def test_a_broker_takes_a_key_of_your_own(tmp_path: Path) -> None:
    """Records behind a private socket do not make the broker private."""
    settings = Settings(redis_url=f"unix://{tmp_path}/s", broker_url="redis://127.0.0.1:1/0")
    with pytest.raises(SigningKeyMissing, match="toolpool keygen"):
        Dispatcher.connect(settings=settings)


async def test_a_broker_that_comes_back_gets_what_it_missed(
    settings: Settings, tmp_path: Path, records: "redis.Redis"
) -> None:
    """The record was noted before the broker was asked: it is no reason not to ask again."""
    broker = Server(tmp_path / "broker", listen="port")
    try:
        settings = settings.model_copy(
            update={"broker_url": broker.url, "connect_timeout": 0.5, "queue_timeout": 30.0}
        )
        with worker(settings):
            async with Dispatcher.connect(settings=settings) as dispatcher:
                assert (await dispatcher.dispatch(call("echo", value=0)))[0].ok
                known = set(records.scan_iter(RedisKeys().call("*")))
                broker.kill()
                asked = asyncio.ensure_future(dispatcher.dispatch(call("echo", value=1)))
                await eventually(
                    lambda: set(records.scan_iter(RedisKeys().call("*"))) > known, "it is noted"
                )
                await asyncio.to_thread(broker.start)
                result = (await asked)[0]
        assert (result.data, result.attempts) == (1, 1)
    finally:
        broker.close()


async def test_a_broker_that_goes_away_is_answered_by_the_deadline(tmp_path: Path) -> None:
    """Its record was opened; where that could be closed unclaimed, it certainly did not run."""
    records, broker = (Server(tmp_path / name, listen="port") for name in ("records", "broker"))
    try:
        settings = Settings(
            redis_url=records.url,
            broker_url=broker.url,
            signing_key=SecretStr(generate_key()),
            queue_timeout=2.0,  # longer than kombu tries
            connect_timeout=0.5,
        )
        envelope = Envelope(connection.keyring(settings))
        with connection.open_sync(settings) as client:
            CatalogPublisher(client, [road.echo.spec], envelope=envelope, settings=settings).stock(
                b"", time.time()
            )
        async with Dispatcher.connect(settings=settings) as dispatcher:
            broker.kill()
            result = (await dispatcher.dispatch(call("echo", value=1), timeout=0.5))[0]
            assert result.code in (Code.QUEUE_UNREACHABLE, Code.EXPIRED)
            expected = Executed.NO if result.code is Code.EXPIRED else Executed.UNKNOWN
            assert result.executed is expected
            assert result.duration < 2.0 + 0.5 + 1.0 + 1.0, "it was answered late"
            assert dispatcher.in_flight() == 0
    finally:
        records.close()
        broker.close()


async def test_a_password_that_the_broker_refuses_is_said_by_all_of_ours(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    with refusing_broker() as url:
        refused = settings.model_copy(update={"broker_url": url})
        with pytest.raises(BrokerUnreachable, match="refuses the user, password or virtual") as no:
            async with Dispatcher.connect(settings=refused):
                pass
        assert "wr0ng" not in str(no.value)
        [finding] = check_broker(refused)
        assert finding.level is Level.FAIL
        assert finding.remedy == "put the right ones into TOOLPOOL_BROKER_URL"
        log = tmp_path / "log"
        with log.open("w") as stderr:
            command = [sys.executable, "-m", "toolpool", "worker", "--run-in", "loop"]
            environment = environment_of(refused, Path(os.devnull))
            ended = await asyncio.to_thread(
                subprocess.run, command, env=environment, stderr=stderr, timeout=60, check=False
            )
        assert ended.returncode == 5
        assert "refuses the user, password or virtual host" in log.read_text()
        assert "wr0ng" not in log.read_text()
