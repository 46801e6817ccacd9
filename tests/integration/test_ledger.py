"""The ledger's steps: one suite for the real Lua on a real server and for the in-memory server."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import pytest

from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts, new_nonce
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import (
    ATTACHED,
    MISSING,
    MOVED,
    NEW,
    OTHERS,
    RAN,
    SENT,
    STARTED_OR_ENDED,
    Claim,
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    Release,
    Settlement,
    running,
)
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings

NAMES = RedisKeys()
REPLY = NAMES.reply("d-1")
OTHER_REPLY = NAMES.reply("d-2")
WORKER = "w-1"
UNSENT = (
    CloseReason.REJECTED, CloseReason.REFUSED, CloseReason.UNAPPROVED, CloseReason.USED,
    CloseReason.RESTORED,
)  # fmt: skip
"""They leave alone what was sent."""


class Server:
    """Both sides' steps on one kind of server, with a look at what is on its lists."""

    def __init__(self, ledger: RedisLedger | MemoryServer, client: object) -> None:
        self.ledger = ledger
        self._client = client

    async def sent(self, name: str) -> list[bytes]:
        """What is on a reply stream or a list, oldest first."""
        if isinstance(self.ledger, MemoryServer):
            count = self.ledger.waiting(name)
            return [(await self.ledger.take(name))[1] for _ in range(count)]
        client: object = self._client
        if await client.type(name) == b"list":  # type: ignore[attr-defined]
            return await client.lrange(name, 0, -1)  # type: ignore[attr-defined, no-any-return]
        entries = await client.xrange(name)  # type: ignore[attr-defined]
        return [fields[b"b"] for _, fields in entries]

    def cancels(self, worker: str) -> str:
        return f"cancel:{worker}" if isinstance(self.ledger, MemoryServer) else NAMES.cancel(worker)

    async def live(self, reply: str) -> None:
        """Let the dispatcher of a reply stream hold its lease."""
        if isinstance(self.ledger, MemoryServer):
            self.ledger.dispatchers.add(reply)
        else:
            key = NAMES.dispatcher(reply.rpartition(":")[2])
            await self._client.set(key, b"1", px=60_000)  # type: ignore[attr-defined]

    async def lose_data(self) -> None:
        """What a FLUSHALL or a restart without its data does: another epoch."""
        if isinstance(self.ledger, MemoryServer):
            self.ledger.forget()
        else:
            await self._client.flushall()  # type: ignore[attr-defined]

    async def end_reports(self) -> None:
        """The time is over in which processes report what the last epoch lost."""
        if isinstance(self.ledger, MemoryServer):
            self.ledger.reports_until = 0.0
        else:
            words = (await self._client.get(NAMES.epoch)).split(b" ")  # type: ignore[attr-defined]
            await self._client.set(NAMES.epoch, b" ".join([*words[:6], b"0"]))  # type: ignore[attr-defined]

    async def change_epoch(self) -> None:
        """What a failover does: the records are there, the epoch is another."""
        if isinstance(self.ledger, MemoryServer):
            self.ledger.begin_epoch("another")
        else:
            await self._client.set(NAMES.epoch, "another")  # type: ignore[attr-defined]

    async def open(
        self,
        key: str = "k",
        *,
        nonce: str = "n",
        reply: str = REPLY,
        wait: float = 30.0,
        deadline: float = 90.0,
        keep: float = 300.0,
        rerunnable: bool = False,
        message: bytes = b"m",
        tried_in: str | None = None,
        asked_ago: float = -1.0,
        again: bool = False,
    ) -> tuple[str, list[bytes]]:
        asked_at = time.time() - asked_ago
        opening = Opening(key, 1, rerunnable, wait, deadline, keep, asked_at, again)
        return await self.ledger.open(
            [opening],
            nonce=nonce,
            reply=reply,
            queue="q",
            message=message,
            give_up_at=soon(),
            tried_in=tried_in,
        )

    async def note_shared(self, key: str = "k") -> str | None:
        """Note that a call shares a run, if it has no record; its record's state."""
        if isinstance(self.ledger, MemoryServer):
            if (state := self.ledger.state(key)) is None:
                self.ledger.note_shared(key, 60.0)
            return state
        [state] = await LuaScripts(self._client).once(
            LuaScript.NOTE_SHARED, [NAMES.epoch, NAMES.call(key)], [NAMES.ran_prefix, 60_000]
        )
        return state.decode() or None

    async def claim(
        self, key: str = "k", *, nonce: str = "c", attempt: int = 1, rerunnable: bool = True
    ) -> float | str:
        claims = [Claim(key, attempt, nonce, rerunnable=rerunnable)]
        return (await self.ledger.claim(claims, worker=WORKER, give_up_at=soon()))[0]

    async def recover(self, lost_worker: str = "", *, key: str = "k") -> bytes:
        step = RecoveryRequest(
            key=key, nonce=new_nonce(), lost_worker=lost_worker, attempt=1, wait=30.0,
            message=b"m", next_message=b"n", keep=300.0, lost=b"lost",
        )  # fmt: skip
        [answer] = await self.ledger.recover([step], reply=REPLY, queue="", give_up_at=soon())
        return answer

    async def settle(self, body: bytes = b"done", *, key: str = "k", nonce: str = "s") -> str:
        settlements = [Settlement(key, nonce, 300.0, REPLY, body)]
        return (await self.ledger.settle(settlements, give_up_at=soon()))[0]

    async def release(self, *, key: str = "k", nonce: str = "c") -> str:
        releases = [Release(key, nonce, b"given back", 300.0, b"too often", entered=False)]
        return (await self.ledger.release(releases, worker=WORKER, give_up_at=soon()))[0]

    async def copied(self, key: str = "k") -> object:
        """A record as it is, to be restored."""
        if isinstance(self.ledger, MemoryServer):
            return copy.deepcopy(self.ledger.records[key])
        return await self._client.dump(NAMES.call(key))  # type: ignore[attr-defined]

    async def restore(self, record: Any, key: str = "k") -> None:
        """As somebody does who can write to the server and has no key."""
        if isinstance(self.ledger, MemoryServer):
            self.ledger.records[key] = record
        else:
            restore: Any = self._client.restore  # type: ignore[attr-defined]
            await restore(NAMES.call(key), 60_000, record, replace=True)

    async def end_record(self, key: str = "k") -> None:
        """Its time is over."""
        if isinstance(self.ledger, MemoryServer):
            self.ledger.records.pop(key, None)
        else:
            await self._client.delete(NAMES.call(key))  # type: ignore[attr-defined]

    async def close(
        self,
        epoch: str,
        *,
        key: str = "k",
        end: CloseReason = CloseReason.DEADLINE,
        nonce: str = "x",
        unsent: bool = False,
        anew_after: float | None = None,
        reply: str = "",
    ) -> bytes:
        closing = Closing(
            key,
            nonce,
            epoch,
            300.0,
            unclaimed=b"no" if unsent else b"never ran",
            claimed=b"was running",
            doubtful=b"unknown",
            cancel=b"cancel it",
            unsent=unsent,
            anew_after=anew_after,
        )
        answers = await self.ledger.close(
            [closing], reply=reply or REPLY, end=end, give_up_at=soon()
        )
        return answers[0]


