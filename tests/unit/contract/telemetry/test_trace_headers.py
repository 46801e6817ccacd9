"""The headers in which a trace travels."""

import pytest

from toolpool.contract.telemetry.trace_headers import (
    Parent,
    from_baggage,
    is_sampled,
    merged,
    new_span_id,
    new_trace_id,
    sentry_parent,
    sentry_trace,
    to_baggage,
)


@pytest.mark.parametrize("is_sampled", [True, False, None])
def test_what_is_written_is_read(is_sampled: bool | None) -> None:
    parent = Parent(new_trace_id(), new_span_id(), is_sampled)
    assert sentry_parent({"sentry-trace": sentry_trace(parent)}) == parent


@pytest.mark.parametrize(
    "header", ["", "nothing", "a-b-1", f"{'a' * 32}-{'b' * 16}-2", f"{'a' * 32}-{'b' * 16}-1\n"]
)
def test_a_header_of_another_form_names_no_span(header: str) -> None:
    assert sentry_parent({"sentry-trace": header}) is None


def test_no_headers_name_no_span() -> None:
    assert sentry_parent(None) is None
    assert from_baggage(None) == {}


def test_baggage_takes_any_text() -> None:
    values = {"gen_ai.agent.name": "shop, north; =100 % ä"}
    header = to_baggage({**values, "left.out": None})
    assert header.isascii()
    assert from_baggage({"baggage": f"sentry-sampled=true;q=1, {header},broken"}) == {
        "sentry-sampled": "true",
        **values,
    }


def test_tracers_add_to_the_baggage_of_one_another() -> None:
    headers = merged(
        {"baggage": "a=1", "sentry-trace": "x"}, {"baggage": "b=2", "traceparent": "y"}
    )
    assert headers == {"baggage": "a=1,b=2", "sentry-trace": "x", "traceparent": "y"}


def test_a_header_that_is_too_long_is_left_out() -> None:
    assert merged({}, {"baggage": "a" * 10_000}) == {}


@pytest.mark.parametrize("decided", [True, False])
def test_what_was_decided_above_holds(decided: bool) -> None:
    above = Parent(new_trace_id(), new_span_id(), decided)
    assert is_sampled(above, "k", 0.0) is decided
    assert is_sampled(above, "k", 1.0) is decided


@pytest.mark.parametrize("above", [None, Parent("a" * 32, "b" * 16, None)])
def test_without_a_decision_the_sampling_rate_decides_alike_everywhere(
    above: Parent | None,
) -> None:
    keys = [f"f574ee5547{number:04x}" for number in range(20_000)]
    chosen = [key for key in keys if is_sampled(above, key, 0.01)]
    assert 150 < len(chosen) < 250
    assert all(is_sampled(above, key, 0.02) for key in chosen), "a higher rate takes more"
    assert not any(is_sampled(above, key, 0.0) for key in keys)
    assert all(is_sampled(above, key, 1.0) for key in keys)
