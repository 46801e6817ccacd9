"""Circuits of the whole fleet (R32): what one opens is open for all, and one tries for all."""

from typing import Any

import pytest

from tests.unit.dispatcher.samples import services
from toolpool.contract.envelope import Envelope
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.signing import Keyring, generate_key
from toolpool.dispatcher.admission import breaker as breakers
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.calls.fleet_circuits import CircuitState, FleetCircuits
from toolpool.dispatcher.observer import Observer, Observers
from toolpool.dispatcher.transports.memory import MemoryTransport

FAILED = failure(Code.RAISED, "no", Executed.YES, worker="w")
WELL = Outcome(ok=True, worker="w")


class Clock:
    """The monotonic clock in the test's hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    held = Clock()
    monkeypatch.setattr(breakers, "time", held)
    return held


class Told(Observer):
    """Notes which circuits an observer is told of."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def circuit(self, tool: str, state: str) -> None:
        self.states.append(state)


class Side:
    """One dispatcher's breaker, in step with the others of its server."""

    def __init__(self, server: MemoryServer, clock: Clock, name: str, **settings: Any) -> None:
        changed = {
            "circuit_minimum_calls": 4,
            "circuit_reset_timeout": 30.0,
            "circuit_scope": "fleet",
        } | settings
        self.transport = MemoryTransport(server, f"reply:{name}")
        self.transport.server_time = lambda: clock.now + 5e8  # type: ignore[method-assign]
        held = services(self.transport, **changed)
        self.told = Told()
        observers = Observers()
        observers.add(self.told)
        self.breaker = Breaker(held.settings, observers)
        self.circuits = FleetCircuits(held, self.breaker)

    async def fail(self, times: int = 4) -> None:
        for _ in range(times):
            self.breaker.note("t", FAILED)
        await self.circuits.follow()

    def lets_through(self) -> bool:
        return self.breaker.retry_after("t") is None


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def sides(server: MemoryServer, clock: Clock) -> list[Side]:
    return [Side(server, clock, name) for name in "abc"]


async def follow(*sides: Side) -> None:
    for side in sides:
        await side.circuits.follow()


async def test_what_one_opened_is_open_for_all(sides: list[Side], clock: Clock) -> None:
    one, *others = sides
    await one.fail()
    await follow(*sides)
    clock.now += 10
    for side in sides:
        assert side.breaker.retry_after("t") == pytest.approx(20.0, abs=1.0)
        assert side.told.states == ["open"]
    assert others[0].breaker.retry_after("u") is None


async def test_one_of_the_fleet_lets_one_call_through(sides: list[Side], clock: Clock) -> None:
    await sides[0].fail()
    await follow(*sides)
    clock.now += 31
    assert [side.lets_through() for side in sides] == [False, False, False], "nobody has the right"
    await follow(*reversed(sides))
    assert [side.lets_through() for side in sides] == [False, False, True]
    assert [side.lets_through() for side in sides] == [False, False, False], "one call"
    await follow(*sides)
    assert not any(side.lets_through() for side in sides), "while it is tried"


@pytest.mark.parametrize("outcome", [WELL, FAILED], ids=["well", "failed"])
async def test_how_it_went_holds_for_all(sides: list[Side], clock: Clock, outcome: Outcome) -> None:
    await sides[0].fail()
    await follow(*sides)
    clock.now += 31
    assert not sides[1].lets_through()
    await follow(*sides)
    assert sides[1].lets_through()
    sides[1].breaker.note("t", outcome)
    clock.now += 1
    await follow(sides[1], *sides)
    assert [side.lets_through() for side in sides] == [outcome.ok] * 3
    if not outcome.ok:
        assert all((side.breaker.retry_after("t") or 0) > 25 for side in sides)


async def test_a_dispatcher_that_joins_learns_what_is_open(
    server: MemoryServer, sides: list[Side], clock: Clock
) -> None:
    """Even of a circuit whose pause is over: it does not try it beside the others."""
    await sides[0].fail()
    clock.now += 31
    late = Side(server, clock, "late")
    await late.circuits.follow()
    assert not late.lets_through()


