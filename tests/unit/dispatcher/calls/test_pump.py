"""Fairness, batches and limits of the pump, on a transport held in the test's hand."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.dispatcher.samples import HeldTransport, Told, away, pending, services, turns
from tests.waiting import eventually
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump

LOOP = "toolpool.default.loop"


class Bench(Told):
    """A pump, its transport, and what became of its calls."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.transport = HeldTransport()
        self.answers: dict[str, Outcome] = {}
        self.pump = Pump(services(self.transport, **settings), self)
        self.pump.set_workers({RedisKeys().queue("default", run_in): [1] for run_in in RunIn})

    def resolve(self, pending: PendingCall, outcome: Outcome) -> None:
        """As the dispatcher does: answer, then tell the pump."""
        if pending.is_open:
            pending.answer(outcome)
            self.answers[pending.key] = outcome
            self.pump.done(pending)

    @property
    def sent(self) -> list[str]:
        """The keys of every message, in order."""
        return [key for batch in self.transport.batches for key in batch]

    def submit(self, *keys: str, **options: Any) -> list[PendingCall]:
        """Calls named `session-number`."""
        calls = [pending(key, flow=key.split("-")[0], **options) for key in keys]
        for call in calls:
            self.pump.submit(call)
        return calls

    async def gather(self, *keys: str, **options: Any) -> list[PendingCall]:
        """Submit while a publish is under way, then let all go on."""
        self.transport.hold()
        first = self.submit("first-0")
        await turns()
        calls = self.submit(*keys, **options)
        self.transport.let_go()
        await turns(20)
        return first + calls


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench


async def test_an_idle_pump_sends_at_once(bench: Callable[..., Bench]) -> None:
    """Batching never adds latency: nothing is waited for when nothing is under way."""
    made = bench()
    (call,) = made.submit("a-0")
    await turns()
    assert made.transport.batches == [["a-0"]]
    assert call.stage is Stage.QUEUED


async def test_what_arrives_during_a_publish_leaves_together(bench: Callable[..., Bench]) -> None:
    made = bench()
    await made.gather("a-0", "a-1", "b-0")
    assert made.transport.batches[0] == ["first-0"]
    assert sorted(made.transport.batches[1]) == ["a-0", "a-1", "b-0"]
    assert len(made.transport.batches) == 2


async def test_sessions_take_turns(bench: Callable[..., Bench]) -> None:
    """A noisy session goes no further ahead than one call a round."""
    made = bench()
    await made.gather(*(f"noisy-{n}" for n in range(5)), "quiet-0", "other-0", "quiet-1")
    assert made.transport.batches[1] == [
        "noisy-0", "quiet-0", "other-0", "noisy-1", "quiet-1", "noisy-2", "noisy-3", "noisy-4",
    ]  # fmt: skip


async def test_a_session_keeps_its_order(bench: Callable[..., Bench]) -> None:
    made = bench()
    await made.gather(*(f"a-{n}" for n in range(30)))
    assert made.transport.batches[1] == [f"a-{n}" for n in range(30)]


@pytest.mark.parametrize(
    ("run_in", "largest"), [(RunIn.LOOP, 64), (RunIn.THREAD, 8), (RunIn.PROCESS, 1)]
)
async def test_a_message_holds_no_more_than_its_kind_allows(
    bench: Callable[..., Bench], run_in: RunIn, largest: int
) -> None:
    """Before anything is known of the calls' pace."""
    made = bench()
    made.pump.set_workers({f"toolpool.default.{run_in}": [1000]})
    made.transport.hold()
    made.submit("first-0", run_in=run_in)
    await turns()
    made.submit(*(f"a{n}-0" for n in range(200)), run_in=run_in)
    made.transport.let_go()
    await turns(400)
    sizes = [len(batch) for batch in made.transport.batches[1:]]
    assert sum(sizes) == 200
    assert max(sizes) == largest