def soon() -> float:
    return time.monotonic() + 5.0


@pytest.fixture(params=["redis", "memory"])
async def ledger(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Server]:
    if request.param == "memory":
        yield Server(MemoryServer(), None)
        return
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        yield Server(RedisLedger(LuaScripts(client), NAMES), client)


async def test_a_call_is_opened_claimed_and_settled_once(ledger: Server) -> None:
    """R1: the first outcome is stored and told; the record answers whoever asks again."""
    _, answers = await ledger.open()
    assert answers == [NEW]
    assert await ledger.sent("q") == [b"m"]
    left = await ledger.claim()
    assert isinstance(left, float)
    assert 85.0 < left <= 90.0
    assert await ledger.settle(b"done") == "first"
    assert await ledger.sent(REPLY) == [b"done"]
    _, again = await ledger.open(nonce="another", reply=OTHER_REPLY)
    assert again == [b"done"]


async def test_every_step_repeats_its_answer_to_its_nonce(ledger: Server) -> None:
    """A client that lost the reply to its own step sends it again: nothing happens twice."""
    epoch, _ = await ledger.open()
    assert (await ledger.open())[1] == [NEW]
    assert await ledger.sent("q") == [b"m"]
    assert isinstance(await ledger.claim(), float)
    assert isinstance(await ledger.claim(), float)
    assert await ledger.settle() == "first"
    assert await ledger.settle() == "first"
    assert await ledger.sent(REPLY) == [b"done"]
    assert await ledger.close(epoch) == b"done"
    assert await ledger.close(epoch) == b"done"


