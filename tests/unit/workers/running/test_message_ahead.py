"""A message that is accepted before Celery has noted it."""

import asyncio
import threading

import pytest

from toolpool.workers.running.claimed_call import MessageAhead


@pytest.mark.parametrize("noted_first", [True, False])
async def test_it_is_acknowledged_once_when_celery_has_noted_it_and_its_calls_are_decided(
    noted_first: bool,
) -> None:
    acknowledged: list[int] = []
    message = MessageAhead(b"signed")
    steps = [lambda: message.noted(lambda: acknowledged.append(1)), message.acknowledge]
    first, second = steps if noted_first else reversed(steps)
    first()
    assert acknowledged == []
    second()
    assert acknowledged == [1]


async def test_celery_waits_until_a_call_that_takes_no_time_has_ended() -> None:
    message, ended = MessageAhead(b"signed"), threading.Event()
    waiting = asyncio.create_task(asyncio.to_thread(message.wait, 60))

    async def call() -> None:
        await asyncio.sleep(0)
        ended.set()

    task = asyncio.create_task(call())
    message.acknowledge()
    await waiting
    assert ended.is_set()
    await task


async def test_celery_does_not_wait_longer_for_a_message_whose_calls_find_no_slot() -> None:
    await asyncio.to_thread(MessageAhead(b"signed").wait, 0.001)
