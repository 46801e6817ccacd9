"""The way to a Sentry project, whoever uses it and however often."""

import logging
from collections.abc import Iterator

import pytest

from tests.sentry_sink import SentrySink, sentry_sink
from tests.waiting import wait_until
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import sentry
from toolpool.contract.telemetry.sentry import Reports


@pytest.fixture
def sink() -> Iterator[SentrySink]:
    with sentry_sink() as opened:
        yield opened


def report(reports: Reports, tool: str) -> None:
    reports.issue(
        tool=tool, code="exception.internal", level="error", title="It fails", tags={}, seconds=0.0
    )


def tools(sink: SentrySink) -> list[str]:
    return sorted(event["transaction"] for event in sink.of("event") if event["tags"]["code"])


def test_one_that_is_opened_again_sends_again(sink: SentrySink) -> None:
    reports = Reports(Settings(), sink.dsn)
    for tool in ("first", "second"):
        reports.open()
        report(reports, tool)
        reports.close()
    assert tools(sink) == ["first", "second"]


def test_one_that_two_have_opened_sends_until_both_have_closed_it(sink: SentrySink) -> None:
    reports = Reports(Settings(), sink.dsn)
    reports.open()
    reports.open()
    reports.close()
    report(reports, "late")
    reports.close()
    assert tools(sink) == ["late"]


def test_a_sentry_that_is_away_is_one_warning_and_none_of_urllib3(
    sink: SentrySink, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = sink.dsn
    sink.close()
    reports = Reports(Settings(), dsn)
    with caplog.at_level(logging.WARNING):
        reports.open()
        report(reports, "any")
        reports.close()
    assert {record.name for record in caplog.records} == {"toolpool.sentry"}
    assert len(caplog.records) == 1


def test_an_issue_is_sent_at_once_and_a_transaction_with_others(
    sink: SentrySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentry, "_GATHER_SECONDS", 60.0)
    reports = Reports(Settings(), sink.dsn)
    reports.open()
    for _ in range(3):
        reports.transaction({"transaction": "t", "contexts": {"trace": {}}})
    assert not sink.of("transaction")
    report(reports, "broken")
    wait_until(lambda: tools(sink) == ["broken"], "it is sent")
    wait_until(lambda: len(sink.of("transaction")) == 3, "they go with it")
    reports.close()
