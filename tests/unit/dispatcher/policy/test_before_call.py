"""A hook of the host decides about every valid call before it is queued."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.scraping import parsed, value
from tests.sentry_sink import sentry_sink
from tests.waiting import eventually
from toolpool import (
    Allow,
    AskApproval,
    Code,
    Deny,
    Dispatcher,
    Executed,
    Hooks,
    Metrics,
    Misconfigured,
    ProposedCall,
    Rewrite,
    Sentry,
    Settings,
    ToolResult,
    tool,
)
from toolpool.contract import logs
from toolpool.dispatcher.observer import Audit, HookFailure, Observer
from toolpool.dispatcher.policy.decision import Judgement, Policy

RAN: list[int] = []
FAILED = "toolpool_hook_failures_total"


@tool(effects="write")
async def refund(order: str, amount: int) -> dict[str, Any]:
    """Pay money back."""
    RAN.append(amount)
    return {"order": order, "amount": amount}


class Audits(Observer):
    """Keeps what was decided."""

    is_quick = True

    def __init__(self) -> None:
        self.seen: list[Audit] = []

    def audited(self, audit: Audit) -> None:
        """See `Observer.audited`."""
        self.seen.append(audit)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def call(amount: int = 900, name: str = "c-1") -> dict[str, Any]:
    return {"id": name, "name": "refund", "input": {"order": "o-1", "amount": amount}}


async def asked(
    hook: Any, *, settings: Settings | None = None, observers: Any = (), **options: Any
) -> ToolResult:
    """The result of one call under a hook."""
    hooks = Hooks(before_call=hook)
    async with Dispatcher.in_memory(
        [refund], settings=settings, hooks=hooks, observers=observers
    ) as dispatcher:
        turn = await dispatcher.dispatch(call(), **options)
        return turn[0]


async def test_a_hook_sees_the_whole_call() -> None:
    seen: list[ProposedCall] = []
    await asked(seen.append, session="s-1", turn="t-1", context={"user": "anna"})
    assert seen == [
        ProposedCall(
            tool="refund",
            arguments={"order": "o-1", "amount": 900},
            call_id="c-1",
            session="s-1",
            turn="t-1",
            tenant="default",
            context={"user": "anna"},
            effects=refund.spec.effects,
            provider="bare",
        )
    ]


async def _awaited(proposed: ProposedCall) -> Deny:
    await asyncio.sleep(0)
    return Deny("over the limit.")


@pytest.mark.parametrize(
    "hook",
    [lambda _: Deny("over the limit."), _awaited, lambda proposed: _awaited(proposed)],
    ids=["sync", "async", "sync that answers with an awaitable"],
)
async def test_a_denied_call_is_not_run_and_the_model_reads_why(hook: Any) -> None:
    audits = Audits()
    result = await asked(hook, observers=[audits], session="s-1")
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])
    assert result.error == "Tool 'refund' was not run: over the limit."
    assert [(a.what, a.tool, a.call_id, a.session, a.by, a.reason) for a in audits.seen] == [
        ("denied", "refund", "c-1", "s-1", "before_call", "over the limit.")
    ]


@pytest.mark.parametrize("answer", [None, Allow()])
async def test_an_allowed_call_runs(answer: object) -> None:
    result = await asked(lambda _: answer)
    assert result.ok and RAN == [900]


HALF_A_PAIR = "over \ud800"
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "verdict",
    [
        Deny(None),  # type: ignore[arg-type]
        Deny(5),  # type: ignore[arg-type]
        Deny(HALF_A_PAIR),
        Rewrite({"order": HALF_A_PAIR, "amount": 1}),
        Rewrite({"order": "o-1", "amount": 1, "lines": ENDLESS}),
        AskApproval(approvers="anna"),  # type: ignore[arg-type]
        AskApproval(approvers=None),  # type: ignore[arg-type]
        AskApproval(approvers=()),
        AskApproval(approvers=("",)),
        AskApproval(approvers=(1,)),  # type: ignore[arg-type]
        AskApproval(expires="soon"),  # type: ignore[arg-type]
        AskApproval(expires=0),
        AskApproval(expires=-1),
        AskApproval(expires=math.inf),
        AskApproval(expires=math.nan),
        AskApproval(expires=1e300),
        AskApproval(expires=True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("session", [None, "s-1"])
async def test_a_verdict_of_no_use_denies(verdict: Any, session: str | None) -> None:
    result = await asked(lambda _: verdict, session=session, turn=session, wait=20)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])


async def test_a_denial_without_a_reason_denies() -> None:
    for denial in (Deny(None), False):  # type: ignore[arg-type]
        result = await asked(lambda _, denial=denial: denial)
        assert (result.code, RAN) == (Code.DENIED, [])


@pytest.mark.parametrize("note", [5, HALF_A_PAIR])
async def test_a_failed_observer_note_changes_nothing(note: Any) -> None:
    hook = partial(Rewrite, {"order": "o-1", "amount": 900}, note=note)
    async with Dispatcher.in_memory(
        [refund], hooks=Hooks(before_call=lambda _: hook())
    ) as dispatcher:
        turn = await dispatcher.dispatch(call())
    assert turn[0].ok and RAN == [900]
    assert "900" in str(turn.messages("anthropic"))


@pytest.mark.parametrize("call_id", [None, "c-1"])
async def test_a_call_is_cancelled_while_the_hook_decides(call_id: str | None) -> None:
    asked_about, released = asyncio.Event(), asyncio.Event()

    async def hook(_: ProposedCall) -> None:
        asked_about.set()
        await released.wait()

    async with Dispatcher.in_memory([refund], hooks=Hooks(before_call=hook)) as dispatcher:
        asking = asyncio.ensure_future(dispatcher.dispatch(call(), session="s-1"))
        await asked_about.wait()
        assert await dispatcher.cancel("s-2") == 0
        assert await dispatcher.cancel("s-1", call_id=call_id) == 1
        released.set()
        result = (await asking)[0]
    assert (result.code, result.executed, RAN) == (Code.CANCELLED, Executed.NO, [])


async def test_a_rewritten_call_runs_with_the_other_arguments_and_says_so() -> None:
    audits = Audits()
    result = await asked(
        lambda proposed: Rewrite({**proposed.arguments, "amount": 500}, note="500 is the most."),
        observers=[audits],
    )
    assert result.data == {"order": "o-1", "amount": 500}
    assert result.note is not None and "amount" in result.note and "500 is the most." in result.note
    assert "900" not in result.note
    assert [audit.what for audit in audits.seen] == ["rewritten"]


class Name(str):
    """A host's own text."""