async def test_a_duplicate_delivery_loses_its_claim(ledger: Server) -> None:
    await ledger.open()
    assert isinstance(await ledger.claim(nonce="first"), float)
    assert await ledger.claim(nonce="second") == "claimed"
    await ledger.settle()
    assert await ledger.claim(nonce="third") == "settled"


async def test_a_claim_never_creates_a_record(ledger: Server) -> None:
    assert await ledger.claim() == "absent"
    assert await ledger.claim() == "absent"
    assert (await ledger.open())[1] == [NEW]
    assert await ledger.claim(attempt=2) == "attempt"


async def test_a_call_is_not_started_after_its_queue_timeout(ledger: Server) -> None:
    await ledger.open(wait=0.01)
    await asyncio.sleep(0.03)  # the server's own clock has to pass
    assert await ledger.claim() == "expired"


async def test_only_the_first_outcome_counts(ledger: Server) -> None:
    await ledger.open()
    await ledger.claim()
    assert await ledger.settle(b"one", nonce="one") == "first"
    assert await ledger.settle(b"two", nonce="two") == "late"
    assert await ledger.sent(REPLY) == [b"one"]


async def test_an_outcome_without_its_record_still_reaches_the_dispatcher(ledger: Server) -> None:
    await ledger.open()
    await ledger.claim()
    await ledger.lose_data()
    assert await ledger.settle(b"done") == "gone"
    assert await ledger.sent(REPLY) == [b"done"]


async def test_a_call_nobody_claimed_is_ended_for_good(ledger: Server) -> None:
    """R8: `no` only for a present record that no attempt claimed, in the epoch it was opened in."""
    epoch, _ = await ledger.open()
    assert await ledger.close(epoch) == b"never ran"
    assert await ledger.claim() == "settled"


async def test_a_claimed_call_is_closed_as_running_and_its_worker_told(ledger: Server) -> None:
    epoch, _ = await ledger.open()
    await ledger.claim()
    assert await ledger.close(epoch, end=CloseReason.UNSTARTED) == running(WORKER)
    assert await ledger.close(epoch) == b"was running"
    assert await ledger.sent(ledger.cancels(WORKER)) == [b"cancel it"]
    assert await ledger.settle() == "late"


async def test_across_an_epoch_no_result_claims_that_a_call_never_ran(ledger: Server) -> None:
    epoch, _ = await ledger.open()
    await ledger.change_epoch()
    assert await ledger.claim() == "moved"
    assert await ledger.close(epoch) == b"unknown"


async def test_in_another_epoch_no_call_is_claimed_until_its_dispatcher_says_that_it_waits(
    ledger: Server,
) -> None:
    """The server may have lost that it was cancelled."""
    await ledger.open(rerunnable=True)
    await ledger.change_epoch()
    assert await ledger.claim() == "moved"
    assert await ledger.recover() == SENT
    assert isinstance(await ledger.claim(), float)
    await ledger.change_epoch()
    assert await ledger.recover(WORKER) == b"again 2"
    assert isinstance(await ledger.claim(attempt=2), float)


async def test_a_server_that_was_left_begins_another_epoch_when_it_is_asked_again(
    ledger: Server,
) -> None:
    """Another server took steps meanwhile, such as a cancel, that are missing here."""
    if isinstance(ledger.ledger, MemoryServer):
        pytest.skip("there is no other server in memory")
    epoch, _ = await ledger.open(rerunnable=True)
    ledger.ledger._scripts.epochs.saw("of.another")
    assert await ledger.claim() == "moved"
    later, _ = await ledger.open("later", rerunnable=True)
    assert later != epoch
    assert await ledger.open("latest", rerunnable=True) == (later, [NEW]), "once"