async def test_the_right_to_try_passes_on(sides: list[Side], clock: Clock) -> None:
    """Of one that has no call to try it with, and of one that is no more."""
    await sides[0].fail()
    await follow(*sides)
    clock.now += 31
    assert not sides[0].lets_through()
    await follow(*sides)
    assert not sides[1].lets_through()
    clock.now += 4  # no call came here meanwhile that wanted it
    assert not sides[1].lets_through()
    await follow(*sides)
    assert sides[1].lets_through()
    for name, (holder, _) in list(sides[1].transport._server.trials.items()):
        sides[1].transport._server.trials[name] = (holder, 0.0)  # it died with it
    assert not sides[2].lets_through()
    await follow(sides[2])
    assert sides[2].lets_through()


async def test_a_call_that_says_nothing_leaves_the_right_where_it_is(
    sides: list[Side], clock: Clock
) -> None:
    await sides[0].fail()
    await follow(*sides)
    clock.now += 31
    assert not sides[0].lets_through()
    await follow(*sides)
    assert sides[0].lets_through()
    sides[0].breaker.note("t", failure(Code.WORKER_LOST, "", Executed.UNKNOWN))
    assert sides[0].lets_through()


async def test_an_unsigned_mark_opens_and_closes_no_circuit(
    server: MemoryServer, sides: list[Side], clock: Clock
) -> None:
    """R63: nor does an older state that somebody puts back."""
    stranger = Envelope(Keyring([generate_key()]))
    shut = CircuitState(
        prefix="toolpool", tool="t", open_until=clock.now + 6e8, set_at=clock.now + 6e8
    )
    server.circuits["x"] = stranger.encode(shut)
    server.circuits["y"] = b"garbage"
    await follow(*sides)
    assert all(side.lets_through() for side in sides)
    await sides[0].fail()
    (opened,) = [body for name, body in server.circuits.items() if name not in ("x", "y")]
    clock.now += 31
    assert not sides[0].lets_through()
    await follow(*sides)
    assert sides[0].lets_through()
    sides[0].breaker.note("t", WELL)
    clock.now += 1
    await follow(*sides, *sides)
    assert all(side.lets_through() for side in sides)
    for name in server.circuits:
        server.circuits[name] = opened
    await follow(*sides)
    assert all(side.lets_through() for side in sides)


async def test_what_was_signed_for_another_deployment_opens_nothing(
    server: MemoryServer, sides: list[Side], clock: Clock
) -> None:
    """R63: with the same key, under another prefix."""
    other = CircuitState(prefix="other", tool="t", open_until=clock.now + 6e8, set_at=clock.now)
    server.circuits["x"] = Envelope(Keyring.local()).encode(other)
    await follow(*sides)
    assert all(side.lets_through() for side in sides)


async def test_a_tool_that_is_called_rarely_is_tried_again(sides: list[Side], clock: Clock) -> None:
    """The right to try it is given up before its next call comes."""
    await sides[0].fail()
    await follow(*sides)
    clock.now += 31
    assert not sides[0].lets_through()
    for _ in range(5):
        clock.now += 1
        await follow(*sides)
    assert sides[0].lets_through()
    assert not sides[0].lets_through()


async def test_a_failed_notification_is_sent_with_the_next_check(
    sides: list[Side], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, _ = sides

    async def away(*args: Any, **more: Any) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(one.transport, "set_circuit", away)
        with pytest.raises(OSError):
            await one.fail()
    await follow(one, other)
    assert not other.lets_through()


async def test_without_the_setting_nothing_is_shared(clock: Clock) -> None:
    server = MemoryServer()
    one, other = (Side(server, clock, name, circuit_scope="dispatcher") for name in "ab")
    for _ in range(4):
        one.breaker.note("t", FAILED)
    assert not one.lets_through()
    assert other.lets_through()
    clock.now += 31
    assert one.lets_through(), "it tries by itself"
    assert not one.breaker.is_fleet_wide
