"""The way to a Sentry project, whoever uses it and however often."""

import logging
import platform
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sentry_sink import SentrySink, sentry_sink
from tests.waiting import wait_until
from toolpool.contract.exception_report import ExceptionReport, Failure, Frame
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import sentry_reports
from toolpool.contract.telemetry.sentry_reports import Reports


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
    monkeypatch.setattr(sentry_reports, "_GATHER_SECONDS", 60.0)
    reports = Reports(Settings(), sink.dsn)
    reports.open()
    for _ in range(3):
        reports.transaction({"transaction": "t", "contexts": {"trace": {}}})
    assert not sink.of("transaction")
    report(reports, "broken")
    wait_until(lambda: tools(sink) == ["broken"], "it is sent")
    wait_until(lambda: len(sink.of("transaction")) == 3, "they go with it")
    reports.close()


def fault(code: str = "raise Gone", line: int = 3, **fields: Any) -> ExceptionReport:
    frame = Frame(
        file="/app/shop/orders/__init__.py", line=line, function="find", module="shop.orders",
        code=code, is_own=True,
    )  # fmt: skip
    return ExceptionReport(kind="Gone", module="shop.errors", frames=(frame,), **fields)


def failed(*faults: ExceptionReport, **fields: Any) -> Failure:
    return Failure(text=None, faults=faults, digest="d", arguments_bytes=2, **fields)


def sent(sink: SentrySink, *issues: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The events of some issues."""
    reports = Reports(Settings(), sink.dsn, **options)
    reports.open()
    for issue in issues:
        given: dict[str, Any] = {"tool": "find", "code": Code.RAISED.value, "level": "error"}
        reports.issue(**given | {"tags": {}, "seconds": 0.1} | issue)
    reports.close()
    return sink.of("event")


def groups(events: list[dict[str, Any]]) -> int:
    return len({tuple(event["fingerprint"]) for event in events})


def test_an_issue_is_that_of_the_text_of_the_line_and_not_of_its_number(sink: SentrySink) -> None:
    same = sent(sink, {"failure": failed(fault(line=3))}, {"failure": failed(fault(line=30))})
    assert groups(same) == 1
    assert groups(sent(sink, {"failure": failed(fault("raise Gone(order)"))})) == 2


@pytest.mark.parametrize("code", [Code.CRASHED, Code.BAD_RESULT])
def test_failures_of_one_code_with_different_causes_are_different_issues(
    sink: SentrySink, code: Code
) -> None:
    causes = ("was killed by SIGSEGV", "was killed by SIGKILL", "exited with code 7")
    events = sent(sink, *({"code": code.value, "failure": failed(cause=c)} for c in causes))
    assert groups(events) == 3
    for event, cause in zip(events, causes, strict=True):
        assert event["tags"]["cause"] == cause
        assert cause in event["logentry"]["formatted"]


def test_a_refused_result_is_reported_with_its_size(sink: SentrySink) -> None:
    failure = failed(cause="too large", result_bytes=9_000_000)
    [event] = sent(sink, {"code": Code.BAD_RESULT.value, "failure": failure})
    assert event["contexts"]["tool call"]["result_bytes"] == 9_000_000


def test_every_member_of_an_exception_group_is_a_report_of_its_own(sink: SentrySink) -> None:
    members = ((fault("a"),), (fault("b"),), (fault("a", line=9),))
    group = ExceptionReport(kind="ExceptionGroup", members=members)
    events = sent(sink, {"failure": failed(group)}, {"failure": failed(fault("b"))})
    lines = [event["exception"]["values"][-1]["stacktrace"]["frames"][0]["context_line"]
             for event in events]  # fmt: skip
    assert lines == ["a", "b", "b"]
    assert groups(events) == 2, "alone or in a group it is the same"


@pytest.mark.parametrize(
    ("code", "failure", "count"),
    [
        (Code.WORKER_LOST, failed(), 1),
        (Code.QUEUE_UNREACHABLE, failed(), 1),
        (Code.EXPIRED, failed(), 1),
        (Code.OVERLOADED, failed(), 1),
        (Code.INTERNAL, failed(fault()), 1),
        (Code.CIRCUIT_OPEN, failed(), 2),
        (Code.RAISED, failed(fault()), 2),
    ],
)
def test_one_outage_is_one_issue_and_not_one_of_each_tool(
    sink: SentrySink, code: Code, failure: Failure, count: int
) -> None:
    tools = ("find", "refund")
    events = sent(sink, *({"tool": t, "code": code.value, "failure": failure} for t in tools))
    assert groups(events) == count
    assert {event["tags"]["tool"] for event in events} == set(tools)


def test_an_event_has_the_python_version_and_frames_their_module_and_relative_path(
    sink: SentrySink,
) -> None:
    [event] = sent(sink, {"failure": failed(fault())})
    assert event["contexts"]["runtime"]["version"] == platform.python_version()
    [frame] = event["exception"]["values"][0]["stacktrace"]["frames"]
    assert (frame["module"], frame["filename"]) == ("shop.orders", "shop/orders/__init__.py")
    assert frame["abs_path"] == "/app/shop/orders/__init__.py"


def test_a_host_changes_groups_and_drops_events(sink: SentrySink) -> None:
    def before_send(event: dict[str, Any], hint: dict[str, Any]) -> dict[str, Any] | None:
        group = [event["transaction"], "by-host"]
        changed = event | {"user": {"id": "u-1"}, "fingerprint": group}
        return None if event["transaction"] == "dropped" else changed

    events = sent(sink, {}, {"tool": "dropped"}, before_send=before_send)
    [event] = events
    assert event["fingerprint"] == ["find", "by-host"]
    assert event["user"] == {"id": "u-1"}
    assert event["release"], "it is given the whole event"


def test_a_host_s_function_that_raises_is_logged_and_changes_nothing(
    sink: SentrySink, caplog: pytest.LogCaptureFixture
) -> None:
    def spoils(event: dict[str, Any], *hint: Any) -> Any:
        event.clear()
        raise ValueError("hunter2")

    events = sent(sink, {"tool": "a"}, {"tool": "b"}, before_send=spoils)
    assert [event["transaction"] for event in events] == ["a", "b"]
    assert groups(events) == 2
    assert "sentry_before_send_failed" in caplog.text
    assert "hunter2" not in caplog.text