async def test_a_lost_record_is_missing_until_its_call_is_closed(ledger: Server) -> None:
    """R8: nobody knows what became of it, and that is written before it is said."""
    epoch, _ = await ledger.open()
    await ledger.lose_data()
    assert await ledger.close(epoch, end=CloseReason.UNSTARTED) == MISSING
    assert await ledger.close(epoch) == b"unknown"
    assert await ledger.open(nonce="later") == (ANY, [b"unknown"])


async def test_what_is_noted_to_share_a_run_is_not_said_never_to_have_run(ledger: Server) -> None:
    """Nor may it run by itself, unless it may run twice. The note leaves a record alone."""
    epoch, _ = await ledger.open("another")
    for key in ("k", "read"):
        assert await ledger.note_shared(key) is None
    assert await ledger.open("read", rerunnable=True) == (epoch, [NEW])
    assert await ledger.open() == (epoch, [RAN])
    assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True) == b"unknown"
    assert await ledger.note_shared("another") == "open"
    assert await ledger.close(epoch, key="another", end=CloseReason.CANCEL) == b"never ran"


async def test_a_worker_whose_tool_may_not_run_twice_binds_those_of_an_older_release(
    ledger: Server,
) -> None:
    """Whichever of them claims the first attempt, the other's claim of the second is refused."""
    for key, first in (("k", False), ("l", True)):
        epoch, _ = await ledger.open(key, rerunnable=True)
        assert isinstance(await ledger.claim(key, rerunnable=first), float)
        request = RecoveryRequest(
            key, f"r{key}", WORKER, 1, 30.0, b"", b"again", 300.0, b"lost", True, epoch
        )
        [answer] = await ledger.ledger.recover([request], reply=REPLY, queue="q", give_up_at=soon())
        if first:
            assert answer == b"again 2"
            refused = await ledger.claim(key, nonce="d", attempt=2, rerunnable=False)
            assert refused == STARTED_OR_ENDED
        else:
            assert answer == b"lost"


async def test_a_repeated_asker_is_answered_too(ledger: Server) -> None:
    """R18: attaches to the record. Of many askers the dead make room, and never the first."""
    await ledger.live(REPLY)
    await ledger.open()
    for number in range(20):
        reply = NAMES.reply(f"d{number}")
        if number % 2:
            await ledger.live(reply)
        _, answers = await ledger.open(nonce=f"n{number}", reply=reply)
        assert answers == [ATTACHED]
    assert await ledger.sent("q") == [b"m"]
    await ledger.claim()
    await ledger.settle(b"done")
    assert await ledger.sent(REPLY) == [b"done"]
    for number in range(1, 20, 2):
        assert await ledger.sent(NAMES.reply(f"d{number}")) == [b"done"], number


async def test_a_no_is_written_where_there_was_no_record(ledger: Server) -> None:
    """R8: whoever asks for it is told the same, and nobody runs the call."""
    epoch, _ = await ledger.open(key="another")
    assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True) == b"no"
    assert await ledger.open(nonce="before", asked_ago=10.0) == (epoch, [b"no"])
    assert await ledger.claim() == "settled"
    assert await ledger.open(nonce="after") == (epoch, [b"no"])


async def test_what_is_refused_for_a_while_is_run_for_whoever_asks_after_it(
    ledger: Server,
) -> None:
    """R18: who asked before that, however late the asking comes, is told what the first was."""
    epoch, _ = await ledger.open(key="another")
    assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True, anew_after=5.0) == b"no"
    assert await ledger.open(nonce="soon", asked_ago=0.0) == (epoch, [b"no"])
    assert await ledger.open(nonce="later", asked_ago=-6.0) == (epoch, [NEW])


async def test_what_is_refused_once_more_for_as_long_as_its_record_is_kept_is_not_run_before(
    ledger: Server,
) -> None:
    """Each that was told no, the last one too, stays right."""
    epoch, _ = await ledger.open(key="another")
    refused = {"end": CloseReason.REFUSED, "unsent": True, "anew_after": 5.0}
    assert await ledger.close(epoch, **refused) == b"no"
    assert await ledger.close(epoch, end=CloseReason.REJECTED, unsent=True) == b"no"
    assert await ledger.open(nonce="later", asked_ago=-6.0) == (epoch, [b"no"])


