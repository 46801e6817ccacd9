"""Each reply reaches the call that it is about, and no fault ends the reading."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from tests.unit.dispatcher.samples import Told, pending, services
from tests.waiting import eventually
from toolpool.contract.envelope import (
    Envelope,
    Progress,
    Released,
    Reply,
    RunsEnded,
    Settled,
    Started,
    Unclaimed,
)
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.signing import Keyring, generate_key
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.reply_reader import ReplyReader
from toolpool.dispatcher.observer import CallFacts, Observer, Progressed
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
STRANGERS = Envelope(Keyring([generate_key()]))
REPLY = "reply:memory"
DONE = Outcome(ok=True, data=1, worker="w-1")


class Watching(Observer):
    """Notes progress, and outcomes that came too late."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.progress: list[Progressed] = []

    def progressed(self, call: CallFacts, progressed: Progressed) -> None:
        """See `Observer.progressed`."""
        self.progress.append(progressed)

    def late_outcome(self, key: str, worker: str) -> None:
        """See `Observer.late_outcome`."""
        self.told.append((key, worker))


class Failing(MemoryTransport):
    """Cannot be read from a few times."""

    faults_left = 0

    async def receive(self) -> list[bytes]:
        """See `Transport.receive`."""
        if self.faults_left:
            self.faults_left -= 1
            raise OSError("the server is away")
        return await super().receive()


class Bench(Told):
    """A collector, its server, and what it said of which call."""

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()
        self.transport = Failing(self.server)
        self.watching = Watching()
        shared = services(self.transport)
        shared.observers.add(self.watching)
        self.interruptions = 0
        self.collector = ReplyReader(shared, self, on_interruption=self.interrupted)

    def interrupted(self) -> None:
        """Count it."""
        self.interruptions += 1

    def call(self, key: str, *, attempt: int = 1) -> PendingCall:
        """A call that is on its way."""
        made = self.calls[key] = pending(key)
        made.stage = Stage.QUEUED
        made.in_attempt(attempt)
        return made

    def take(self, reply: Reply) -> None:
        self.collector.take(ENVELOPE.encode_reply(reply))

    def put(self, reply: Reply) -> None:
        """Let a worker say it."""
        self.server.put(REPLY, ENVELOPE.encode_reply(reply))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
async def reading(bench: Bench) -> AsyncIterator[Bench]:
    """A bench whose collector runs."""
    task = asyncio.create_task(bench.collector.run())
    yield bench
    assert not task.done(), "the reading goes on"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_an_outcome_answers_its_call(bench: Bench) -> None:
    call, other = bench.call("k"), bench.call("other")
    bench.take(Settled(key="k", outcome=DONE))
    assert call.outcome == DONE
    assert other.is_open
    assert bench.watching.told == []


def test_an_outcome_for_an_answered_call_is_only_reported(bench: Bench) -> None:
    call = bench.call("k")
    first = Outcome(ok=False, code=Code.TIMEOUT, executed=Executed.UNKNOWN)
    call.answer(first)
    bench.take(Settled(key="k", outcome=DONE))
    assert call.outcome is first
    assert bench.watching.told == [("k", "w-1")]


@pytest.mark.parametrize("key", ["k", "k.2"])
def test_an_outcome_for_an_unknown_call_is_reported_by_its_first_record(
    bench: Bench, key: str
) -> None:
    bench.take(Settled(key=key, outcome=DONE))
    assert bench.watching.told == [("k", "w-1")]
    assert bench.said == []


def test_a_start_is_passed_on_for_each_call_of_ours_in_the_batch(bench: Bench) -> None:
    bench.call("a")
    bench.call("b")
    bench.take(Started(batch="x", worker="w-1", keys=("a", "stranger", "b")))
    assert bench.said == [("started", "a"), ("started", "b")]
    assert {call.worker for call in bench.calls.values()} == {"w-1"}


def test_the_end_of_tools_is_passed_on_though_their_calls_were_answered(bench: Bench) -> None:
    bench.take(RunsEnded(worker="w-1", keys=("a", "b")))
    assert bench.said == [("ended", "a"), ("ended", "b")]


def test_progress_is_passed_on(bench: Bench) -> None:
    bench.call("k")
    bench.take(Progress(key="k", done=1.0, total=2.0, message="half"))
    assert bench.watching.progress == [Progressed(done=1.0, total=2.0, message="half")]


@pytest.mark.parametrize(
    ("attempt", "of_reply", "expected"),
    [(1, 1, ["unclaimed"]), (2, 2, ["unclaimed"]), (2, 1, []), (1, 2, [])],
)
def test_a_call_is_passed_on_in_its_present_attempt_only(
    bench: Bench, attempt: int, of_reply: int, expected: list[str]
) -> None:
    """An old message that a worker lacks the tool for says nothing about the one sent since."""
    bench.call("k", attempt=attempt)
    bench.take(Unclaimed(key="k", attempt=of_reply, worker="w-1"))
    assert bench.words("k") == expected


def test_why_a_call_was_passed_is_handed_on(bench: Bench) -> None:
    bench.call("k")
    bench.take(Unclaimed(key="k", attempt=1, worker="w-1", reason="switch"))
    assert bench.words("k") == ["unclaimed: switch"]


