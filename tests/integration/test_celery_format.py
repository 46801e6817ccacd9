"""What we write as a Celery message is one: Celery's own consumer, in a plain worker, takes it.

`dispatcher/transports/celery_message.py` writes task message protocol 2 by hand; this is the
contract that holds it to Celery, to be run against every new version of Celery and kombu.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.contract.samples import BATCH, ENVELOPE
from tests.processes import python
from tests.waiting import wait_until
from toolpool.contract import encoding
from toolpool.contract.redis_keys import BATCH_TASK, RedisKeys
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.transports import celery_message
from toolpool.dispatcher.transports.kombu import Broker

QUEUE = RedisKeys().queue("default", RunIn.LOOP)
RECORDED = "recorded"
SIGNED = ENVELOPE.encode_batch(BATCH)

PLAIN_WORKER = """
import json, sys
import redis
from celery import Celery

broker, url, task, queue, pool = sys.argv[1:]
app = Celery("plain", broker=broker, set_as_current=False)
client = redis.Redis.from_url(url)

@app.task(name=task, bind=True)
def record(self, *args, **kwargs):
    request = self.request
    client.rpush("recorded", json.dumps({
        "args": args, "kwargs": kwargs, "id": request.id, "root_id": request.root_id,
        "correlation_id": request.correlation_id, "ignore_result": request.ignore_result,
        "argsrepr": request.argsrepr, "queue": request.delivery_info["routing_key"],
    }))

app.conf.worker_redirect_stdouts = False
app.conf.task_acks_late = True
app.worker_main(["worker", "-P", pool, "-c", "1", "-Q", queue, "--loglevel", "ERROR",
                 "--without-gossip", "--without-mingle", "--without-heartbeat"])
"""


@pytest.fixture(params=["solo", "threads"])
def plain_worker(
    request: pytest.FixtureRequest, redis_url: str, broker_url: str
) -> Iterator["redis.Redis"]:
    """A plain Celery worker that records what it is given; a client of its server."""
    with redis.Redis.from_url(redis_url) as client:
        with python(PLAIN_WORKER, broker_url, redis_url, BATCH_TASK, QUEUE, request.param):
            yield client


def publish(way: str, client: "redis.Redis", broker_url: str, signed: bytes) -> None:
    """By our own hand onto the Redis list, or the portable way through kombu."""
    if way == "by hand":
        client.lpush(QUEUE, celery_message.redis_message(QUEUE, signed))
        return

    async def through_kombu() -> None:
        broker = Broker(broker_url)
        await broker.open(5.0)
        await broker.publish(QUEUE, signed, give_up_at=time.monotonic() + 5.0)
        await broker.close()

    asyncio.run(through_kombu())


def test_celerys_own_worker_receives_the_batch(
    plain_worker: "redis.Redis", broker_url: str
) -> None:
    """Both ways, whole and unchanged, and acknowledged: nothing stays behind."""
    other = ENVELOPE.encode_batch(BATCH) + "ünïcode \U0001f600".encode()
    publish("by hand", plain_worker, broker_url, SIGNED)
    publish("by hand", plain_worker, broker_url, other)
    publish("through kombu", plain_worker, broker_url, SIGNED)
    wait_until(lambda: plain_worker.llen(RECORDED) == 3, "the worker ran the task", 30.0)
    recorded = [json.loads(item) for item in plain_worker.lrange(RECORDED, 0, -1)]
    assert [record["args"] for record in recorded] == [
        [SIGNED.decode()], [other.decode()], [SIGNED.decode()],
    ]  # fmt: skip
    for record in recorded:
        assert record["kwargs"] == {}
        assert record["id"] == record["root_id"] == record["correlation_id"]
        assert record["ignore_result"] is True
        assert record["queue"] == QUEUE
        assert record["argsrepr"] == "-", "arguments would show in Celery's logs and events"
    assert len({record["id"] for record in recorded}) == 3
    wait_until(lambda: not plain_worker.exists("unacked"), "the messages are acknowledged")


def test_the_element_has_the_form_that_kombu_writes(redis_url: str, broker_url: str) -> None:
    """Field by field; kombu also wraps the body in base64, which it need not."""
    with redis.Redis.from_url(redis_url) as client:
        publish("by hand", client, broker_url, SIGNED)
        ours = _element(client)
        publish("through kombu", client, broker_url, SIGNED)
        theirs = _element(client)
        publish("by hand", client, broker_url, SIGNED)
        another = _element(client)
    assert another["properties"]["delivery_tag"] != ours["properties"]["delivery_tag"]
    assert theirs["properties"].pop("body_encoding") == "base64"
    assert ours.keys() == theirs.keys()
    assert ours["properties"].keys() == theirs["properties"].keys()
    for key in ("delivery_info", "delivery_mode", "priority"):
        assert ours["properties"][key] == theirs["properties"][key]
    assert ours["content-type"] == theirs["content-type"]
    assert ours["content-encoding"] == theirs["content-encoding"]
    ids = ("id", "root_id")
    assert {k: v for k, v in ours["headers"].items() if k not in ids} == {
        k: v for k, v in theirs["headers"].items() if k not in ids
    }


def _element(client: "redis.Redis") -> Any:
    return encoding.decode(client.lpop(QUEUE))
