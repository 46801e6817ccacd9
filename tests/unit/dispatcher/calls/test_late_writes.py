"""Writes that were answered and may still run: how long their end is waited for."""

import asyncio

from tests.unit.dispatcher.samples import pending, turns
from tests.waiting import eventually
from toolpool.contract.errors import ServerUnavailable
from toolpool.dispatcher.calls.late_writes import LateWrites

LONG = 60.0
"""Longer than any test."""


def late_writes(*noted: str, lease_ttl: float = 8.0) -> LateWrites:
    """Of these a worker noted on the server that they ended."""

    async def has_ended(key: str) -> bool:
        return key in noted

    return LateWrites(lease_ttl=lease_ttl, has_ended=has_ended)


async def test_the_notification_of_an_end_is_awaited_for_two_leases() -> None:
    """By then a worker that lost its lease has stopped what it ran."""
    assert late_writes().patience == 16.0


async def test_a_write_without_a_watching_dispatcher_counts_as_ended() -> None:
    assert await late_writes().wait(pending("k"), 0.0)


async def test_a_write_has_ended_when_its_worker_says_so() -> None:
    endings, call = late_writes(), pending("k")
    endings.watch(call)
    wait = asyncio.create_task(endings.wait(call, LONG))
    await turns()
    assert not wait.done()
    endings.record_ends(["another", "k"])
    await turns()
    assert wait.done()
    assert await wait is True


async def test_an_end_received_before_the_first_asker_counts() -> None:
    endings, call = late_writes(), pending("k")
    endings.watch(call)
    endings.record_ends(["k"])
    assert await endings.wait(call, LONG)


async def test_an_asker_past_its_deadline_learns_that_the_end_was_not_observed() -> None:
    endings, call = late_writes(), pending("k")
    endings.watch(call)
    assert not await endings.wait(call, 0.0)
    assert not await endings.wait(call, -1.0)


async def test_the_end_of_one_write_says_nothing_about_another() -> None:
    endings, first, second = late_writes(), pending("a"), pending("b")
    endings.watch(first)
    endings.watch(second)
    endings.record_ends(["a"])
    assert await endings.wait(first, LONG)
    assert not await endings.wait(second, 0.0)


async def test_a_notification_of_an_unwatched_write_is_ignored() -> None:
    """It may have been answered by another dispatcher, or long ago."""
    endings, call = late_writes(), pending("k")
    endings.record_ends(["k"])
    assert endings._unended == {}, "nothing is kept of it"
    endings.watch(call)
    assert not await endings.wait(call, 0.0)


async def test_nothing_is_stored_of_a_write_without_possible_waiters() -> None:
    endings, call = late_writes(lease_ttl=0.001), pending("k")
    endings.watch(call)
    assert not await endings.wait(call, 0.0), "it is watched for longer than anybody waits"
    await eventually(lambda: endings.wait(call, 0.0), "it is forgotten")


async def test_a_write_whose_end_was_noted_has_ended() -> None:
    """Word of it went to whoever was answered first."""
    endings, call = late_writes("k"), pending("k")
    endings.watch(call)
    assert await endings.wait(call, LONG)


async def test_a_server_that_cannot_be_asked_says_nothing() -> None:
    async def away(key: str) -> bool:
        raise ServerUnavailable(key, sent=True)

    endings, call = LateWrites(lease_ttl=8.0, has_ended=away), pending("k")
    endings.watch(call)
    assert not await endings.wait(call, 0.0)
    endings.record_ends(["k"])
    assert await endings.wait(call, LONG)