async def test_arguments_with_names_of_a_host_s_own_type_are_sent_as_plain_ones() -> None:
    arguments = {Name("order"): "o-2", Name("amount"): 5}
    result = await asked(lambda _: Rewrite(arguments))
    assert result.data == {"order": "o-2", "amount": 5}


@pytest.mark.parametrize(
    "arguments",
    [{"order": "o-1"}, {"order": "o-1", "amount": "many"}, {"amount": {1, 2}}, [1], None],
)
async def test_a_rewrite_is_checked_against_the_schema_again(arguments: Any) -> None:
    result = await asked(lambda _: Rewrite(arguments))
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])
    assert "many" not in str(result.payload())


async def test_a_rewritten_call_asked_again_is_not_run_twice() -> None:
    answers = iter([500, 400])

    def hook(proposed: ProposedCall) -> Rewrite:
        return Rewrite({**proposed.arguments, "amount": next(answers)})

    async with Dispatcher.in_memory([refund], hooks=Hooks(before_call=hook)) as dispatcher:
        first = await dispatcher.dispatch(call(), session="s-1", turn="t-1")
        second = await dispatcher.dispatch(call(), session="s-1", turn="t-1")
    assert first[0].data == second[0].data == {"order": "o-1", "amount": 500}
    assert RAN == [500]


