"""Publishing goes on until the server confirms it; what it says of each call is taken."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.dispatcher.samples import Told, away, pending, services
from toolpool.contract.envelope import Batch, Envelope, Settled
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim, Opening, Settlement
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.publishing import Publisher
from toolpool.dispatcher.observer import CallFacts, Observer
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
QUEUE = "toolpool.default.loop"
READ = ToolSpec(name="t", effects=Effects.READ)


class Tried(MemoryTransport):
    """Notes every try; `before` and `after` happen around what the server does."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.tries: list[dict[str, Any]] = []
        self.before: list[Callable[[], None]] = []
        """What happens instead of, or before, each of the first tries; it may raise."""
        self.after: Callable[[], None] = lambda: None

    async def publish(self, openings: Sequence[Opening], **options: Any) -> Any:
        """See `Transport.publish`."""
        self.tries.append(options | {"keys": [opening.key for opening in openings]})
        if self.before:
            self.before.pop(0)()
        answer = await super().publish(openings, **options)
        self.after()
        return answer


class Queued(Observer):
    """Notes which calls are in the queue."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def queued(self, call: CallFacts) -> None:
        """See `Observer.queued`."""
        self.keys.append(call.key)


class Queue:
    """Where the calls were taken from."""

    name = QUEUE

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def started(self, pending: PendingCall) -> None:
        """See `publishing.Queue`."""
        self.said.append(("started", pending.key))

    def orphaned(self, pending: PendingCall) -> None:
        """See `publishing.Queue`."""
        self.said.append(("stranded", pending.key))


class Bench(Told):
    """A publisher, its server, and what became of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()
        self.transport = Tried(self.server)
        self.queue = Queue()
        self.queued = Queued()
        shared = services(self.transport, tenant="us")
        shared.observers.add(self.queued)
        self.publisher = Publisher(shared, self, self.queue)

    def call(self, key: str, *, stage: Stage = Stage.PUBLISHING, **options: Any) -> PendingCall:
        made = self.calls[key] = pending(key, **options)
        made.stage = stage
        return made

    async def open_elsewhere(self, call: PendingCall) -> None:
        """Let another dispatcher send the call first."""
        now = time.monotonic()
        await MemoryTransport(self.server, "reply:other").publish(
            [call.opening(now, time.time())], nonce="other", queue="q", message=b"",
            give_up_at=now + 1,
        )  # fmt: skip

    async def claim(self, call: PendingCall) -> None:
        """Let a worker have it."""
        await self.server.claim(
            [Claim(call.key, 1, "c")], worker="w-1", give_up_at=time.monotonic() + 1
        )

    async def messages(self) -> list[Batch]:
        """What lies on the queue."""
        return [
            ENVELOPE.decode_batch((await self.server.take(QUEUE))[1])
            for _ in range(self.server.waiting(QUEUE))
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def fail(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


async def test_a_new_call_is_queued_in_the_epoch_that_took_it(bench: Bench) -> None:
    call = bench.call("k")
    before = time.monotonic()
    assert await bench.publisher.publish([call])
    assert (call.stage, call.epoch) == (Stage.QUEUED, bench.server.epoch)
    assert before <= call.published_at <= time.monotonic()
    assert not call.is_attached
    assert bench.queued.keys == ["k"]
    assert (bench.said, bench.queue.said) == ([], [])


async def test_calls_travel_together_in_one_message_that_says_how_long_it_holds(
    bench: Bench,
) -> None:
    calls = [bench.call("a", wait=10.0), bench.call("b", wait=25.0)]
    await bench.publisher.publish(calls)
    (batch,) = await bench.messages()
    assert batch.calls == tuple(call.message for call in calls)
    assert (batch.tenant, batch.reply) == ("us", "reply:memory")
    assert batch.ends_at - batch.sent_at == pytest.approx(25.0, abs=1.0), "the longest wait"
    assert bench.transport.tries[0]["give_up_at"] == calls[0].start_by, "the shortest"


async def test_a_call_that_another_dispatcher_has_sent_is_attached_to(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open_elsewhere(call)
    await bench.publisher.publish([call])
    assert (call.stage, call.is_attached) == (Stage.QUEUED, True)
    assert (bench.said, bench.queue.said) == ([], [])


async def test_a_call_that_a_worker_has_is_running(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open_elsewhere(call)
    await bench.claim(call)
    await bench.publisher.publish([call])
    assert (call.worker, call.is_attached) == ("w-1", True)
    assert bench.queue.said == [("started", "k")]


async def test_a_call_that_has_its_outcome_is_answered_with_that(bench: Bench) -> None:
    call = bench.call("k")
    body = ENVELOPE.encode_reply(Settled(key="k", outcome=Outcome(ok=True)))
    await bench.server.settle(
        [Settlement("k", "s", 60.0, "reply:other", body)], give_up_at=time.monotonic() + 1
    )
    await bench.publisher.publish([call])
    assert (bench.words("k"), bench.replies, call.is_attached) == (["known"], [body], False)


async def test_what_may_have_run_and_has_no_record_is_unknown_and_no_news(bench: Bench) -> None:
    call = bench.call("k")
    call.again = True
    await bench.publisher.publish([call])
    assert call.outcome is not None
    assert (call.outcome.code, call.outcome.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
    assert not call.is_new_outcome


async def test_what_an_earlier_epoch_may_have_taken_is_started_by_nobody(bench: Bench) -> None:
    """It may run there; what may run twice goes on."""
    write, read = bench.call("w"), bench.call("r", spec=READ)
    assert await bench.publisher.publish([write, read], sent=True, epoch="memory.earlier")
    assert bench.queue.said == [("stranded", "w")]
    assert bench.transport.tries[0]["tried_in"] == "memory.earlier"
    assert read.stage is Stage.QUEUED


async def test_an_approved_call_of_an_earlier_epoch_is_looked_at_again(bench: Bench) -> None:
    """Its record says whether it may be sent; nobody would look at it before its time is over."""
    call = bench.call("w")
    call.decided(b"yes")
    assert await bench.publisher.publish([call], sent=True, epoch="memory.earlier")
    assert bench.words("w") == ["to be approved"]
    assert bench.queue.said == []


async def test_a_first_try_names_no_epoch_that_may_have_taken_it(bench: Bench) -> None:
    await bench.publisher.publish([bench.call("k")])
    assert bench.transport.tries[0]["tried_in"] is None


@pytest.mark.parametrize(
    ("was_sent", "is_named"),
    [([False], False), ([True], True), ([False, False], False), ([True, False], True)],
)
async def test_a_try_after_one_that_left_names_the_epoch_of_that_time(
    bench: Bench, was_sent: list[bool], is_named: bool
) -> None:
    """The server may have been replaced in between, by one that has not got what it took."""
    epoch = bench.server.epoch
    bench.transport.before = [fail(away(sent=sent)) for sent in was_sent]
    bench.transport.before.append(lambda: setattr(bench.server, "epoch", "another"))
    call = bench.call("k")
    assert await bench.publisher.publish([call])
    assert bench.transport.tries[-1]["tried_in"] == (epoch if is_named else None)
    assert bench.queue.said == ([("stranded", "k")] if is_named else [])


async def test_every_try_has_the_same_nonce(bench: Bench) -> None:
    """What an earlier one has noted is this one's too, and still to be published."""
    bench.transport.before = [fail(away(sent=True)), fail(away(sent=False))]
    await bench.publisher.publish([bench.call("k")])
    nonces = [tried["nonce"] for tried in bench.transport.tries]
    assert (len(nonces), len(set(nonces))) == (3, 1)


@pytest.mark.parametrize(
    ("sent", "session", "executed"),
    [
        (False, None, Executed.NO),
        (True, None, Executed.UNKNOWN),
        (False, "s-1", Executed.UNKNOWN),
    ],
)
async def test_calls_whose_queue_wait_is_over_are_given_up_and_the_others_go(
    bench: Bench, sent: bool, session: str | None, executed: Executed
) -> None:
    """Somebody else may have sent what belongs to a session."""
    late, call = bench.call("late", wait=-1.0, session=session), bench.call("k")
    bench.transport.before = [fail(away(sent=sent))]
    assert await bench.publisher.publish([late, call])
    assert late.outcome is not None
    assert (late.outcome.code, late.outcome.executed) == (Code.QUEUE_UNREACHABLE, executed)
    assert [tried["keys"] for tried in bench.transport.tries] == [["late", "k"], ["k"]]
    assert call.stage is Stage.QUEUED


async def test_one_try_that_left_is_enough_not_to_say_no(bench: Bench) -> None:
    call = bench.call("k")

    def pass_time() -> None:
        call.start_by = time.monotonic() - 1.0
        raise away(sent=False)

    bench.transport.before = [fail(away(sent=True)), pass_time]
    assert not await bench.publisher.publish([call])
    assert call.outcome is not None
    assert call.outcome.executed is Executed.UNKNOWN


async def test_nothing_went_where_all_was_given_up(bench: Bench) -> None:
    bench.transport.before = [fail(away(sent=False))]
    assert not await bench.publisher.publish([bench.call("k", wait=-1.0)])
    assert await bench.messages() == []


async def test_what_is_answered_is_not_sent(bench: Bench) -> None:
    answered, call = bench.call("a"), bench.call("k")
    answered.answer(Outcome(ok=True))
    await bench.publisher.publish([answered, call])
    assert bench.transport.tries[0]["keys"] == ["k"]
    assert not await bench.publisher.publish([answered])
    assert len(bench.transport.tries) == 1


async def test_what_is_answered_on_its_way_is_to_be_closed(bench: Bench) -> None:
    """Nobody is to start it."""
    call, other = bench.call("a"), bench.call("k")
    bench.transport.after = lambda: call.answer(Outcome(ok=True))
    await bench.publisher.publish([call, other])
    assert bench.said == [("unwanted", "a")]
    assert bench.queued.keys == ["k"]


async def test_what_is_answered_on_its_way_is_left_to_others_who_asked(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open_elsewhere(call)
    bench.transport.after = lambda: call.answer(Outcome(ok=True))
    await bench.publisher.publish([call])
    assert bench.said == []


@pytest.mark.parametrize("what", ["retry", "attempt"])
async def test_an_answer_about_an_earlier_try_of_the_call_is_passed_over(
    bench: Bench, what: str
) -> None:
    """While the message was on its way, the call was started again."""
    call = bench.call("k")

    def start_again() -> None:
        if what == "retry":
            call.start_again(start_by=call.start_by, before=failure(Code.RAISED, "", Executed.YES))
        else:
            call.in_attempt(2)

    bench.transport.after = start_again
    stage = Stage.NEW if what == "retry" else Stage.PUBLISHING
    assert await bench.publisher.publish([call])
    assert (call.stage, call.epoch, call.published_at) == (stage, "", 0.0)
    assert (bench.said, bench.queue.said, bench.queued.keys) == ([], [], [])


async def test_a_call_that_started_before_the_answer_came_goes_on_running(bench: Bench) -> None:
    """The reply stream may be faster than the answer to the publish."""
    call = bench.call("k")

    def start() -> None:
        call.move_to(Stage.QUEUED)
        call.move_to(Stage.RUNNING)

    bench.transport.after = start
    await bench.publisher.publish([call])
    assert call.stage is Stage.RUNNING
    assert call.epoch == bench.server.epoch


async def test_one_call_at_fault_does_not_fail_the_others(bench: Bench) -> None:
    calls = [bench.call(key) for key in "abc"]
    fault = fail(ValueError("x"))
    bench.transport.before = [fault, lambda: None, fault]
    assert await bench.publisher.publish(calls)
    keys = [tried["keys"] for tried in bench.transport.tries]
    assert keys == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [call.stage for call in calls] == [Stage.QUEUED, Stage.PUBLISHING, Stage.QUEUED]
    assert calls[1].outcome is not None
    outcome = calls[1].outcome
    assert (outcome.code, outcome.executed) == (Code.INTERNAL, Executed.UNKNOWN)
    assert "ValueError" in outcome.error


async def test_a_call_at_fault_that_is_retried_is_not_sent_by_the_try_that_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retry is submitted after a pause."""
    call = bench.call("k", spec=READ)

    def retry(pending: PendingCall, outcome: Outcome) -> None:
        pending.start_again(start_by=pending.start_by, before=outcome)

    monkeypatch.setattr(bench, "resolve", retry)
    bench.transport.before = [fail(ValueError("x"))]
    assert not await bench.publisher.publish([call])
    assert (call.key, call.stage, len(bench.transport.tries)) == ("k.1", Stage.NEW, 1)


async def test_nothing_went_where_every_call_is_at_fault(bench: Bench) -> None:
    bench.transport.before = [fail(ValueError("x")) for _ in range(3)]
    assert not await bench.publisher.publish([bench.call("a"), bench.call("b")])
    assert len(bench.transport.tries) == 3


async def test_single_calls_after_a_try_that_left_name_its_epoch(bench: Bench) -> None:
    epoch = bench.server.epoch
    bench.transport.before = [fail(away(sent=True)), fail(ValueError("x")), bench.server.forget]
    assert await bench.publisher.publish([bench.call("a"), bench.call("b")])
    assert [tried["tried_in"] for tried in bench.transport.tries] == [None, epoch, epoch, epoch]
    assert bench.queue.said == [("stranded", "a"), ("stranded", "b")]
