"""What a worker sends to Sentry of its runs (R44)."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.sentry_sink import SentrySink, sentry_sink
from tests.unit.facts import run_ended, run_facts
from tests.waiting import eventually
from toolpool import Misconfigured
from toolpool.contract.exception_report import Failure
from toolpool.contract.outcome import SWITCHED_OFF, Code
from toolpool.contract.settings import Settings
from toolpool.workers.observers.sentry import Sentry
from toolpool.workers.worker_observer import Blocked, Received, Unresolved, WorkerObservers


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[SentrySink]:
    monkeypatch.setenv("SENTRY_TRACES_SAMPLE_RATE", "1.0")
    with sentry_sink() as opened:
        yield opened


@pytest.fixture
def observers(sink: SentrySink) -> Iterator[WorkerObservers]:
    told = WorkerObservers([Sentry(Settings(), sink.dsn)], settings=Settings(), tools={})
    told.start()
    yield told
    told.close()


RECEIVED = Received(calls=1, bytes=10, seconds=0.25)
ENDED = run_ended()


async def test_a_run_is_at_the_time_it_took_place_though_it_is_told_later(
    observers: WorkerObservers, sink: SentrySink
) -> None:
    facts = run_facts()
    observers.notify("started", facts, RECEIVED)
    observers.notify("ended", facts, ENDED)
    await eventually(lambda: sink.of("transaction"), "it is sent")
    [transaction] = sink.of("transaction")
    spans = (transaction, *transaction["spans"])
    times = [(span["start_timestamp"], span["timestamp"]) for span in spans]
    assert times == [(ENDED.at - 0.5, ENDED.at)] * 3


async def test_a_run_given_back_in_the_turn_it_began_in_leaves_nothing(
    observers: WorkerObservers, sink: SentrySink
) -> None:
    given_back, other = run_facts(), run_facts(call_id="other", key="other")
    observers.notify("started", given_back, RECEIVED)
    observers.notify("released", given_back)
    await asyncio.sleep(0)
    observers.notify("ended", given_back, ENDED)
    observers.notify("started", other, RECEIVED)
    observers.notify("ended", other, ENDED)
    await eventually(lambda: sink.of("transaction"), "the other is sent")
    data = [transaction["spans"][1]["data"] for transaction in sink.of("transaction")]
    assert [span["gen_ai.tool.call.id"] for span in data] == ["other"]


def drops_all(event: dict[str, object], hint: object) -> None:
    return None


def test_a_worker_s_settings_name_functions_that_change_its_reports(sink: SentrySink) -> None:
    for settings in (Settings(sentry_before_send=f"{__name__}:drops_all"), Settings()):
        observer = Sentry(settings, sink.dsn)
        observer.open()
        observer.ended(run_facts(), run_ended(Code.RAISED))
        observer.close()
    assert len(sink.of("event")) == 1
    with pytest.raises(Misconfigured, match="BEFORE_SEND: nowhere:at_all cannot be loaded"):
        Sentry(Settings(sentry_before_send="nowhere:at_all"), sink.dsn)


def test_what_an_operator_s_switch_denies_is_no_issue(sink: SentrySink) -> None:
    observer = Sentry(Settings(), sink.dsn)
    observer.open()
    for cause in (SWITCHED_OFF, "no policy judged it"):
        denied = Failure(text=None, faults=(), digest="", arguments_bytes=2, cause=cause)
        observer.ended(run_facts(), run_ended(Code.DENIED, failure=denied))
    observer.close()
    assert len(sink.of("event")) == 1


def test_a_missing_secret_is_an_issue_and_what_fails_for_all_of_them_is_one(
    sink: SentrySink,
) -> None:
    observer = Sentry(Settings(), sink.dsn)
    observer.open()
    for name, is_missing in (("a", True), ("b", True), ("a", False), ("b", False)):
        observer.unresolved(
            Unresolved(
                name=name, tool="t", source="env", why="why", is_missing=is_missing, seconds=0.0,
                faults=(), text=None,
            )
        )  # fmt: skip
    observer.close()
    fingerprints = [tuple(event["fingerprint"]) for event in sink.of("event")]
    assert len(fingerprints) == 4
    assert len(set(fingerprints)) == 3


def test_a_loop_that_is_blocked_is_grouped_by_the_line_that_blocks(sink: SentrySink) -> None:
    observer = Sentry(Settings(), sink.dsn)
    observer.open()
    for line, code in ((3, "time.sleep(9)"), (7, "time.sleep(9)"), (9, "requests.get(url)")):
        stack = f'  File "/app/shop.py", line {line}, in find\n    {code}\n'
        observer.blocked(Blocked(tool="find", seconds=1.0, stack=stack, is_fatal=False))
    observer.close()
    assert len({tuple(event["fingerprint"]) for event in sink.of("event")}) == 2
