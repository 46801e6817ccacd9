"""The places under rate limits: the Lua and its twin in memory do the same, whatever is asked."""

import time
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.ledger.servers import NAMES, RealRedis
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import LIMITED, Claim
from toolpool.contract.ledger.rate_counters import (
    MemoryRates,
    RateRelease,
    RateRequest,
    RateVerdict,
    RedisRates,
    start_of,
)
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.rates import AT_ONCE, Limit, Rate

SHORT = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # time passes: what failed is told as it came
)
_PAST_SECONDS = 0.004
"""Until a window or a place of a thousandth of a second is over, on the server's clock too."""


class Instant(Rate):
    """A window that is over before the next step."""

    @property
    def seconds(self) -> float:
        return 0.001


LIMITS = (
    Limit("hourly", Rate(2, "h"), ""),
    Limit("daily", Rate(3, "day"), ""),
    Limit("minutely", Rate(1, "min"), ""),
    Limit("instant", Instant(2, "s"), ""),
    Limit("running", Rate(2, AT_ONCE), ""),
)
MEMBERS = tuple("abcdefg")

members = st.sampled_from(MEMBERS)
under = st.lists(st.sampled_from(LIMITS), min_size=1, max_size=3, unique=True).map(tuple)
holds = st.sampled_from((0.001, 900.0))
asks = st.builds(
    lambda name, hold, limits: RateRequest(name, name, hold, limits), members, holds, under
)
notes = st.builds(RateRelease, members, under, st.just(False))