async def test_what_a_hook_does_to_the_call_it_sees_changes_nothing() -> None:
    def hook(proposed: ProposedCall) -> None:
        proposed.arguments["amount"] = 1
        assert proposed.context is not None
        proposed.context["user"]["name"] = "eve"

    context = {"user": {"name": "anna"}}
    assert (await asked(hook, context=context)).ok
    assert RAN == [900] and context == {"user": {"name": "anna"}}


def _raises(_: ProposedCall) -> None:
    raise ValueError("SECRET-900")


def _exits(_: ProposedCall) -> None:
    raise SystemExit(3)


async def _raises_async(_: ProposedCall) -> None:
    raise ValueError("SECRET-900")


async def _exits_async(_: ProposedCall) -> None:
    raise SystemExit(3)


def _closes(_: ProposedCall) -> None:
    raise GeneratorExit


async def _closes_async(_: ProposedCall) -> None:
    raise GeneratorExit


async def _cancels_itself(_: ProposedCall) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "hook",
    [
        _raises,
        _exits,
        _raises_async,
        _exits_async,
        _closes,
        _closes_async,
        _cancels_itself,
        lambda _: "yes",
        lambda _: True,
        lambda _: 1,
        next,
    ],
)
async def test_a_policy_that_fails_denies(hook: Any) -> None:
    result = await asked(hook)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])
    assert "SECRET" not in str(result.payload())


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_hanging_policy_denies_and_delays_no_other_call(kind: str) -> None:
    released = threading.Event()
    hung = 0

    def blocks(proposed: ProposedCall) -> None:
        nonlocal hung
        if proposed.arguments["amount"] == 1:
            hung += 1
            released.wait(30)

    async def waits(proposed: ProposedCall) -> None:
        nonlocal hung
        if proposed.arguments["amount"] == 1:
            hung += 1
            await asyncio.sleep(30)

    hook: Callable[[ProposedCall], Any] = blocks if kind == "sync" else waits
    settings = Settings(hook_timeout=0.5)
    try:
        async with Dispatcher.in_memory(
            [refund], settings=settings, hooks=Hooks(before_call=hook)
        ) as dispatcher:
            stuck = asyncio.ensure_future(dispatcher.dispatch([call(1, "c-1"), call(1, "c-2")]))
            others = [call(i, f"c-{i}") for i in range(10, 60)]
            turn = await dispatcher.dispatch(others)
            assert [result.ok for result in turn] == [True] * 50
            assert not stuck.done() and hung == 2
            assert [(r.code, r.executed) for r in await stuck] == [(Code.DENIED, Executed.NO)] * 2
    finally:
        released.set()
    assert 1 not in RAN


async def test_more_hanging_hooks_than_threads_deny_all_and_the_next_calls_are_judged() -> None:
    released = threading.Event()

    def blocks(proposed: ProposedCall) -> None:
        if proposed.arguments["amount"] < 100:
            released.wait(30)

    async with Dispatcher.in_memory(
        [refund], settings=Settings(hook_timeout=0.3), hooks=Hooks(before_call=blocks)
    ) as dispatcher:
        turn = await dispatcher.dispatch([call(i, f"c-{i}") for i in range(64)])
        assert {result.code for result in turn} == {Code.DENIED} and RAN == []
        released.set()
        assert (await dispatcher.dispatch(call(100)))[0].ok


async def test_a_hook_that_cannot_be_called_or_imported_is_refused_at_once() -> None:
    for wrong in (5, "nothing", "no_such_module_at_all:f", "os:no_such", "os:sep"):
        with pytest.raises(Misconfigured, match="before_call"):
            Dispatcher.in_memory([refund], hooks=Hooks(before_call=wrong))  # type: ignore[arg-type]


async def test_a_hook_is_named_by_a_setting() -> None:
    settings = Settings(before_call=f"{__name__}:denies")
    async with Dispatcher.in_memory([refund], settings=settings) as dispatcher:
        assert (await dispatcher.dispatch(call()))[0].error == "Tool 'refund' was not run: never."


def denies(_: ProposedCall) -> Deny:
    """What the setting names."""
    return Deny("never")


