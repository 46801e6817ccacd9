"""Workers hold a call to what its policy judged, and may require that one did."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleets import judged
from tests.integration.fleet import call, running
from tests.sentry_sink import SentrySink, sentry_sink
from tests.waiting import eventually
from toolpool import Code, Dispatcher, Executed, Hooks
from toolpool.fleet_reader import read_fleet
from toolpool.local import LocalFleet

NAMES = ["mail_on_the_loop", "mail_in_a_thread", "mail_in_a_child"]


@pytest.fixture(scope="module")
def sink() -> Iterator[SentrySink]:
    with sentry_sink() as opened:
        yield opened


@pytest.fixture(scope="module")
def fleet(sink: SentrySink) -> Iterator[LocalFleet]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SENTRY_DSN", sink.dsn)
        with running(judged.__name__, policy_required=True) as fleet:
            yield fleet


async def test_a_call_runs_as_it_was_judged_or_not_at_all(
    fleet: LocalFleet, sink: SentrySink, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    calls = [
        each
        for name in NAMES
        for text in ("a@b.example", " c@d.example")
        for each in call(name, f"{name}-{len(text)}", file=str(notes), to=text)
    ]
    hooks = Hooks(before_call=lambda _: None)
    async with Dispatcher.connect(settings=fleet.settings, hooks=hooks) as dispatcher:
        turn = await dispatcher.dispatch(calls)
    assert [(r.code, r.executed) for r in turn] == [
        (None, Executed.YES),
        (Code.DENIED, Executed.NO),
    ] * 3
    assert turn[1].error == (
        "Tool 'mail_on_the_loop' was not run: the tool would read its arguments (to) in "
        "another way than they were judged; write every value exactly as its schema shows it."
    )
    assert notes.read_text().split() == ["a@b.example"] * 3
    await eventually(lambda: len(sink.of("event")) == 3, "an issue for each tool")
    assert {event["tags"]["tool"] for event in sink.of("event")} == set(NAMES)
    assert b"d.example" not in b"".join(sink.bodies)


async def test_a_switch_on_a_value_denies_what_the_tool_would_read_as_that(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    calls = [
        each
        for name in NAMES
        for text in (" closed ", "open")
        for each in call(name, f"{name}-{text}", file=str(notes), to=text)
    ]
    hooks = Hooks(before_call=lambda _: None)
    async with Dispatcher.connect(settings=fleet.settings, hooks=hooks) as dispatcher:
        with pytest.raises(ValueError, match="no argument 'too'"):
            await dispatcher.deny(NAMES[0], argument="too", value="closed", reason="typo")
        for name in NAMES:
            await dispatcher.deny(name, argument="to", value="closed", reason="not there")
        turn = await dispatcher.dispatch(calls)
        (at_once,) = await dispatcher.dispatch(call(NAMES[0], file=str(notes), to="closed"))
        for name in NAMES:
            await dispatcher.allow(name, argument="to", value="closed")
    assert [(r.code, r.executed) for r in turn] == [
        (Code.DENIED, Executed.NO),
        (None, Executed.YES),
    ] * 3
    assert turn[0].payload() == at_once.payload()
    assert notes.read_text().split() == ["open"] * 3


NO_RULES = "rules = 0"
DENIES_X = """
[[rule]]
tool = "search"
argument = "to"
equals = "x"
action = "deny"
"""


async def test_a_kept_result_is_not_given_to_a_call_that_another_policy_would_deny(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    notes, results = tmp_path / "notes", []
    for number, rules in enumerate([NO_RULES, DENIES_X]):
        policy = tmp_path / f"{number}.toml"
        policy.write_text(rules)
        hooks = Hooks(policy=policy)
        async with Dispatcher.connect(settings=fleet.settings, hooks=hooks) as dispatcher:
            results += await dispatcher.dispatch(call("search", file=str(notes), to=" x "))
    assert [(each.code, each.executed) for each in results] == [
        (None, Executed.YES),
        (Code.DENIED, Executed.NO),
    ]
    assert notes.read_text().split() == ["x"]


@pytest.mark.parametrize("name", ["search", "search_slowly"])
async def test_no_run_from_before_a_switch_answers_a_call_that_it_denies(
    fleet: LocalFleet, tmp_path: Path, name: str
) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    arguments = {"file": str(notes), "to": " y "}
    if name == "search_slowly":
        arguments["gate"] = str(gate)
    else:
        gate.touch()
    policy = tmp_path / "policy.toml"
    policy.write_text(NO_RULES)
    hooks = Hooks(policy=policy)
    async with Dispatcher.connect(settings=fleet.settings, hooks=hooks) as dispatcher:
        first = asyncio.ensure_future(dispatcher.dispatch(call(name, "first", **arguments)))
        await eventually(notes.exists, "it runs")
        if name == "search":
            await first
        await dispatcher.deny(name, argument="to", value="y", reason="not there")
        (later,) = await dispatcher.dispatch(call(name, "later", **arguments))
        gate.touch()
        (begun,) = await first
        await dispatcher.allow(name, argument="to", value="y")
    assert (begun.code, later.code, later.executed) == (None, Code.DENIED, Executed.NO)
    assert notes.read_text().split() == ["y"]


async def test_calls_that_no_policy_judged_do_not_run_where_one_is_required(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    settings = fleet.settings.model_copy(update={"policy_required": False})
    async with Dispatcher.connect(settings=settings) as dispatcher:
        turn = await dispatcher.dispatch(
            [c for name in NAMES for c in call(name, name, file=str(tmp_path / "notes"), to="a")]
        )
        assert {report.policy for report in read_fleet(settings).dispatchers} == {""}
    assert {(r.code, r.executed) for r in turn} == {(Code.DENIED, Executed.NO)}
    assert "no policy has judged it" in (turn[0].error or "")
    assert not (tmp_path / "notes").exists()


async def test_a_dispatcher_reports_its_policy(fleet: LocalFleet) -> None:
    hooks = Hooks(before_call=lambda _: None)
    async with Dispatcher.connect(settings=fleet.settings, hooks=hooks):

        def reported() -> bool:
            return any(report.policy for report in read_fleet(fleet.settings).dispatchers)

        await eventually(reported, "its report names the policy")