class PlacesMachine(RuleBasedStateMachine):
    """The same steps on both."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.real = RealRedis(self.url)
        self.redis = RedisRates(self.real._steps, NAMES, queue_timeout=30.0)
        self.known: set[str] = set()
        self.under_way: dict[str, bool] = {}
        self.memory = MemoryRates(self.known.__contains__, self.under_way.get)
        self.held: dict[str, set[str]] = {limit.name: set() for limit in LIMITS}
        """Who has a place under each limit of more than a moment."""

    @rule(told=st.lists(notes, max_size=3), asked=st.lists(asks, max_size=6), again=st.booleans())
    def take(self, told: list[RateRelease], asked: list[RateRequest], again: bool) -> None:
        """A step, and the same step once more as a client sends it that lost the answer."""
        answers = self._both(told, asked)
        repeated = self._both([], asked) if again else answers
        for ask, answer, other in zip(asked, answers, repeated, strict=True):
            short = any(each.hold < 1.0 for each in asked if each.member == ask.member)
            if answer.may_go and not short:
                assert other.may_go or self._is_told_away(told, ask)

    @staticmethod
    def _is_told_away(told: list[RateRelease], ask: RateRequest) -> bool:
        return any(note.member == ask.member for note in told)

    def _both(self, told: list[RateRelease], asked: list[RateRequest]) -> list[RateVerdict]:
        soon = time.monotonic() + 10.0
        now = time.time()
        real = self.real.run(self.redis.take(told, asked, now=now, give_up_at=soon))
        twin = self.real.run(self.memory.take(told, asked, now=now, give_up_at=soon))
        time.sleep(_PAST_SECONDS)
        assert [self._said(verdict) for verdict in real] == [self._said(v) for v in twin]
        for one, other in zip(real, twin, strict=True):
            assert abs(one.seconds - other.seconds) < 30.0
        self._count(told, asked, real)
        return list(real)

    @staticmethod
    def _said(verdict: RateVerdict) -> tuple[bool, bool, str]:
        return verdict.may_go, verdict.is_known, verdict.limit.name if verdict.limit else ""

    def _count(
        self, told: list[RateRelease], asked: list[RateRequest], answers: list[RateVerdict]
    ) -> None:
        """What was granted never exceeds a limit."""
        for note in told:
            for limit in note.limits:
                if not note.started:
                    self.held[limit.name].discard(note.member)
        for ask, answer in zip(asked, answers, strict=True):
            if answer.may_go and not answer.is_known:
                for limit in ask.limits:
                    held = self.held[limit.name]
                    if limit.name not in ("instant", "running") and ask.member not in held:
                        assert len(held) < limit.rate.most
                        held.add(ask.member)

    @rule(
        member=members, limits=under, again=st.booleans(), ends=st.booleans(), lower=st.booleans()
    )
    def start(
        self, member: str, limits: tuple[Limit, ...], again: bool, ends: bool, lower: bool
    ) -> None:
        """A worker claims the call, which needs a place under each of its limits.

        `lower`: the worker knows lower limits than the dispatchers.
        """
        self.open_record(member, anew=False, state="open")
        nonce, ledger = new_nonce(), RedisLedger(self.real._steps, NAMES)
        read_in, _ = self.real.run(ledger.switches())
        self.real._sync.hset(NAMES.call(member), "epoch", read_in.partition(" ")[0])
        own = tuple(_lowered(limit) for limit in limits) if lower else limits
        claim = Claim(member, 1, nonce, own)
        may_start = self.memory.may_start(member, nonce, own)
        for _ in range(1 + again):  # its client repeats it where it lost the answer
            soon = time.monotonic() + 10.0
            claiming = ledger.claim([claim], worker="w", give_up_at=soon, now=time.time())
            [answer] = self.real.run(claiming)
            assert (answer != LIMITED) is may_start
        time.sleep(_PAST_SECONDS)
        if not may_start:
            for limit in limits:
                if member not in self.memory._taken[limit.name]:
                    self.held[limit.name].discard(member)
            return
        self.under_way[member] = False  # it is claimed: a place that waits for its start is free
        for limit in own:
            held = self.held[limit.name]
            held.discard(member)
            held.add(start_of(member, nonce))
            if limit.name not in ("instant", "running"):
                assert sum("#" in name for name in held) <= limit.rate.most
                assert lower or len(held) <= limit.rate.most
        windows = tuple(limit for limit in limits if limit.rate.seconds)
        running = tuple(limit for limit in limits if not limit.rate.seconds)
        self._both([RateRelease(start_of(member, nonce), windows, started=True)], [])
        if ends:
            self._both([RateRelease(start_of(member, nonce, "w"), running)], [])

    @rule(
        member=members,
        anew=st.booleans(),
        state=st.sampled_from(("open", "overdue", "claimed", "settled")),
    )
    def open_record(self, member: str, anew: bool, state: str) -> None:
        """A call has a record; one that was refused is started when it is asked for again."""
        key, client = NAMES.call(member), self.real._sync
        client.delete(key)
        until = 0 if state == "overdue" else round((time.time() + 900.0) * 1000)
        fields: dict[str, Any] = {"state": state.replace("overdue", "open"), "until": until}
        fields |= {"attempt": 1, "rerun": 1, "deadline": until}
        client.hset(key, mapping={**fields, "worker": "w", **({"anew": "1"} if anew else {})})
        client.pexpire(key, 100_000)
        client.set(NAMES.worker("w"), b"lease", px=100_000)
        self.known.discard(member) if anew else self.known.add(member)
        self.under_way[member] = state == "open"

    @rule(member=members)
    def end_record(self, member: str) -> None:
        """The record's time is over."""
        self.real._sync.delete(NAMES.call(member))
        self.known.discard(member)
        self.under_way.pop(member, None)

    @rule(limit=st.sampled_from(LIMITS), kind=st.sampled_from(("string", "list", "scores")))
    def put_garbage(self, limit: Limit, kind: str) -> None:
        """Somebody without sense writes to the server."""
        key, client = NAMES.rate(limit.name), self.real._sync
        if kind == "scores" and limit.rate.seconds and client.type(key) in (b"none", b"zset"):
            stray = {"x y": float("inf"), "\0": 1e300, "z": -5.0, "": 9e15}
            client.zadd(key, stray)  # type: ignore[arg-type]
            return
        client.delete(key)
        client.set(key, b"\xff") if kind == "string" else client.rpush(key, b"x")
        self.memory._taken.pop(limit.name, None)
        self.held[limit.name].clear()

    @rule()
    def lose_everything(self) -> None:
        """FLUSHALL."""
        self.real._sync.flushall()
        self.memory._taken.clear()
        self.known.clear()
        self.under_way.clear()
        for held in self.held.values():
            held.clear()

    def teardown(self) -> None:
        self.real._sync.flushall()
        self.real.stop()