async def test_a_rejection_leaves_the_calls_of_others_alone(ledger: Server) -> None:
    """The caller does not wait for them: whoever does may end them."""
    epoch, _ = await ledger.open()
    for state in (ATTACHED, running(WORKER)):
        answer = await ledger.close(epoch, end=CloseReason.REJECTED, unsent=True, reply="another")
        assert answer == state
        await ledger.claim()
    assert await ledger.close(epoch, end=CloseReason.LEAVE) == b"was running"


async def test_a_no_is_not_said_of_what_another_has_sent(ledger: Server) -> None:
    epoch, _ = await ledger.open()
    assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True) == ATTACHED
    await ledger.claim()
    answer = await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True)
    assert answer == running(WORKER)


@pytest.mark.parametrize("what", ["epoch", "claimed"])
async def test_not_approved_is_not_answered_where_it_cannot_be_known(
    ledger: Server, what: str
) -> None:
    epoch, _ = await ledger.open()
    if what == "claimed":
        await ledger.claim()
    await ledger.end_record()
    if what == "epoch":
        await ledger.change_epoch()
    assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True) == b"unknown"


async def test_what_may_not_run_twice_is_remembered_longer_than_its_result(ledger: Server) -> None:
    """R18: asked again after its record has ended, it is not run; a read is."""
    for rerunnable, answer in ((False, RAN), (True, NEW)):
        key = f"k{rerunnable}"
        await ledger.open(key=key, rerunnable=rerunnable)
        await ledger.claim(key=key)
        await ledger.settle(b"done", key=key)
        await ledger.end_record(key)
        assert (await ledger.open(key=key, nonce="again", rerunnable=rerunnable))[1] == [answer]


async def test_a_call_that_was_claimed_is_not_claimed_again_if_its_record_is_restored(
    ledger: Server,
) -> None:
    epoch, _ = await ledger.open()
    record = await ledger.copied()
    assert isinstance(await ledger.claim(), float)
    await ledger.settle()
    await ledger.restore(record)
    assert await ledger.claim(nonce="another") == "ran"
    assert await ledger.close(epoch) == b"unknown", "it did run"


@pytest.mark.parametrize("end", [each for each in CloseReason if each not in UNSENT])
async def test_a_call_that_was_closed_is_not_claimed_if_its_record_is_restored(
    ledger: Server, end: CloseReason
) -> None:
    epoch, _ = await ledger.open()
    record = await ledger.copied()
    assert await ledger.close(epoch, end=end) == b"never ran"
    await ledger.restore(record)
    assert await ledger.claim() == "ran"


async def test_what_was_given_back_before_it_began_is_not_remembered(ledger: Server) -> None:
    await ledger.open()
    await ledger.claim()
    await ledger.release()
    await ledger.end_record()
    assert (await ledger.open(nonce="again"))[1] == [NEW]


async def test_what_may_have_been_asked_before_is_not_run_without_a_record(ledger: Server) -> None:
    """R18, and once said, it holds for whoever asks without saying so."""
    assert (await ledger.open(again=True))[1] == [RAN]
    assert (await ledger.open(nonce="later"))[1] == [RAN]
    assert (await ledger.open(key="read", again=True, rerunnable=True))[1] == [NEW]


@pytest.mark.parametrize("end", [CloseReason.LEAVE, CloseReason.DEADLINE, CloseReason.UNSTARTED])
async def test_a_call_that_another_waits_for_goes_on_without_the_one_that_ends_it(
    ledger: Server, end: CloseReason
) -> None:
    """R34: only while the other lives: what a dead one asked for is nobody's."""
    epoch, _ = await ledger.open()
    await ledger.open(nonce="other", reply=OTHER_REPLY)
    await ledger.live(OTHER_REPLY)
    assert await ledger.close(epoch, end=end) == OTHERS
    assert isinstance(await ledger.claim(), float)
    await ledger.settle(b"done")
    assert (await ledger.sent(REPLY), await ledger.sent(OTHER_REPLY)) == ([], [b"done"])


