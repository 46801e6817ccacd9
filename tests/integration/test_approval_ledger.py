"""The records of approvals: the real server and the one in memory answer alike."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

import pytest

from tests.waiting import eventually
from toolpool.contract.approval import ApprovalState
from toolpool.contract.ledger.approvals import (
    RECORDED,
    ApprovalLedger,
    Found,
    MemoryApprovals,
    RedisApprovals,
)
from toolpool.contract.ledger.base import Opening
from toolpool.contract.ledger.client import RedisLedger
from toolpool.contract.ledger.memory import MemoryServer
from toolpool.contract.ledger.steps import Steps, new_nonce
from toolpool.contract.names import Names
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.embedded import EmbeddedServer

GIVE_UP_SECONDS = 10.0


class Servers:
    """Ledgers of several dispatchers on one server; each can be alive or not."""

    def __init__(
        self,
        make: Callable[[str], ApprovalLedger],
        live: Callable[[str, bool], "asyncio.Future[None] | None"],
        record: Callable[[str], "asyncio.Future[None] | None"],
    ) -> None:
        self.make = make
        self._live = live
        self._record = record

    async def lives(self, name: str, is_alive: bool = True) -> None:
        work = self._live(name, is_alive)
        if work is not None:
            await work

    async def has_record(self, key: str) -> None:
        work = self._record(key)
        if work is not None:
            await work


def opening(key: str) -> Opening:
    return Opening(key=key, attempt=1, rerunnable=False, wait=30, deadline=30, keep=60)


@pytest.fixture(params=["memory", "redis"])
async def servers(request: pytest.FixtureRequest) -> AsyncIterator[Servers]:
    if request.param == "memory":
        server = MemoryServer()

        def live(name: str, is_alive: bool) -> None:
            (server.dispatchers.add if is_alive else server.dispatchers.discard)(f"reply:{name}")

        def record(key: str) -> "asyncio.Future[None]":
            work = server.open(
                [opening(key)], nonce=new_nonce(), reply="r", queue="", message=b"", give_up_at=0
            )
            return asyncio.ensure_future(_ignoring(work))

        yield Servers(
            lambda name: MemoryApprovals(server.approvals, server, f"reply:{name}"), live, record
        )
        return
    with EmbeddedServer() as embedded:
        names = Names(f"t{secrets.token_hex(4)}")
        settings = Settings(redis_url=embedded.url, key_prefix=names.prefix)
        client = connection.open_async(settings)
        steps = Steps(client)

        async def live_there(name: str, is_alive: bool) -> None:
            if is_alive:
                await client.set(names.dispatcher(name), "1")
            else:
                await client.delete(names.dispatcher(name))

        async def record_there(key: str) -> None:
            await RedisLedger(steps, names).open(
                [opening(key)],
                nonce=new_nonce(),
                reply="r",
                queue="",
                message=b"",
                give_up_at=asyncio.get_running_loop().time() + GIVE_UP_SECONDS,
            )

        yield Servers(
            lambda name: RedisApprovals(steps, names, names.reply(name), "default"),
            lambda name, alive: asyncio.ensure_future(live_there(name, alive)),
            lambda key: asyncio.ensure_future(record_there(key)),
        )
        await client.aclose()


async def _ignoring(work: object) -> None:
    await work  # type: ignore[misc]


async def ask(ledger: ApprovalLedger, id: str, good: float = 30.0, body: bytes = b"r") -> Found:
    return await ledger.ask(id, body, record=f"call-{id}", good=good, kept=30.0)


async def test_r57_asked_once_and_found_by_everybody(servers: Servers) -> None:
    one, two = servers.make("one"), servers.make("two")
    await servers.lives("one")
    assert await ask(one, "a") == Found("a", "waiting", b"r")
    assert await ask(two, "a", body=b"another") == Found("a", "waiting", b"r")
    assert await two.read("a") == Found("a", "waiting", b"r")
    assert await two.look("nothing") == Found("nothing", "")
    assert [found.id for found in await two.waiting(10)] == ["a"]


async def test_r57_a_call_that_has_a_record_is_asked_about_by_nobody(servers: Servers) -> None:
    one = servers.make("one")
    await servers.has_record("call-a")
    assert (await ask(one, "a")).state == RECORDED
    assert await one.waiting(10) == [] and (await one.read("a")).state == ""


@pytest.mark.parametrize("state", [ApprovalState.APPROVED, ApprovalState.DENIED])
async def test_r57_one_decision_counts(servers: Servers, state: ApprovalState) -> None:
    one = servers.make("one")
    await servers.lives("one")
    await ask(one, "a")
    answers = await asyncio.gather(*(one.decide("a", state, b"%d" % i) for i in range(5)))
    assert sorted(answers) == ["", *[state.value] * 4]
    assert (await one.read("a")).state == state
    assert await one.waiting(10) == []
    assert await one.decide("nothing", state, b"d") == "gone"


async def test_r57_what_was_decided_is_followed_from_where_one_began(servers: Servers) -> None:
    one, two = servers.make("one"), servers.make("two")
    await servers.lives("one")
    for id in "abc":
        await ask(one, id)
    await one.decide("a", ApprovalState.DENIED, b"d")
    begun = await one.follow("")
    assert begun.decided == []
    await two.decide("b", ApprovalState.APPROVED, b"d")
    await two.withdraw("c")
    followed = await one.follow(begun.last)
    assert followed.decided == [("b", "approved"), ("c", "withdrawn")]
    assert (await one.follow(followed.last)).decided == []


async def test_r57_who_asked_sends_and_another_once_that_one_is_gone(servers: Servers) -> None:
    one, two = servers.make("one"), servers.make("two")
    await servers.lives("one")
    await servers.lives("two")
    await ask(one, "a")
    await two.decide("a", ApprovalState.APPROVED, b"d")
    assert (await two.follow("")).granted == []
    assert (await one.follow("")).granted == ["a"]
    assert (await one.follow("")).granted == []  # it is about to
    await servers.lives("one", False)
    assert (await two.follow("")).granted == []
    assert await one.sent("a") == "approved"
    assert (await one.read("a")).state == "sent"


async def test_r57_of_several_only_one_takes_what_nobody_sends(servers: Servers) -> None:
    one, others = servers.make("one"), [servers.make(f"d{i}") for i in range(5)]
    await ask(one, "a")
    for i in range(5):
        await servers.lives(f"d{i}")
    await one.decide("a", ApprovalState.APPROVED, b"d")
    taken = await asyncio.gather(*(other.follow("") for other in others))
    assert sorted(followed.granted for followed in taken) == [[], [], [], [], ["a"]]


@pytest.mark.parametrize("state", ["waiting", "approved"])
async def test_r57_what_is_not_sent_in_its_time_expires(servers: Servers, state: str) -> None:
    one = servers.make("one")
    await ask(one, "a", good=0.2)
    if state == "approved":
        await one.decide("a", ApprovalState.APPROVED, b"d")

    async def is_expired() -> bool:
        return (await one.read("a")).state == "expired"

    await eventually(is_expired, "it expires")
    assert await one.decide("a", ApprovalState.APPROVED, b"d") == "expired"
    assert (await one.follow("")).granted == [] and await one.waiting(10) == []
    assert (await ask(one, "a")).state == "expired"


async def test_r57_what_is_sent_just_in_time_was_sent(servers: Servers) -> None:
    """Whoever was told that it was approved sent it, and says so after its time."""
    one = servers.make("one")
    for id in "ab":
        await ask(one, id, good=0.5)
        await one.decide(id, ApprovalState.APPROVED, b"d")
    assert (await one.look("a")).state == "approved"

    async def are_expired() -> bool:
        return {(await one.read(id)).state for id in "ab"} == {"expired"}

    await eventually(are_expired, "they expire")
    for id in "ab":
        assert await one.sent(id) == "expired"
    assert (await one.read("a")).state == "sent"
    assert (await one.read("b")).state == "expired"  # nobody can have sent it


async def test_r57_what_was_sent_or_withdrawn_stays_so(servers: Servers) -> None:
    one = servers.make("one")
    await servers.lives("one")
    await ask(one, "a")
    assert await one.withdraw("a") == "waiting"
    assert await one.withdraw("a") == "withdrawn"
    assert await one.decide("a", ApprovalState.APPROVED, b"d") == "withdrawn"
    await ask(one, "b")
    await one.decide("b", ApprovalState.APPROVED, b"d")
    assert await one.withdraw("b") == "approved"
    assert await one.sent("b") == "approved"
    assert await one.sent("b") == "sent"
    assert await one.sent("nothing") == await one.withdraw("nothing") == ""


async def test_r57_since_when_it_may_have_been_sent_is_known(servers: Servers) -> None:
    one = servers.make("one")
    await ask(one, "a")
    await one.decide("a", ApprovalState.APPROVED, b"d")
    assert (await one.read("a")).seconds == 0.0
    await one.look("a")

    async def some_time() -> bool:
        return (await one.read("a")).seconds > 0.0

    await eventually(some_time, "time goes by")


async def test_r57_one_is_to_tell_what_became_of_it(servers: Servers) -> None:
    one, two = servers.make("one"), servers.make("two")
    await ask(one, "a")
    told = await asyncio.gather(*(each.is_untold("a") for each in (one, two, one, two)))
    assert sorted(told) == [False, False, False, True]
    assert not await one.is_untold("nothing")