@pytest.mark.long
def test_the_places_are_given_as_the_twin_in_memory_gives_them(redis_url: str) -> None:
    """R60: repeated steps, records, lost data and garbage in between."""
    machine: Any = type("Machine", (PlacesMachine,), {"url": redis_url})
    run_state_machine_as_test(machine, settings=SHORT)


def _lowered(limit: Limit) -> Limit:
    return limit._replace(rate=limit.rate._replace(most=max(1, limit.rate.most - 1)))


def test_a_worker_that_knows_a_lower_limit_starts_no_more_calls_than_that(redis_url: str) -> None:
    """Whatever places its dispatchers have given, by the limit of an earlier release."""
    real = RealRedis(redis_url)
    redis, ledger = (
        RedisRates(real._steps, NAMES, queue_timeout=30.0),
        RedisLedger(real._steps, NAMES),
    )
    for unit in ("h", AT_ONCE):
        theirs, ours = (Limit(unit, Rate(most, unit), "") for most in (6, 2))
        asked = [RateRequest(f"{unit}{n}", "", 60.0, (theirs,)) for n in range(6)]
        until, now = time.monotonic() + 10.0, time.time()
        granted = real.run(redis.take([], asked, now=now, give_up_at=until))
        assert all(answer.may_go for answer in granted)
        real.open([ask.member for ask in asked], f"o{unit}", "d0", True, False, b"m")
        claims = [Claim(ask.member, 1, f"c{ask.member}", (ours,)) for ask in asked]
        found = real.run(ledger.claim(claims, worker="w", give_up_at=until, now=now))
        assert [answer == LIMITED for answer in found] == [False] * 2 + [True] * 4
        again = [RateRequest(ask.member, "", 60.0, (ours,)) for ask in asked[2:]]
        waits = real.run(redis.take([], again, now=now, give_up_at=until))
        assert not any(answer.may_go for answer in waits), "they lost the places of the other limit"
    real.stop()


def test_a_place_comes_free_by_itself(redis_url: str) -> None:
    """Of a dispatcher that took it and is no more, as soon as its call could not be started."""
    real = RealRedis(redis_url)
    limit = Limit("one", Instant(1, "s"), "")
    redis = RedisRates(real._steps, NAMES, queue_timeout=30.0)
    for rates in (MemoryRates(lambda record: False), redis):
        for member in "abc":
            asked = [RateRequest(member, member, 0.001, (limit,))]
            soon, now = time.monotonic() + 10.0, time.time()
            (answer,) = real.run(rates.take([], asked, now=now, give_up_at=soon))
            assert answer.may_go
            time.sleep(_PAST_SECONDS)
    assert real._sync.pttl(NAMES.rate("one")) > 0, "nor does its key stay for ever"
    real.stop()


def test_a_process_with_a_shorter_window_forgets_no_start_under_a_longer_one(
    redis_url: str,
) -> None:
    """Such as a dispatcher of an earlier release."""
    real = RealRedis(redis_url)
    redis = RedisRates(real._steps, NAMES, queue_timeout=30.0)
    ours, theirs = (Limit("one", Rate(1, unit), "") for unit in ("day", "s"))

    def may_go(member: str, limit: Limit) -> bool:
        asked = [RateRequest(member, member, 1.0, (limit,))]
        until = time.monotonic() + 10.0
        (answer,) = real.run(redis.take([], asked, now=time.time(), give_up_at=until))
        return bool(answer.may_go)

    assert [may_go("a", ours), may_go("b", theirs), may_go("c", ours)] == [True, False, False]
    real.stop()


@pytest.mark.parametrize("error", [-1.5, 1.5])
def test_a_process_whose_clock_is_a_little_off_counts_by_the_same_clock_as_the_others(
    redis_url: str, error: float
) -> None:
    """Such as a worker to which answers of the server take longer than its requests."""
    real = RealRedis(redis_url)
    redis = RedisRates(real._steps, NAMES, queue_timeout=30.0)
    limit = Limit("one", Rate(1, "s"), "")
    until = time.monotonic() + 10.0
    started = RateRelease("a#n", (limit,), started=True)
    real.run(redis.take([started], [], now=time.time() + error, give_up_at=until))
    ((_, ends_ms),) = real._sync.zrange(NAMES.rate("one"), 0, -1, withscores=True)
    assert abs(ends_ms / 1000 - 1.0 - time.time()) < 1.0
    real.stop()
