"""What a dispatcher reports of itself, and which calls it names when it is asked."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from tests.unit.dispatcher.samples import Told, pending, services
from toolpool.contract.envelope import Envelope, Question
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.operator_messages import Answer, DispatcherReport
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.signing import Keyring, generate_key
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.reporting import RecentlyEnded, Reporter
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())


class Bench(Told):
    """A reporter over calls that a test puts there."""

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()
        shared = services(MemoryTransport(self.server))
        self.observers = shared.observers
        self.breaker = Breaker(shared.settings, shared.observers)
        self.cancelled: list[str] = []
        self.pump = Pump(shared, self)
        self.reporter = Reporter(
            shared, self, pump=self.pump, breaker=self.breaker, cancel=self._cancel
        )

    async def _cancel(self, calls: Any) -> None:
        for call in calls:
            self.cancelled.append(call.call.id)
            call.answer(Outcome(ok=False, code=Code.CANCELLED, executed=Executed.NO))

    def add(self, key: str, *, stage: Stage = Stage.NEW, session: str | None = "s") -> PendingCall:
        call = pending(key)
        call.message = msgspec.structs.replace(call.message, session=session)
        call.stage = stage
        self.calls[key] = call
        return call

    async def ask(self, ends_in: float = 60.0, **what: Any) -> Any:
        question = Question(id="q", ends_at=time.time() + ends_in, **what)
        await self.reporter.answer(question)
        stream = RedisKeys().reply("q")
        try:
            async with asyncio.timeout(0.01):
                return ENVELOPE.decode(Answer, (await self.server.take(stream))[1])
        except TimeoutError:
            return None


async def test_a_report_counts_what_waits_by_tool_and_reason() -> None:
    bench = Bench()
    bench.add("a", stage=Stage.RUNNING)
    bench.add("b", stage=Stage.QUEUED)
    bench.add("c", stage=Stage.QUEUED)
    bench.add("d")
    report = ENVELOPE.decode(DispatcherReport, bench.reporter.report())
    assert (report.open, report.running) == (4, 1)
    assert {(w.waits_for, w.count) for w in report.waiting} == {("slot", 2), ("retry", 1)}


async def test_a_report_says_which_failures_ended_calls_and_how_many_calls_there_were() -> None:
    bench = Bench()
    raised = Outcome(ok=False, code=Code.RAISED, executed=Executed.YES)
    bench.observers.ended(pending("x"), raised)
    [row] = ENVELOPE.decode(DispatcherReport, bench.reporter.report()).ended
    assert (row.calls, row.failures) == (1, {"runtime.raised": 1})
    [row] = ENVELOPE.decode(DispatcherReport, bench.reporter.report()).ended
    assert row.calls == 1


def test_the_oldest_minutes_give_way_to_new_ones() -> None:
    ended = RecentlyEnded()
    start = ended.since
    for minute in range(70):
        ended.add({"t": 1}, {("t", "runtime.raised"): 1}, start + 60 * minute)
    rows = ended.rows()
    assert len(rows) == 60
    assert ended.since == rows[0].minute * 60.0
    ended.add({f"tool {n}": 1 for n in range(500)}, {("tool 7", "x"): 1}, start + 60 * 70)
    assert len(ended.rows()) == 100
    assert ended.rows()[0].tool == "tool 7"


async def test_a_call_is_named_by_id_key_or_session() -> None:
    bench = Bench()
    call = bench.add("k", stage=Stage.QUEUED)
    bench.add("other", stage=Stage.QUEUED, session="s-2")
    for what in ({"call": call.call.id, "session": "s"}, {"key": "k.1"}, {"session": "s"}):
        answer = await bench.ask(**what)
        assert [status.key for status in answer.calls] == ["k"], what
    assert (await bench.ask(call="nobody's")).calls == []
    assert (await bench.ask()).calls == []


async def test_a_cancel_ends_the_calls_and_says_how() -> None:
    bench = Bench()
    bench.add("k")
    [status] = (await bench.ask(key="k", cancel=True)).calls
    assert (status.cancelled, status.executed) == ("aborted.cancelled", "no")


async def test_an_old_question_cancels_nothing_and_is_not_answered() -> None:
    bench = Bench()
    bench.add("k")
    assert await bench.ask(ends_in=-1.0, key="k", cancel=True) is None
    assert bench.cancelled == []


async def test_an_answer_names_a_hundred_calls_and_counts_the_rest() -> None:
    bench = Bench()
    for number in range(103):
        bench.add(f"k{number}")
    answer = await bench.ask(session="s")
    assert (len(answer.calls), answer.more) == (100, 3)


def test_a_report_of_another_signer_is_refused() -> None:
    other = Envelope(Keyring([generate_key()]))
    with pytest.raises(MessageRejected):
        other.decode(DispatcherReport, Bench().reporter.report())