@pytest.mark.parametrize(
    ("attempt", "of_reply", "expected"),
    [(1, 1, ["released"]), (1, 2, ["released"]), (2, 1, []), (3, 2, [])],
)
def test_a_release_of_an_attempt_that_is_over_is_old_news(
    bench: Bench, attempt: int, of_reply: int, expected: list[str]
) -> None:
    """One of a later attempt is not: another dispatcher may have sent it."""
    bench.call("k", attempt=attempt)
    bench.take(Released(key="k", attempt=of_reply, worker="w-1"))
    assert bench.words("k") == expected


@pytest.mark.parametrize(
    "reply",
    [
        Started(batch="x", worker="w-1", keys=("k",)),
        Progress(key="k", done=1.0),
        Unclaimed(key="k", attempt=1, worker="w-1"),
        Released(key="k", attempt=1, worker="w-1"),
    ],
)
def test_a_notification_of_a_foreign_call_is_ignored(bench: Bench, reply: Reply) -> None:
    bench.call("other")
    bench.take(reply)
    assert (bench.said, bench.watching.progress, bench.watching.told) == ([], [], [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no reply",
        STRANGERS.encode_reply(Settled(key="k", outcome=DONE)),
        ENVELOPE.encode_reply(Settled(key="k", outcome=DONE))[:-1],
    ],
    ids=["empty", "malformed", "a stranger's", "cut"],
)
def test_bytes_that_are_no_reply_of_ours_are_logged_and_passed_over(
    bench: Bench, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    call = bench.call("k")
    bench.collector.take(data)
    assert call.is_open
    assert "reply_rejected" in caplog.text


async def test_replies_are_read_as_they_come(reading: Bench) -> None:
    calls = [reading.call(key) for key in "abc"]
    for call in calls:
        reading.put(Settled(key=call.key, outcome=DONE))
    await eventually(lambda: not reading.all_open(), "all are answered")


async def test_a_bad_reply_does_not_keep_the_next_from_its_call(reading: Bench) -> None:
    call = reading.call("k")
    reading.server.put(REPLY, b"no reply")
    reading.put(Settled(key="k", outcome=DONE))
    await eventually(lambda: not call.is_open, "it is answered")


async def test_reading_goes_on_after_the_server_was_away(
    reading: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = reading.call("a"), reading.call("b")
    reading.transport.faults_left = 2
    reading.put(Settled(key="a", outcome=DONE))
    await eventually(lambda: not first.is_open, "what was there is taken")
    reading.put(Settled(key="b", outcome=DONE))
    await eventually(lambda: not second.is_open, "what came meanwhile is taken too")
    assert reading.transport.faults_left == 0
    assert "the server is away" in caplog.text


async def test_a_fault_with_one_reply_does_not_keep_the_others_waiting(
    reading: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: PendingCall) -> None:
        if call.key == "a":
            raise ZeroDivisionError

    reading.on_answer = fail
    reading.call("a")
    call = reading.call("b")
    with caplog.at_level(logging.ERROR):
        for key in "ab":
            reading.put(Settled(key=key, outcome=DONE))
        await eventually(lambda: not call.is_open, "the other is answered")
    assert "reply_not_taken" in caplog.text


@pytest.mark.parametrize(("ago", "left"), [(0.0, 60.0), (44.95, 15.1), (70.0, 0.1)])
def test_a_recorded_refusal_holds_for_the_rest_of_its_time(
    bench: Bench, ago: float, left: float
) -> None:
    call = bench.call("k")
    no = failure(Code.OVERLOADED, "", Executed.NO, retry_after=60.0)
    at = bench.transport.server_time() - ago
    bench.collector.take(ENVELOPE.encode_reply(Settled(key="k", outcome=no, at=at)))
    assert call.outcome is not None
    assert call.outcome.retry_after == pytest.approx(left, abs=0.11)
    assert call.outcome.executed is Executed.NO


def test_a_tools_own_retry_after_is_left_alone(bench: Bench) -> None:
    call = bench.call("k")
    said = failure(Code.REPORTED, "busy", Executed.YES, retry_after=60.0)
    bench.collector.take(ENVELOPE.encode_reply(Settled(key="k", outcome=said, at=1.0)))
    assert call.outcome == said


async def test_each_failure_to_read_and_its_end_are_interruptions(bench: Bench) -> None:
    bench.transport.faults_left = 2
    reading = asyncio.create_task(bench.collector.run())
    call = bench.call("k")
    bench.put(Settled(key="k", outcome=DONE))
    await eventually(lambda: not call.is_open, "it reads again")
    assert bench.interruptions == 3
    reading.cancel()


def test_a_refusal_of_an_earlier_try_answers_nothing_unless_its_record_says_so(
    bench: Bench,
) -> None:
    """It is never sent: what comes by the stream was put there again."""
    call = bench.call("k")
    no = failure(Code.OVERLOADED, "", Executed.NO, retry_after=1.0)
    refusal = ENVELOPE.encode_settled("k", no)
    bench.collector.take(refusal, is_record=False)
    assert call.is_open
    bench.collector.take(refusal)
    assert call.outcome == no