async def test_the_pools_own_tools_are_not_asked_about() -> None:
    seen: list[str] = []
    hooks = Hooks(before_call=lambda proposed: seen.append(proposed.tool))
    async with Dispatcher.in_memory([refund], hooks=hooks) as dispatcher:
        await dispatcher.dispatch({"id": "c", "name": "task_list", "input": {}}, session="s-1")
        await dispatcher.dispatch(call())
    assert seen == ["refund"]


async def test_on_event_is_told_what_happens_and_may_fail() -> None:
    kinds: list[str] = []

    def hook(event: Any) -> None:
        kinds.append(event.kind)
        raise RuntimeError("an observer's own fault")

    async with Dispatcher.in_memory([refund], hooks=Hooks(on_event=hook)) as dispatcher:
        assert (await dispatcher.dispatch(call()))[0].ok
        async with asyncio.timeout(10):
            while "tool_executed" not in kinds:
                await asyncio.sleep(0.01)
    assert [kind for kind in kinds if kind != "monitor:hook"] == [
        "tool:start", "tool:end", "tool_executed"
    ]  # fmt: skip
    assert kinds.count("monitor:hook") <= 3, "that it fails is told, and not that it fails at that"


class Failures(Observer):
    """Keeps which hooks failed."""

    is_quick = True

    def __init__(self) -> None:
        self.seen: list[HookFailure] = []

    def hook_failed(self, failure: HookFailure) -> None:
        """See `Observer.hook_failed`."""
        self.seen.append(failure)


