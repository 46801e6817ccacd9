"""A batch as a Celery message: task message protocol 2, in kombu's form for Redis lists.

https://docs.celeryq.dev/en/stable/internals/protocol.html. Encoded here because publishing through
Celery costs several times as much; a contract test checks it with Celery's own consumer.
"""

from typing import Any

from toolpool.contract import encoding
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.redis_keys import BATCH_TASK

_EMBED: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def headers(batch_id: str) -> dict[str, Any]:
    """The headers of a task message. The representations hide the arguments from logs."""
    return {
        "lang": "py",
        "task": BATCH_TASK,
        "id": batch_id,
        "root_id": batch_id,
        "parent_id": None,
        "group": None,
        "argsrepr": "-",
        "kwargsrepr": "-",
        "ignore_result": True,
    }


def body(signed: bytes) -> bytes:
    """The message body: arguments, keyword arguments and embedded callbacks."""
    return encoding.encode([[signed.decode()], {}, _EMBED])


def redis_message(queue: str, signed: bytes) -> bytes:
    """The element that kombu's Redis transport expects on the list `queue`."""
    batch_id = new_nonce()
    return encoding.encode(
        {
            "body": body(signed).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers(batch_id),
            "properties": {
                "correlation_id": batch_id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "delivery_tag": batch_id,
            },
        }
    )
