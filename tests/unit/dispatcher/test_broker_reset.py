"""A connection to a separate broker that kombu loses between two of its steps."""

import time
from typing import Any

import pytest

from toolpool.contract.errors import ServerUnavailable
from toolpool.dispatcher.transports.kombu import Broker


class Torn:
    """What a kombu producer does whose channel has lost its connection."""

    def publish(self, *_: Any, **__: Any) -> None:
        raise AttributeError("'NoneType' object has no attribute 'client'")


async def test_it_is_an_outage_and_the_next_message_goes_over_a_new_one() -> None:
    broker = Broker("memory://")
    await broker.open(5.0)
    broker._producer = Torn()
    with pytest.raises(ServerUnavailable):
        await broker.publish("q", b"signed", give_up_at=time.monotonic() + 5)
    await broker.publish("q", b"signed", give_up_at=time.monotonic() + 5)
    await broker.close()