@pytest.mark.parametrize(
    ("name", "hook", "why"),
    [
        ("before_call", _raises, "ValueError"),
        ("before_call", lambda _: 1, "it answered a int, and no verdict"),
        (
            "before_call",
            lambda _: Rewrite({"order": 1, "amount": 1}),
            "its arguments cannot be used: they break the tool's schema (type)",
        ),
        ("after_result", lambda *_: {}["SECRET"], "KeyError"),
        ("on_event", lambda _: {}["SECRET"], "KeyError"),
    ],
)
async def test_a_failing_hook_is_reported_to_operators(
    name: str, hook: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As an event, a log line, a metric and an issue: it may deny every call there is."""
    logs.forget_repeats()
    failures, metrics = Failures(), Metrics(port=0)
    events: list[Any] = []
    with sentry_sink() as sink:
        observers = [failures, metrics, Sentry(dsn=sink.dsn)]
        async with Dispatcher.in_memory(
            [refund], hooks=Hooks(**{name: hook}), observers=observers
        ) as dispatcher:

            async def follow() -> None:
                async for event in dispatcher.events(channels=["monitor"]):
                    events.append(event)  # noqa: PERF401 - as they come

            following = asyncio.ensure_future(follow())
            await asyncio.sleep(0)
            await dispatcher.dispatch(call())
            await eventually(
                lambda: any(event.kind == "monitor:hook" for event in events), "it is an event"
            )
        await following
        [issue] = {event["fingerprint"][1]: event for event in sink.of("event")}.values()
    failure = failures.seen[0]
    assert (failure.hook, failure.why) == (name, why)
    [event] = {e.kind: e for e in events if e.kind == "monitor:hook"}.values()
    assert event.detail == {"hook": name, "why": why}
    assert f"hook_failed hook={name}" in caplog.text
    tags = issue["tags"]
    assert (tags["hook"], issue["transaction"], issue["level"]) == (name, name, "error")
    assert tags.get("tool") == ("refund" if name != "on_event" else None)
    read = parsed(generate_latest(metrics.registry).decode())
    counted = value(read, FAILED, hook=name)
    assert counted == len(failures.seen)
    is_denied = name == "before_call"
    assert value(read, "toolpool_calls_total", code="aborted.denied", tool="refund",
                 error_type="aborted") == is_denied  # fmt: skip
    assert "SECRET" not in caplog.text + str(sink.bodies) + str(events)


async def test_what_was_decided_is_an_event_and_a_row_of_the_record(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    hooks = Hooks(before_call=lambda _: Deny("over the limit"))
    async with Dispatcher.in_memory([refund], hooks=hooks, record=record) as dispatcher:
        audits: list[tuple[str | None, dict[str, Any] | None]] = []

        async def follow() -> None:
            events = dispatcher.events(channels={"monitor"})
            async for event in events:
                told = (event.session, event.detail)
                audits.extend([told] if event.kind == "monitor:audit" else [])

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0)
        await dispatcher.dispatch(call(), session="s-1")
        await dispatcher.deny("refund", reason="closed", by="anna")
        await dispatcher.allow("refund", by="ben")
        await dispatcher.cancel("s-1", by="carl", reason="the user left")
        await eventually(lambda: len(audits) == 4, "all are told")
    await following
    assert audits == [
        ("s-1", {"what": "denied", "by": "before_call", "reason": "over the limit"}),
        (None, {"what": "switched_off", "by": "anna", "reason": "closed"}),
        (None, {"what": "switched_on", "by": "ben"}),
        ("s-1", {"what": "cancelled", "by": "carl", "reason": "the user left"}),
    ]
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    told = [json.loads(row["content"]) for row in rows if row["type"] == "audit"]
    assert [(row["what"], row["by"]) for row in told] == [
        ("denied", "before_call"),
        ("switched_off", "anna"),
        ("switched_on", "ben"),
        ("cancelled", "carl"),
    ]
    assert told[0]["session"] == "s-1" and told[0]["call_id"] == "c-1"


async def test_a_preview_says_what_would_become_of_a_call_and_nothing_happens() -> None:
    audits = Audits()

    def hook(proposed: ProposedCall) -> Any:
        amount = proposed.arguments["amount"]
        return {1: None, 2: Deny("no"), 3: Rewrite({"order": "x", "amount": 4})}.get(
            amount, AskApproval("ask first")
        )

    async with Dispatcher.in_memory(
        [refund], hooks=Hooks(before_call=hook), observers=[audits]
    ) as dispatcher:
        calls = [call(i, f"c-{i}") for i in (1, 2, 3, 5)]
        calls.append({"id": "c-9", "name": "refund", "input": {}})
        found = await dispatcher.preview(calls, session="s-1")
        told = [(p.decision, p.by, p.reason) for p in found[:4]]
        assert told == [
            ("allow", "", ""),
            ("deny", "before_call", "no"),
            ("allow", "before_call", ""),
            ("ask", "before_call", "ask first"),
        ]
        assert found[2].arguments == {"order": "x", "amount": 4} and found[1].arguments is None
        assert found[4].rejection is not None
        assert found[4].rejection.code is Code.INVALID_ARGUMENTS
        assert await dispatcher.approvals.waiting() == []
    assert RAN == [] and audits.seen == []


async def test_a_reason_of_any_length_is_cut_for_the_model() -> None:
    result = await asked(lambda _: Deny("x" * 100_000))
    assert result.code is Code.DENIED and len(result.error or "") < 1_200


@pytest.mark.parametrize("with_hook", [False, True])
async def test_other_tasks_run_between_the_calls_of_a_response(
    with_hook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = 0, list[int]()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    judge = Policy._judge

    def slow(*arguments: Any) -> Judgement:
        seen.append(turns)
        time.sleep(0.03)  # as for large arguments
        return judge(*arguments)

    monkeypatch.setattr(Policy, "_judge", slow)
    (tmp_path / "policy.toml").write_text('[[rule]]\naction = "deny"\ntool = "other"\n')
    hook = (lambda call: None) if with_hook else None
    hooks = Hooks(policy=str(tmp_path / "policy.toml"), before_call=hook)
    async with Dispatcher.in_memory([refund], hooks=hooks) as dispatcher:
        counting = asyncio.ensure_future(count())
        turn = await dispatcher.dispatch(
            [
                {"id": f"c{n}", "name": "refund", "input": {"order": "a", "amount": n}}
                for n in range(5)
            ]
        )
        counting.cancel()
    assert turn.ok
    assert len(set(seen)) == 5
