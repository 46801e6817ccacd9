"""What a worker tells of calls under limits: it is told again while the server is away."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.waiting import eventually
from toolpool.contract.errors import CommandRejected, ServerError, ServerUnavailable
from toolpool.contract.ledger.rate_counters import (
    MemoryRates,
    RateRelease,
    RateRequest,
    RateVerdict,
    start_of,
)
from toolpool.contract.rates import AT_ONCE, Limit, Rate, rate_of
from toolpool.workers.running import limit_notices
from toolpool.workers.running.limit_notices import LimitNotices

HOURLY = Limit("hourly", rate_of("1/h"), "tool")
RUNNING = Limit("running", Rate(1, AT_ONCE), "at_once")
LIMITS = (HOURLY, RUNNING)


class Rates(MemoryRates):
    """Places on a server that is away for the next few steps."""

    def __init__(self) -> None:
        super().__init__(lambda _: False)
        self.away = 0
        self.fault: ServerError = ServerUnavailable("rate", sent=True)

    async def take(
        self, notes: Sequence[RateRelease], asks: Sequence[RateRequest], **more: Any
    ) -> list[RateVerdict]:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise self.fault
        return await super().take(notes, asks, **more)

    def members(self, limit: Limit) -> set[str]:
        return set(self._taken.get(limit.name, ()))


async def test_a_call_that_was_claimed_and_not_run_has_no_place_any_more() -> None:
    rates = Rates()
    starts = LimitNotices(rates, "w")
    assert rates.may_start("k", "n", LIMITS)
    starts.never_begun("k", "n", LIMITS)
    await eventually(lambda: not rates.members(HOURLY) | rates.members(RUNNING), "it has none")


async def test_a_start_counts_from_its_report_and_the_end_frees_its_place() -> None:
    rates = Rates()
    starts = LimitNotices(rates, "w")
    assert rates.may_start("k", "n", LIMITS)
    starts.begun("k", "n", LIMITS)
    await starts.ended("k", "n", LIMITS)
    assert (rates.members(HOURLY), rates.members(RUNNING)) == ({start_of("k", "n")}, set())
    left = rates._taken[HOURLY.name][start_of("k", "n")] - time.monotonic()
    assert 3590 < left <= 3600


async def test_what_the_server_did_not_accept_is_sent_again() -> None:
    rates = Rates()
    starts = LimitNotices(rates, "w")
    assert rates.may_start("k", "n", LIMITS)
    rates.away = 3
    starts.begun("k", "n", LIMITS)
    await starts.ended("k", "n", LIMITS)
    await eventually(lambda: rates.members(RUNNING) == set(), "it is told")
    assert rates.away == 0


async def test_what_the_server_rejected_for_a_while_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limit_notices, "_REJECTED_PAUSE_SECONDS", 0.01)
    rates = Rates()
    starts = LimitNotices(rates, "w")
    assert rates.may_start("k", "n", LIMITS)
    rates.away, rates.fault = 3, CommandRejected("rate", "NOPERM")
    await starts.ended("k", "n", LIMITS)
    await eventually(lambda: rates.members(RUNNING) == set(), "it is told")
    assert rates.away == 0


async def test_a_place_that_the_server_brings_back_is_freed_again() -> None:
    """It had lost its last writes: nobody else knows that the call has ended."""
    rates = Rates()
    starts = LimitNotices(rates, "w")
    assert rates.may_start("k", "n", LIMITS)
    await starts.ended("k", "n", LIMITS)
    assert rates.may_start("k", "n", (RUNNING,))
    starts.send_again()
    await eventually(lambda: not rates.members(RUNNING), "it is free")