@pytest.mark.parametrize("stage", ["unsent", "open", "claimed"])
async def test_a_dispatcher_leaves_a_retry_to_another_that_was_sent_the_failure(
    ledger: Server, stage: str
) -> None:
    """The other may still wait out its pause, so it has not asked for the retry yet."""
    epoch, _ = await ledger.open()
    await ledger.open(nonce="other", reply=OTHER_REPLY)
    await ledger.live(OTHER_REPLY)
    await ledger.claim()
    await ledger.settle(b"failed")
    if stage != "unsent":
        await ledger.open(key="k.1", nonce="retry")
    if stage == "claimed":
        assert isinstance(await ledger.claim("k.1"), float)
    left = await ledger.close(epoch, key="k.1", end=CloseReason.LEAVE, unsent=stage == "unsent")
    assert left == OTHERS
    answer = {"unsent": NEW, "open": ATTACHED, "claimed": b"running w"}[stage]
    [found] = (await ledger.open(key="k.1", nonce="others retry", reply=OTHER_REPLY))[1]
    assert found.startswith(answer)


async def test_a_retry_that_every_dispatcher_has_left_ends(ledger: Server) -> None:
    """Although each of them was sent the failure before it."""
    for key in ("k", "k.1"):
        epoch, _ = await ledger.open(key=key, nonce=f"one {key}")
        await ledger.open(key=key, nonce=f"other {key}", reply=OTHER_REPLY)
        if key == "k":
            await ledger.claim()
            await ledger.settle(b"failed")
    await ledger.live(REPLY)
    await ledger.live(OTHER_REPLY)
    leave = CloseReason.LEAVE
    assert await ledger.close(epoch, key="k.1", end=leave, reply=OTHER_REPLY) == OTHERS
    assert await ledger.close(epoch, key="k.1", end=leave, reply=REPLY) == b"never ran"


async def test_a_retry_that_nobody_else_can_want_ends_with_its_dispatcher(ledger: Server) -> None:
    epoch, _ = await ledger.open()
    await ledger.open(nonce="other", reply=OTHER_REPLY)
    await ledger.claim()
    await ledger.settle(b"failed")
    await ledger.open(key="k.1", nonce="retry")
    assert await ledger.close(epoch, key="k.1", end=CloseReason.LEAVE) == b"never ran"
    assert await ledger.close(epoch, key="k.2", end=CloseReason.LEAVE, unsent=True) == b"no"


async def test_a_cancelled_call_ends_for_the_others_that_wait_for_it(ledger: Server) -> None:
    epoch, _ = await ledger.open()
    await ledger.open(nonce="other", reply=OTHER_REPLY)
    await ledger.live(OTHER_REPLY)
    assert isinstance(await ledger.claim(), float)
    assert await ledger.close(epoch, end=CloseReason.CANCEL) == b"was running"
    assert await ledger.sent(OTHER_REPLY) == [b"was running"]
    assert await ledger.sent(ledger.cancels(WORKER)) == [b"cancel it"]


async def test_what_may_have_run_before_a_failover_is_not_noted_anew(ledger: Server) -> None:
    """R8: the reply to the first try was lost, and so was the record."""
    epoch, _ = await ledger.open(nonce="probe", key="probe", tried_in=None)
    await ledger.open(tried_in=epoch)
    await ledger.lose_data()
    _, answers = await ledger.open(tried_in=epoch)
    assert answers == [MOVED]
    _, answers = await ledger.open(tried_in=epoch, rerunnable=True)
    assert answers == [NEW]


@pytest.mark.parametrize("loss", ["lose_data", "change_epoch"])
async def test_what_is_dispatched_before_processes_could_report_may_have_run(
    ledger: Server, loss: str
) -> None:
    """By a dispatcher that knows nothing of it; another process comes from the epoch before."""
    await ledger.open("before")
    await getattr(ledger, loss)()
    epoch, answers = await ledger.open()
    assert answers == [MOVED], "it may run in the epoch that was lost"
    assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True) == b"unknown"
    assert (await ledger.open("read", rerunnable=True))[1] == [NEW]
    assert await ledger.close(epoch, key="read", end=CloseReason.CANCEL) == b"unknown"
    await ledger.open("another read", rerunnable=True)
    assert isinstance(await ledger.claim("another read"), float)
    await ledger.end_reports()
    assert (await ledger.open("later"))[1] == [NEW]
    assert await ledger.close(epoch, key="later", end=CloseReason.CANCEL) == b"never ran"
    assert await ledger.close(epoch, key="last", end=CloseReason.REFUSED, unsent=True) == b"no"