async def test_a_message_is_no_larger_than_its_bytes_allow(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments' bytes count; one call that is larger than that goes alone."""
    monkeypatch.setattr("toolpool.dispatcher.calls.pump._BATCH_BYTES", 100)
    made = bench()
    made.pump.set_workers({LOOP: [1000]})
    await made.gather("a-0", "b-0", "c-0", size=40)
    await made.gather("d-0", size=500)
    sent = [batch for batch in made.transport.batches if "first-0" not in batch]
    assert sent == [["a-0", "b-0"], ["c-0"], ["d-0"]]


async def test_a_session_has_so_many_in_flight(bench: Callable[..., Bench]) -> None:
    made = bench(in_flight_per_session=2)
    calls = made.submit(*(f"a-{n}" for n in range(4)), "b-0")
    await turns(20)
    assert sorted(made.sent) == ["a-0", "a-1", "b-0"]
    made.resolve(calls[0], Outcome(ok=True))
    await turns()
    assert made.transport.batches[-1] == ["a-2"]


async def test_a_session_s_cap_is_for_all_its_queues(bench: Callable[..., Bench]) -> None:
    made = bench(in_flight_per_session=2, waiting_per_session=3)
    loop = made.submit("a-0", "a-1")
    await turns()
    thread = made.submit("a-2", "a-3", run_in=RunIn.THREAD)
    made.submit("a-4")
    made.submit("a-5", run_in=RunIn.PROCESS)
    await turns(20)
    assert sorted(made.sent) == ["a-0", "a-1"]
    assert set(made.answers) == {"a-5"}
    made.resolve(loop[0], Outcome(ok=True))
    await turns(20)
    assert made.sent[2:] == ["a-4"], "of the queue in which there was room first"
    made.resolve(loop[1], Outcome(ok=True))
    await turns(20)
    assert made.sent[3:] == [thread[0].key]


async def test_a_background_call_that_ends_forgets_nothing_of_its_session(
    bench: Callable[..., Bench],
) -> None:
    pump = bench(in_flight_per_session=2)
    [behind] = pump.submit("a-0", run_in=RunIn.THREAD)
    await turns(20)
    pump.pump.move_to_background(behind)
    behind.move_to_background(60.0)
    [first] = pump.submit("a-1")
    await turns(20)
    pump.resolve(first, Outcome(ok=True))
    calls = pump.submit("a-2", "a-3", "a-4")
    await turns(20)
    pump.resolve(behind, Outcome(ok=True))
    calls += pump.submit("a-5", run_in=RunIn.PROCESS)
    await turns(20)
    assert [call.key for call in calls if call.is_in_flight] == ["a-2", "a-3"]


async def test_what_workers_cannot_start_yet_waits_here(bench: Callable[..., Bench]) -> None:
    """Their slots and two batches a worker are ahead, so that others are not behind a backlog."""
    made = bench(in_flight_per_session=10_000)
    made.pump.set_workers({LOOP: [10, 10]})
    calls = made.submit(*(f"s{n % 7}-{n}" for n in range(1000)))
    await turns(500)
    sent = sum(len(batch) for batch in made.transport.batches)
    assert 20 + 2 * 2 * 64 - 64 < sent <= 20 + 2 * 2 * 64
    assert made.pump.waiting == 1000 - sent
    by_key = {call.key: call for call in calls}
    for key in made.transport.batches[0] + made.transport.batches[1]:
        made.pump.queue_of(by_key[key]).started(by_key[key])
    await turns(100)
    assert sum(len(batch) for batch in made.transport.batches) > sent


async def test_slow_calls_leave_in_small_messages(bench: Callable[..., Bench]) -> None:
    """A batch stays with the worker that took it: about a tenth of a second of its work."""
    made = bench()
    made.pump.set_workers({LOOP: [4]})
    (first,) = made.submit("a-0")
    await turns()
    made.resolve(first, Outcome(ok=True, worker="w", duration=0.2))
    made.transport.batches.clear()
    await made.gather(*(f"b{n}-0" for n in range(8)))
    assert {len(batch) for batch in made.transport.batches} == {1, 2}


async def test_a_full_room_is_said_at_once_and_drops_nothing(bench: Callable[..., Bench]) -> None:
    made = bench(waiting_per_session=3, in_flight_per_session=1)
    made.submit("a-0")
    await turns()
    made.submit(*(f"a-{n}" for n in range(1, 6)), "b-0")
    await turns()
    refused = dict(made.answers)
    assert set(refused) == {"a-4", "a-5"}
    for outcome in refused.values():
        assert (outcome.code, outcome.executed) == (Code.OVERLOADED, Executed.NO)
        assert outcome.retry_after
    assert made.pump.waiting == 3


async def test_the_dispatchers_room_is_for_all_queues(bench: Callable[..., Bench]) -> None:
    made = bench(waiting_per_dispatcher=2, in_flight_per_session=1)
    made.submit("a-0")
    await turns()
    made.submit("a-1", "a-2")
    made.submit("b-0", run_in=RunIn.THREAD)
    assert made.answers["b-0"].code is Code.OVERLOADED


@pytest.mark.parametrize(
    ("first", "last", "executed"),
    [(False, False, Executed.NO), (False, True, Executed.UNKNOWN), (True, False, Executed.UNKNOWN)],
)
async def test_what_could_not_be_published_in_time_says_whether_it_ever_left(
    bench: Callable[..., Bench], first: bool, last: bool, executed: Executed
) -> None:
    """R8: one attempt of which bytes left is enough not to say `no`."""
    made = bench()
    made.transport.fails = [away(sent=first), away(sent=last)]
    made.transport.hold()
    (call,) = made.submit("a-0", wait=0.2)
    await turns()
    made.transport.let_go()
    made.transport.hold()
    await eventually(lambda: time.monotonic() > call.start_by, "its queue wait is over")
    made.transport.let_go()
    await turns(20)
    outcome = made.answers["a-0"]
    assert made.sent == ["a-0", "a-0"]
    assert (outcome.code, outcome.executed) == (Code.QUEUE_UNREACHABLE, executed)


async def test_what_no_worker_could_start_in_time_is_not_sent(bench: Callable[..., Bench]) -> None:
    """It would be on its way when its queue wait ends, and nobody could say that it did not run."""
    made = bench(in_flight_per_session=1)
    first, late, _ = [*made.submit("a-0"), *made.submit("a-1", wait=0.05), *made.submit("a-2")]
    await turns()
    made.resolve(first, Outcome(ok=True))
    await turns()
    assert made.transport.batches == [["a-0"], ["a-2"]]
    assert (late.stage, late.is_open) == (Stage.WAITING, True), "it is its keeper's to answer"


async def test_what_is_being_cancelled_is_not_sent(bench: Callable[..., Bench]) -> None:
    made = bench(in_flight_per_session=1)
    first, second, _ = made.submit("a-0", "a-1", "a-2")
    await turns()
    second.abandoned()
    made.resolve(first, Outcome(ok=True))
    await turns()
    assert made.transport.batches == [["a-0"], ["a-2"]]


async def test_what_is_denied_while_it_waits_is_not_sent(bench: Callable[..., Bench]) -> None:
    """R32: the kill switch holds for what was accepted before it was thrown."""
    made = bench(in_flight_per_session=1)
    first, *_ = made.submit("a-0", "a-1", "a-2")
    await turns()
    made.denials["a-1"] = Outcome(ok=False, code=Code.DENIED)
    made.resolve(first, Outcome(ok=True))
    await turns()
    assert made.transport.batches == [["a-0"], ["a-2"]]
    assert made.answers["a-1"].code is Code.DENIED


async def test_answered_calls_take_no_room(bench: Callable[..., Bench]) -> None:
    """However long their session has no place free."""
    made = bench(in_flight_per_session=1, waiting_per_session=3)
    made.submit("a-0")
    await turns()
    for round_number in range(5):
        for call in made.submit(*(f"a-{round_number}{n}" for n in range(3))):
            made.resolve(call, Outcome(ok=False, code=Code.EXPIRED))
    assert made.pump.waiting == 0
    made.submit("a-9")
    assert Code.OVERLOADED not in {outcome.code for outcome in made.answers.values()}


async def test_one_bad_call_does_not_fail_its_batch(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.transport.fails_for = {"a-1"}
    await made.gather("a-0", "a-1", "a-2")
    assert {key: outcome.code for key, outcome in made.answers.items()} == {"a-1": Code.INTERNAL}


async def test_calls_answered_on_their_way_are_to_be_closed(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.transport.hold()
    (call,) = made.submit("a-0")
    await turns()
    made.resolve(call, Outcome(ok=False, code=Code.CANCELLED))
    made.transport.let_go()
    await turns()
    assert made.words(call.key) == ["unwanted"]


async def test_a_server_that_is_nearly_full_takes_no_new_calls(
    bench: Callable[..., Bench],
) -> None:
    """What memory is left is for ending the calls it has."""
    made = bench()
    made.transport.is_full = True
    made.submit("a-0")
    made.transport.is_full = False
    made.submit("a-1")
    await turns()
    refused = made.answers["a-0"]
    assert (refused.code, refused.error) == (Code.OVERLOADED, "server_full")
    assert made.sent == ["a-1"]


async def test_a_few_calls_behind_many_wait_for_company(bench: Callable[..., Bench]) -> None:
    """Nothing would start sooner, and each message costs; they leave when their turn is near."""
    made = bench()
    made.pump.set_workers({LOOP: [10]})
    ahead = await made.gather(*(f"a{n}-0" for n in range(49)))
    assert len(made.sent) == 50
    made.submit(*(f"b{n}-0" for n in range(5)))
    await turns(20)
    assert len(made.sent) == 50
    for call in ahead[:37]:
        made.pump.queue_of(call).started(call)
    await turns(20)
    assert made.sent[50:] == [f"b{n}-0" for n in range(5)]


async def test_publishing_goes_on_until_the_server_confirms(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.transport.fails = [away(sent=True), away(sent=True)]
    (call,) = made.submit("a-0")
    await turns(20)
    assert made.transport.batches == [["a-0"]] * 3
    assert (call.stage, made.answers) == (Stage.QUEUED, {})
    assert len(set(made.transport.nonces)) == 1, "a record noted by an earlier try is still new"


async def test_a_fault_of_ours_is_an_internal_one(bench: Callable[..., Bench]) -> None:
    made = bench()
    made.transport.fails = [ZeroDivisionError("x")]
    made.submit("a-0")
    await turns(20)
    assert (made.answers["a-0"].code, made.answers["a-0"].executed) == (
        Code.INTERNAL, Executed.UNKNOWN,
    )  # fmt: skip
    made.submit("a-1")
    await turns(20)
    assert made.transport.batches[-1] == ["a-1"], "the pump goes on"


async def test_a_call_answered_while_it_waited_is_not_sent(bench: Callable[..., Bench]) -> None:
    made = bench(in_flight_per_session=1)
    first, second, _third = made.submit("a-0", "a-1", "a-2")
    await turns()
    made.resolve(second, Outcome(ok=False, code=Code.CANCELLED))
    made.resolve(first, Outcome(ok=True))
    await turns()
    assert made.transport.batches == [["a-0"], ["a-2"]]


async def test_nothing_is_left_of_calls_that_are_answered(bench: Callable[..., Bench]) -> None:
    """Lines, counts and places in the ring, whatever stage the calls were in."""
    made = bench(in_flight_per_session=2)
    calls = made.submit(*(f"s{n % 5}-{n}" for n in range(50)))
    await turns(50)
    while any(call.is_open for call in calls):
        for call in calls:
            if call.stage is Stage.QUEUED and call.is_open:
                made.pump.queue_of(call).started(call)
                made.resolve(call, Outcome(ok=True))
        await turns(20)
    (queue,) = made.pump._queues.values()
    assert (made.pump.waiting, queue._unstarted, queue._in_flight) == (0, 0, 0)
    assert (queue._flows, list(queue._ring)) == ({}, [])
    assert sorted(made.sent) == sorted(call.key for call in calls)


async def test_without_workers_one_message_is_sent_and_no_more(bench: Callable[..., Bench]) -> None:
    """What nobody takes would lie on the queue long after its calls have ended."""
    made = bench()
    made.pump.set_workers({})
    calls = made.submit(*(f"a-{n}" for n in range(3)))
    await turns()
    assert len(made.transport.batches) == 1
    for call in calls:
        made.resolve(call, failure(Code.EXPIRED, "", Executed.NO))
    made.submit("a-9")
    await turns()
    assert len(made.transport.batches) == 1
    made.pump.set_workers({LOOP: [1]})
    await turns()
    assert made.sent[-1] == "a-9"


async def test_idle_workers_share_what_waits(bench: Callable[..., Bench]) -> None:
    """In one message all of it would be one worker's, and the others would go on idling."""
    made = bench()
    made.pump.set_workers({LOOP: [16, 16, 16, 16]})
    for _ in range(100):  # fast calls: large messages would be best
        made.pump.queue_of(pending("x"))._batch_sizing.note(
            Outcome(ok=True, worker="w", duration=1e-4)
        )
    made.submit(*(f"a-{n}" for n in range(64)))
    await turns(20)
    assert [len(batch) for batch in made.transport.batches] == [16, 16, 16, 16]


async def test_a_call_that_was_handed_over_takes_no_place_of_its_session(
    bench: Callable[..., Bench],
) -> None:
    """R35: background calls run for a day; their session goes on."""
    made = bench(in_flight_per_session=2)
    first, second, _ = made.submit("a-0", "a-1", "a-2")
    await turns()
    assert made.sent == ["a-0", "a-1"]
    for call in (first, second):
        made.pump.move_to_background(call)
        call.move_to_background(60.0)
    made.submit("a-3", "a-4")
    await turns()
    assert made.sent == ["a-0", "a-1", "a-2", "a-3"]
    for call in (first, second):
        made.resolve(call, Outcome(ok=True))
    await turns()
    assert len(made.sent) == 4, "what they gave back once is not given back twice"


async def test_a_call_changes_its_queue_with_its_count(bench: Callable[..., Bench]) -> None:
    made = bench()
    (call,) = made.submit("a-0")
    await turns()
    made.pump.reroute(call, "elsewhere")
    known, other = made.pump._queues[LOOP], made.pump.queue_of(call)
    assert (known._unstarted, known._in_flight, known._flows) == (0, 0, {})
    assert (other._unstarted, other._in_flight) == (1, 1)
    made.resolve(call, Outcome(ok=True))
    assert (other._unstarted, other._in_flight, other._flows) == (0, 0, {})
    assert made.pump.sessions == {}


async def test_a_retry_that_was_not_sent_is_not_counted_as_sent(
    bench: Callable[..., Bench],
) -> None:
    """Word that its first try was sent again may come when it is a retry by then."""
    made = bench(in_flight_per_session=1)
    retry = pending("a-0", flow="a")
    made.pump.queue_of(retry).published_again(retry)
    assert retry.stage is Stage.NEW
    _, waiting = made.submit("b-0", "b-1")
    await turns()
    made.pump.queue_of(waiting).published_again(waiting)
    assert waiting.stage is Stage.WAITING
    (queue,) = made.pump._queues.values()
    assert (queue._unstarted, queue._in_flight) == (1, 1)


@pytest.mark.parametrize("hurt", ["orphaned", "started"])
async def test_a_call_is_taken_back_once_from_wherever_it_was(
    bench: Callable[..., Bench], hurt: str
) -> None:
    """As where its record says that it was approved and not sent."""
    made = bench()
    (call,) = made.submit("a-0")
    await turns()
    getattr(made.pump.queue_of(call), hurt)(call)
    made.pump.take_back(call)
    assert call.stage is Stage.NEW
    (queue,) = made.pump._queues.values()
    assert (queue._unstarted, queue._in_flight, queue._flows) == (0, 0, {})
    made.resolve(call, Outcome(ok=True))
    assert (queue._unstarted, queue._in_flight, queue._flows) == (0, 0, {})
