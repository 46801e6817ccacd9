"""The steps of calls that a person has to approve: the real server and the one in memory agree."""

import asyncio
import copy
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger import lua_scripts
from toolpool.contract.ledger.approval_steps import (
    ApprovalLedger,
    ApprovalRecord,
    DecisionStep,
    MemoryApprovals,
    RedisApprovals,
    WaitStep,
)
from toolpool.contract.ledger.lua_scripts import LuaScripts, new_nonce
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import (
    APPROVED,
    ATTACHED,
    LAPSED,
    NEW,
    OTHERS,
    RAN,
    WAITING,
    Claim,
    ClaimRenewal,
    CloseReason,
    Closing,
    Opening,
    Release,
    Settlement,
)
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.embedded import EmbeddedServer

HOUR = 3600.0


@dataclass
class Server:
    """The ledger of a fleet, for several dispatchers, each alive or not."""

    make: Callable[[str], ApprovalLedger]
    live: Callable[[str, bool], Awaitable[None]]
    ledger: RedisLedger | MemoryServer
    reply: Callable[[str], str]
    epoch: str = ""

    async def ask(self, by: str = "one", good: float = HOUR, **more: object) -> ApprovalRecord:
        fields = {"key": "a", "nonce": new_nonce(), "request": b"r", "rerunnable": False}
        times = {"ends_at": time.time() + good, "kept": good + HOUR, "keep": HOUR}
        asking = WaitStep(**{**fields, **times, "asked_at": time.time(), **more})  # type: ignore[arg-type]
        found = await self.make(by).ask(asking, now=time.time())
        self.epoch = found.epoch
        return found

    async def decide(self, *, approved: bool = True, decision: bytes = b"d") -> str:
        deciding = DecisionStep(
            key="a",
            nonce=new_nonce(),
            decision=decision,
            notice=b"notice",
            approved=approved,
            ends_at=time.time() + HOUR,
            no=b"denied",
            doubtful=b"doubtful",
        )
        return await self.make("decider").decide(deciding, now=time.time())

    async def open(self, by: str = "one", *, approved: bool = True, **more: object) -> bytes:
        opening = Opening(
            key="a", attempt=1, rerunnable=False, wait=30, deadline=40, keep=60, approved=approved,
            asked_at=time.time(), **more,  # type: ignore[arg-type]
        )  # fmt: skip
        _, [answer] = await self.ledger.open(
            [opening], nonce=new_nonce(), reply=self.reply(by), queue="", message=b"",
            give_up_at=time.monotonic() + 5,
        )  # fmt: skip
        return answer

    async def claim(self) -> object:
        claim = Claim("a", 1, new_nonce(), approved=True)
        [answer] = await self.ledger.claim([claim], worker="w", give_up_at=time.monotonic() + 5)
        return answer

    async def close(
        self, end: CloseReason, by: str = "one", anew_after: float | None = None
    ) -> bytes:
        closing = Closing(
            key="a", nonce=new_nonce(), epoch=self.epoch, keep=60, unclaimed=b"no",
            claimed=b"claimed", doubtful=b"maybe", cancel=b"", unsent=True, anew_after=anew_after,
        )  # fmt: skip
        [answer] = await self.ledger.close(
            [closing], reply=self.reply(by), end=end, give_up_at=time.monotonic() + 5
        )
        return answer

    async def told(self, name: str) -> list[bytes]:
        """What was sent to a dispatcher's reply stream."""
        if isinstance(self.ledger, MemoryServer):
            return list(self.ledger._inboxes[self.reply(name)].items)
        client: Any = self.ledger._scripts._client
        return [fields[b"b"] for _, fields in await client.xrange(self.reply(name))]

    async def edit(self, **fields: str | None) -> None:
        """Write fields of the record, or delete them, as somebody does who has no key."""
        if isinstance(self.ledger, MemoryServer):
            pytest.skip("its records cannot be written by anybody else")
        client: Any = self.ledger._scripts._client
        for field, value in fields.items():
            name = self.ledger._names.call("a")
            await (client.hset(name, field, value) if value else client.hdel(name, field))

    async def seconds_left(self) -> float:
        """How long the record is kept from now on."""
        if isinstance(self.ledger, MemoryServer):
            return self.ledger.records["a"].gone_at - time.monotonic()
        ledger = self.ledger
        return await ledger._scripts._client.pttl(ledger._names.call("a")) / 1000

    async def restorer(self) -> Callable[[], Awaitable[None]]:
        """What puts the record back as it is now, as somebody does who has no key."""
        if isinstance(self.ledger, MemoryServer):
            records, record = self.ledger.records, copy.copy(self.ledger.records["a"])

            async def restore() -> None:
                records["a"] = record

            return restore
        client: Any = self.ledger._scripts._client
        name = self.ledger._names.call("a")
        return partial(client.restore, name, 60_000, await client.dump(name), replace=True)

    async def state(self) -> tuple[str, str]:
        found = await self.make("one").read("a", now=time.time())
        return found.state, found.approval