async def test_the_last_asker_sets_how_long_a_call_may_wait(ledger: Server) -> None:
    """R18: the one who asked first may be dead, and its patience with it."""
    await ledger.open(wait=0.01, deadline=1.0)
    await ledger.open(nonce="other", reply=OTHER_REPLY, wait=30.0, deadline=90.0)
    await ledger.open(nonce="third", reply=OTHER_REPLY, wait=0.01, deadline=1.0)
    await asyncio.sleep(0.03)  # the server's own clock has to pass
    left = await ledger.claim()
    assert isinstance(left, float)
    assert left > 85.0


async def test_a_record_outlives_the_latest_wait_deadline(ledger: Server) -> None:
    """Else a call that runs on would be forgotten, and started again by the next to ask."""
    await ledger.open(keep=0.05)
    await ledger.open(nonce="other", reply=OTHER_REPLY, keep=30.0)
    await asyncio.sleep(0.1)  # the server's own clock has to pass
    assert isinstance(await ledger.claim(), float)


async def test_the_caller_of_close_is_answered_and_the_others_told(ledger: Server) -> None:
    epoch, _ = await ledger.open()
    await ledger.open(nonce="other", reply=OTHER_REPLY)
    assert await ledger.close(epoch) == b"never ran"
    assert await ledger.sent(REPLY) == []
    assert await ledger.sent(OTHER_REPLY) == [b"never ran"]


async def test_a_step_without_a_server_says_whether_anything_was_sent() -> None:
    """R8 stands on it: `no` is only said when not one byte left."""
    settings = Settings(redis_url="redis://127.0.0.1:1/0", connect_timeout=0.2)
    async with connection.open_async(settings) as client:
        with pytest.raises(ServerUnavailable) as caught:
            await LuaScripts(client).run(
                LuaScript.CLAIM, ["k"], ["c"], give_up_at=time.monotonic() + 0.3
            )
    assert not caught.value.sent


async def test_steps_load_their_scripts_again(redis_url: str) -> None:
    """A restarted or failed-over server has forgotten them."""
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        server = Server(RedisLedger(LuaScripts(client), NAMES), client)
        await server.open(nonce=new_nonce())
        await client.script_flush()
        assert isinstance(await server.claim(), float)


async def mark_of(client: Any, key: str) -> float:
    """When a call's mark ends, in Unix time."""
    value: bytes | None = await client.get(NAMES.ran(key))
    assert value is not None
    return float(value) / 1000


async def test_a_mark_is_written_by_the_callers_time_if_the_server_s_has_just_jumped(
    redis_url: str,
) -> None:
    """Before a process has corrected the fleet's clock."""
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        ledger = RedisLedger(LuaScripts(client), NAMES)
        epoch, _ = await Server(ledger, client).open(key="another")
        for key, ahead in (("jumped", 3600.0), ("near", 1.0)):
            closing = Closing(key, "x", epoch, 300.0, b"no", b"ran", b"unknown", b"", unsent=True)
            end = {"reply": REPLY, "end": CloseReason.REFUSED, "give_up_at": soon()}
            assert await ledger.close([closing], **end, now=time.time() + ahead) == [b"no"]
            expected = time.time() + 300.0 + (ahead if key == "jumped" else 0.0)
            assert abs(await mark_of(client, key) - expected) < 3.0


async def test_a_no_that_is_told_again_keeps_its_mark_as_long_as_its_record(redis_url: str) -> None:
    """A step back of the server's clock lets the record outlive the mark."""
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        ledger = Server(RedisLedger(LuaScripts(client), NAMES), client)
        epoch, _ = await ledger.open(key="another")
        assert await ledger.close(epoch, end=CloseReason.REFUSED, unsent=True) == b"no"
        for tell in ("open", "close"):
            await client.set(NAMES.ran("k"), round((time.time() - 60.0) * 1000), px=1_000_000)
            if tell == "open":
                assert await ledger.open(nonce="again") == (epoch, [b"no"])
            else:
                end = CloseReason.REFUSED
                assert await ledger.close(epoch, end=end, unsent=True, nonce="y") == b"no"
            left = await client.pttl(NAMES.call("k"))
            assert abs(await mark_of(client, "k") - time.time() - left / 1000) < 3.0