@pytest.fixture(params=["memory", "redis"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    if request.param == "memory":
        memory = MemoryServer()

        async def live(name: str, is_alive: bool) -> None:
            (memory.dispatchers.add if is_alive else memory.dispatchers.discard)(f"reply:{name}")

        made = Server(lambda name: MemoryApprovals(memory, f"reply:{name}"), live, memory,
                      "reply:{}".format)  # fmt: skip
        await made.live("one", True)
        yield made
        return
    with EmbeddedServer() as embedded:
        names = RedisKeys(f"t{secrets.token_hex(4)}")
        client = connection.open_async(Settings(redis_url=embedded.url, key_prefix=names.prefix))
        steps = LuaScripts(client)

        async def live_there(name: str, is_alive: bool) -> None:
            key = names.dispatcher(name)
            await (client.set(key, "1") if is_alive else client.delete(key))

        made = Server(lambda name: RedisApprovals(steps, names, names.reply(name), "default"),
                      live_there, RedisLedger(steps, names), names.reply)  # fmt: skip
        await made.live("one", True)
        yield made
        await client.aclose()


async def test_an_approval_request_is_made_once_and_found_by_all_dispatchers(
    server: Server,
) -> None:
    first = await server.ask()
    assert (first.state, first.approval, first.answer, first.request) == (
        "waiting", "waiting", "new", b"r",
    )  # fmt: skip
    other = await server.ask("two", request=b"another")
    assert (other.state, other.answer, other.request) == ("waiting", "", b"r")
    listed = await server.make("two").waiting(10, now=time.time())
    assert [found.key for found in listed] == ["a"]
    assert (await server.make("two").read("nothing", now=time.time())).state == ""


async def test_no_worker_starts_a_call_that_awaits_approval_or_was_not_sent(server: Server) -> None:
    await server.ask()
    assert await server.claim() == "waiting"
    assert await server.open("other", approved=False) == WAITING
    await server.decide()
    assert await server.claim() == "approved"
    assert await server.open("other", approved=False) == APPROVED
    assert await server.open() == NEW
    assert await server.open("other") == ATTACHED
    assert isinstance(await server.claim(), float)


async def test_a_call_that_was_already_sent_needs_no_approval(server: Server) -> None:
    assert await server.open(approved=False) == NEW
    assert ((await server.ask()).state, await server.decide()) == ("open", "open")


async def test_a_decision_is_not_called_refused_if_it_may_have_been_taken_before_a_loss(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(server.ledger, MemoryServer):
        pytest.skip("the server in memory loses no reply")
    client: Any = server.ledger._scripts._client

    async def lose_reply_and_record(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(lua_scripts, "send", send)
        await send(*arguments, **options)
        await client.delete(server.ledger._names.call("a"))  # type: ignore[union-attr]
        raise ServerUnavailable("approval", sent=True)

    send = lua_scripts.send
    await server.ask()
    monkeypatch.setattr(lua_scripts, "send", lose_reply_and_record)
    with pytest.raises(ServerUnavailable, match="may have been stored"):
        await server.decide()
    assert await server.decide() == "gone"


@pytest.mark.parametrize("end", ["denied", "cancelled", "left"])
async def test_a_call_that_is_asked_about_right_after_a_loss_may_have_run(
    server: Server, end: str
) -> None:
    """Another dispatcher may have sent it, and the server lost that."""
    await server.ask(key="before")
    if isinstance(server.ledger, MemoryServer):
        server.ledger.forget()
    else:
        client: Any = server.ledger._scripts._client
        await client.flushall()
    assert (await server.ask()).answer == "new"
    if end == "denied":
        await server.decide(approved=False)
    else:
        await server.close(CloseReason.CANCEL if end == "cancelled" else CloseReason.LEAVE)
    found = await server.make("one").read("a", now=time.time())
    assert found.outcome == (b"doubtful" if end == "denied" else b"maybe")


@pytest.mark.parametrize("approved", [True, False])
async def test_one_decision_counts_and_its_repeat_is_answered_again(
    server: Server, approved: bool
) -> None:
    assert await server.decide(approved=approved) == "gone"
    await server.ask()
    word = "approved" if approved else "denied"
    answers = await asyncio.gather(
        *(server.decide(approved=approved, decision=b"%d" % i) for i in range(5))
    )
    assert sorted(answers) == ["", *[word] * 4]
    assert await server.decide(approved=approved, decision=b"%d" % answers.index("")) == ""
    assert await server.make("one").waiting(10, now=time.time()) == []


END = {
    "denied": lambda server: server.decide(approved=False),
    "cancelled": lambda server: server.close(CloseReason.CANCEL),
    "expired": lambda server: server.close(CloseReason.UNAPPROVED),
}


@pytest.mark.parametrize("end", END)
async def test_an_ended_approval_never_changes(server: Server, end: str) -> None:
    await server.ask(good=0.9 if end == "expired" else HOUR)
    await END[end](server)
    assert await server.state() == ("settled", end)
    outcome = b"denied" if end == "denied" else b"no"
    assert await server.decide(decision=b"another") == end
    assert (await server.ask("two")).outcome == outcome
    assert await server.open() == await server.open("two", approved=False) == outcome
    assert await server.claim() == "settled"
    for reason in CloseReason:
        assert await server.close(reason) == outcome
    assert await server.state() == ("settled", end)


async def test_cancelled_after_it_was_approved_it_never_runs(server: Server) -> None:
    await server.ask()
    await server.decide()
    assert await server.close(CloseReason.CANCEL) == b"no"
    assert await server.state() == ("settled", "cancelled")
    assert await server.open() == b"no"


async def test_an_approval_in_the_last_moment_prevents_expiry(server: Server) -> None:
    await server.ask(good=0.2)
    await server.decide()
    assert await server.close(CloseReason.UNAPPROVED) == APPROVED
    assert await server.open() == NEW


async def test_a_late_decision_has_no_effect(server: Server) -> None:
    await server.ask(good=0.1)

    async def is_late() -> bool:
        return await server.decide() == "expired"

    async def is_too_late_to_list() -> bool:
        return await server.make("one").waiting(10, now=time.time()) == []

    await eventually(is_too_late_to_list, "its time is over")
    assert await is_late()


async def test_a_temporarily_refused_call_stays_approved_and_is_not_resent_by_itself(
    server: Server,
) -> None:
    await server.ask()
    await server.decide()
    assert await server.close(CloseReason.REFUSED, anew_after=0.01) == b"no"
    await server.live("one", False)
    assert await server.make("two").approved(now=time.time() + HOUR) == []
    found = await server.ask("two", asked_at=time.time() + 1)
    assert (found.state, found.decision, found.outcome) == ("approved", b"d", b"")
    assert await server.open("two") == NEW


async def test_a_final_refusal_ends_an_approved_call(server: Server) -> None:
    await server.ask()
    assert await server.close(CloseReason.REFUSED) == b"no"
    assert (await server.ask(asked_at=time.time() + HOUR)).outcome == b"no"


async def test_one_that_others_wait_for_is_left_to_them(server: Server) -> None:
    await server.live("two", True)
    await server.ask()
    await server.ask("two")
    assert await server.close(CloseReason.LEAVE) == OTHERS
    assert await server.close(CloseReason.REFUSED, "three") == WAITING
    await server.live("two", False)
    await server.live("three", False)
    assert await server.close(CloseReason.LEAVE) == b"no"


async def test_what_one_declines_is_sent_by_another(server: Server) -> None:
    """The asker is gone, and the first that looks does not offer the tool."""
    one, two, three = (server.make(name) for name in ("one", "two", "three"))
    await server.live("two", True)
    await server.live("three", True)
    await server.ask()
    await server.decide()
    await server.live("one", False)
    now = time.time()
    assert await two.approved(now=now) == ["a"]
    await one.decline("a", now=now)  # not its own
    assert await three.approved(now=now) == []
    await two.decline("a", now=now)
    assert await three.approved(now=now) == ["a"]


async def test_the_asking_dispatcher_sends_and_another_takes_over_when_it_is_gone(
    server: Server,
) -> None:
    one, two = server.make("one"), server.make("two")
    await server.live("two", True)
    await server.ask()
    await server.decide()
    now = time.time()
    assert await two.approved(now=now) == []
    assert await one.approved(now=now + 11) == ["a"]
    assert await one.approved(now=now + 11) == []  # it is about to
    await server.live("one", False)
    assert await two.approved(now=now + 22) == ["a"]
    assert await server.open("two") == NEW
    assert await two.approved(now=now + 44) == []


async def test_of_several_dispatchers_only_one_takes_an_orphaned_approved_call(
    server: Server,
) -> None:
    await server.ask()
    await server.live("one", False)
    for i in range(5):
        await server.live(f"d{i}", True)
    await server.decide()
    others = [server.make(f"d{i}") for i in range(5)]
    taken = await asyncio.gather(*(other.approved(now=time.time()) for other in others))
    assert sorted(taken) == [[], [], [], [], ["a"]]


async def test_what_was_approved_and_not_sent_in_time_is_not_sent(server: Server) -> None:
    await server.ask()
    deciding = DecisionStep(
        key="a", nonce="n", decision=b"d", notice=b"", approved=True, ends_at=time.time() - 1
    )
    await server.make("one").decide(deciding, now=time.time())
    assert await server.open() == LAPSED
    assert await server.close(CloseReason.UNAPPROVED) == b"no"
    assert await server.state() == ("settled", "expired")


async def test_what_was_approved_and_has_no_record_any_more_is_not_sent(
    server: Server,
) -> None:
    lost = Opening(
        key="b", attempt=1, rerunnable=True, wait=30, deadline=40, keep=60, approved=True
    )
    _, [answer] = await server.ledger.open(
        [lost], nonce="n", reply="r", queue="", message=b"", give_up_at=time.monotonic() + 5
    )
    assert answer == RAN


async def test_what_a_provider_runs_is_used_up_once(server: Server) -> None:
    await server.ask()
    assert await server.close(CloseReason.USED) == WAITING
    await server.decide()
    assert await server.close(CloseReason.USED) == b"no"
    assert await server.state() == ("settled", "approved")
    assert await server.open() == b"no"


async def test_exactly_one_dispatcher_reports_the_outcome(server: Server) -> None:
    one, two = server.make("one"), server.make("two")
    await server.ask()
    told = await asyncio.gather(*(each.claim_notice("a") for each in (one, two, one, two)))
    assert sorted(told) == [False, False, False, True]
    assert not await one.claim_notice("nothing")


async def test_what_was_never_approved_is_not_claimed_after_an_earlier_run_of_it_was_held(
    server: Server,
) -> None:
    """The worker of a run whose record is gone says that it has the call, and gives it back."""
    await server.ask()
    renewal = ClaimRenewal("a", 1, "earlier", rerunnable=True)
    give_up_at = time.monotonic() + 5
    assert await server.ledger.renew([renewal], worker="w", give_up_at=give_up_at) == ["renewed"]
    release = Release("a", "earlier", b"", 60.0, b"", entered=False)
    assert await server.ledger.release([release], worker="w", give_up_at=give_up_at) == ["released"]
    claim = Claim("a", 2, new_nonce())
    [answer] = await server.ledger.claim([claim], worker="w", give_up_at=give_up_at)
    assert answer == "waiting"


async def test_a_dispatcher_that_refuses_a_shared_call_learns_its_end(
    server: Server,
) -> None:
    """The answer to its first refusal was lost."""
    await server.ask("one")
    for _ in range(2):
        assert await server.close(CloseReason.REFUSED, "two") == WAITING
    await server.live("two", True)
    assert await server.close(CloseReason.LEAVE, "one") == OTHERS


async def test_what_a_living_dispatcher_holds_back_hides_nothing_of_a_dead_one(
    server: Server,
) -> None:
    """Hundreds wait at a rate limit of the one that asked."""
    await server.live("two", True)
    deciding = DecisionStep(
        key="", nonce="n", decision=b"d", notice=b"", approved=True, ends_at=time.time() + HOUR
    )
    for n in range(300):
        key = f"held-{n:03}"
        await server.ask("one", key=key)
        await server.make("d").decide(msgspec.structs.replace(deciding, key=key), now=time.time())
    await server.ask("dead", key="left")
    await server.make("d").decide(msgspec.structs.replace(deciding, key="left"), now=time.time())
    found: list[str] = []
    for _ in range(2):
        found += await server.make("two").approved(now=time.time())
    assert found == ["left"]


@pytest.mark.parametrize("approved", [True, False])
async def test_what_was_decided_is_known_as_long_as_a_handle_of_it_may_be_good(
    server: Server, approved: bool
) -> None:
    """It may have been given for ten days, and was decided in the first minute."""
    good = 240 * HOUR
    await server.ask(good=good, kept=good + HOUR, keep=HOUR)
    deciding = DecisionStep(
        key="a", nonce="n", decision=b"d", notice=b"", approved=approved,
        ends_at=time.time() + good, no=b"denied", doubtful=b"doubtful",
    )  # fmt: skip
    assert await server.make("d").decide(deciding, now=time.time()) == ""
    if approved:
        assert await server.open() == NEW
        assert isinstance(await server.claim(), float)
        settlement = Settlement("a", "s", 60.0, "r", b"done")
        await server.ledger.settle([settlement], give_up_at=time.monotonic() + 5)
    assert await server.seconds_left() > good


@pytest.mark.parametrize("end", [CloseReason.DEADLINE, CloseReason.UNAPPROVED])
@pytest.mark.parametrize("is_approved", [True, False])
async def test_an_asker_that_gives_up_does_not_end_the_wait_of_others(
    server: Server, end: CloseReason, is_approved: bool
) -> None:
    """It could not read, say, until when a person may decide."""
    await server.ask()
    if is_approved:
        await server.decide()
    state = APPROVED if is_approved else WAITING
    is_left = is_approved and end is CloseReason.DEADLINE
    assert await server.close(end, "other") == (OTHERS if is_left else state)
    assert (await server.state())[0].encode() == state


async def test_whoever_adopts_a_waiting_call_drops_those_that_are_gone(server: Server) -> None:
    await server.ask(by="one")
    await server.ask(by="two")
    await server.live("two", False)
    await server.make("one").read("a", now=time.time(), attaches=True)
    await server.live("two", True)
    assert await server.decide() == ""
    assert await server.told("one") == [b"notice"]
    assert await server.told("two") == []


async def test_junk_in_place_of_the_sets_stops_no_decision(server: Server) -> None:
    if isinstance(server.ledger, MemoryServer):
        return  # it has no sets
    approvals = server.make("one")
    await server.ask()
    client = server.ledger._scripts._client
    for key in approvals._shared[1:]:  # type: ignore[attr-defined]
        await client.delete(key)
        await client.set(key, b"junk")
    assert await server.decide() == ""
    assert await server.state() == ("approved", "approved")
    assert await server.open() == NEW


async def test_another_type_in_place_of_the_epoch_is_lost_data(server: Server) -> None:
    if isinstance(server.ledger, MemoryServer):
        return  # it has no types
    client, key = server.ledger._scripts._client, server.ledger._names.epoch
    await server.ask()
    await client.delete(key)
    await client.rpush(key, b"junk")
    assert await server.claim() == "waiting"
    assert await client.type(key) == b"string"
    assert await server.close(CloseReason.CANCEL) == b"maybe"


@pytest.mark.parametrize("rerunnable", [False, True])
@pytest.mark.parametrize("end", ["denied", "cancelled"])
async def test_a_call_that_was_denied_or_cancelled_is_not_claimed_if_its_record_is_restored(
    server: Server, end: str, rerunnable: bool
) -> None:
    """With somebody's yes this time: its mark is still there."""
    await server.ask(rerunnable=rerunnable)
    restore = await server.restorer()
    await END[end](server)
    await restore()
    assert await server.decide(decision=b"yes") == ""
    assert await server.open() == NEW
    assert await server.claim() == "ran"
    assert await server.close(CloseReason.CANCEL) == b"maybe"


async def test_a_temporary_refusal_does_not_answer_suspended_askers(server: Server) -> None:
    """The call may run in the next try before it goes on: it would say that it did not."""
    await server.live("suspended", True)
    await server.ask()
    await server.ask("suspended")
    await server.decide()
    await server.live("suspended", False)
    before = await server.told("suspended")
    assert await server.close(CloseReason.REFUSED, anew_after=0.01) == b"no"
    assert await server.told("suspended") == before
    found = await server.ask(asked_at=time.time() + 1)
    assert found.state == "approved"
    assert await server.open() == NEW


@pytest.mark.parametrize(
    "edited", [{"rerun": "1"}, {"rerun": "1", "approval": None}, {"approval": None}]
)
async def test_what_was_cancelled_is_not_claimed_whatever_its_record_was_made_to_say(
    server: Server, edited: dict[str, str | None]
) -> None:
    """What its signed message says counts."""
    await server.ask(rerunnable="rerun" not in edited)
    await server.decide()
    assert await server.open() == NEW
    await server.edit(**edited)
    restore = await server.restorer()
    assert await server.close(CloseReason.CANCEL) == b"no"
    await restore()
    assert await server.claim() == "ran"


@pytest.mark.parametrize("is_approved", [False, True])
async def test_a_call_that_was_refused_for_now_and_cancelled_is_not_asked_again(
    server: Server, is_approved: bool
) -> None:
    if is_approved:
        await server.ask()
        await server.decide()
    else:
        other = {"key": "other", "nonce": new_nonce()}
        await server.ask(**other)  # which tells the epoch
    assert await server.close(CloseReason.REFUSED, anew_after=0.01) == b"no"
    assert await server.close(CloseReason.CANCEL) == b"no"
    assert (await server.ask(asked_at=time.time() + 1)).outcome == b"no"
    assert await server.open() == b"no"
