"""Observers: told every moment of a call, and never felt by one."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.waiting import eventually
from toolpool import AskApproval, Dispatcher, Hooks, Settings, ToolContext, tool
from toolpool.contract import observer_dispatch
from toolpool.contract.observer_dispatch import moments
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.calls import in_flight
from toolpool.dispatcher.observer import CallFacts, Ended, Observer, Observers


@tool
async def echo(value: int, ctx: ToolContext) -> int:
    "Give it back."
    ctx.progress(1, 2)
    return value


@tool(effects="read", retries=1)
async def broken() -> int:
    "Fail."
    raise ValueError("always")


@tool
async def hangs() -> int:
    "Hang."
    await asyncio.sleep(60)
    return 1


@tool(concurrency=1)
async def alone() -> None:
    "Hang."
    await asyncio.sleep(60)


@tool(concurrency=1, concurrency_scope="fleet")
async def alone_in_the_fleet() -> None:
    "Hang."
    await asyncio.sleep(60)


@tool(rate="1/min")
async def rarely() -> None:
    "Hang."
    await asyncio.sleep(60)


TOOLS = [echo, broken, hangs, alone, alone_in_the_fleet, rarely]


class Recording(Observer):
    """Notes every moment with its facts."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def moments(self) -> list[str]:
        return [moment for moment, _ in self.told]

    def of(self, moment: str) -> list[tuple[Any, ...]]:
        return [facts for name, facts in self.told if name == moment]


def _noting(moment: str) -> Any:
    def note(self: Recording, *facts: Any) -> None:
        self.told.append((moment, facts))

    return note


for _moment in moments(Observer):
    setattr(Recording, _moment, _noting(_moment))


def asked(name: str, **arguments: Any) -> list[dict[str, Any]]:
    return [{"id": "c", "name": name, "input": arguments}]


@pytest.fixture
def seen() -> Recording:
    return Recording()


@pytest.fixture
async def dispatcher(seen: Recording) -> AsyncIterator[Dispatcher]:
    settings = Settings(retry_delay=0.01)
    async with Dispatcher.in_memory(TOOLS, settings=settings, observers=[seen]) as dispatcher:
        yield dispatcher


async def told(seen: Recording, moment: str) -> None:
    await eventually(lambda: moment in seen.moments, f"{moment} is told")


async def test_the_life_of_a_call_is_told_in_order(dispatcher: Dispatcher, seen: Recording) -> None:
    await dispatcher.dispatch(asked("echo", value=7), session="s", turn="t")
    await told(seen, "ended")
    beside = ("worker_up", "pulse", "progressed")
    life = [moment for moment in seen.moments if moment not in beside]
    assert life == ["accepted", "sent", "queued", "started", "ended"]
    [(queue, calls)] = seen.of("sent")
    assert (queue, calls) == ("toolpool.default.loop", 1)
    [(call, ended)] = seen.of("ended")
    assert (call.call_id, call.tool, call.session, call.turn) == ("c", "echo", "s", "t")
    assert (ended.code, ended.executed) == (None, Executed.YES)
    assert ended.worker
    assert ended.seconds > 0


async def test_what_the_model_has_to_mend_is_told(dispatcher: Dispatcher, seen: Recording) -> None:
    await dispatcher.dispatch(asked("echo", value="no number"), session="s")
    await told(seen, "rejected")
    [(rejected,)] = seen.of("rejected")
    assert (rejected.tool, rejected.session, rejected.code) == ("echo", "s", Code.INVALID_ARGUMENTS)
    assert (rejected.is_known, rejected.kinds) == (True, ("type",))
    assert "accepted" not in seen.moments
    await dispatcher.dispatch(asked("made_up"))
    await eventually(lambda: len(seen.of("rejected")) == 2, "the other one is told")
    assert seen.of("rejected")[1][0].is_known is False


async def test_how_it_stands_is_told_while_its_loop_turns(
    dispatcher: Dispatcher, seen: Recording
) -> None:
    async def stands(**facts: float) -> None:
        await eventually(
            lambda: any(
                all(getattr(pulse, name) == value for name, value in facts.items())
                for (pulse,) in seen.of("pulse")
            ),
            f"{facts} is told",
        )

    await stands(waiting=0, in_flight=0, oldest_waiting=0.0, dropped=0)
    turn = asyncio.ensure_future(dispatcher.dispatch(asked("hangs")))
    await stands(waiting=0, in_flight=1, oldest_waiting=0.0)
    turn.cancel()
    time.sleep(0.4)  # the loop is blocked
    await eventually(lambda: max(p.lag for (p,) in seen.of("pulse")) > 0.1, "its lag is told")


@pytest.mark.parametrize("name", ["alone", "alone_in_the_fleet", "rarely", "hangs"])
async def test_calls_held_for_other_reasons_are_not_reported_as_waiting_for_workers(
    name: str, seen: Recording
) -> None:
    """Those of a tool at its own limit, or of a session that has as many on their way as it may."""
    most = 1 if name == "hangs" else 64
    settings = Settings(slots_loop=10, in_flight_per_session=most, queue_timeout=300.0)
    async with Dispatcher.in_memory(TOOLS, settings=settings, observers=[seen]) as dispatcher:
        calls = [{**asked(name)[0], "id": f"c{n}"} for n in range(3)]
        turn = asyncio.ensure_future(dispatcher.dispatch(calls, session="s"))
        await eventually(lambda: seen.of("started"), "the first runs")
        before = len(seen.of("pulse"))
        await eventually(lambda: len(seen.of("pulse")) > before + 2, "it stands so")
        [last] = seen.of("pulse")[-1]
        assert (last.waiting > 0, last.oldest_waiting) == (True, 0.0)
        turn.cancel()
        await asyncio.wait({turn})


async def test_calls_waiting_for_approval_are_reported_with_the_age_of_the_oldest(
    seen: Recording,
) -> None:
    hooks = Hooks(before_call=lambda call: AskApproval())
    async with Dispatcher.in_memory(TOOLS, hooks=hooks, observers=[seen]) as dispatcher:
        turn = asyncio.ensure_future(dispatcher.dispatch(asked("hangs"), session="s"))
        await eventually(
            lambda: any(
                p.waiting_approvals == 1 and p.oldest_approval > 0.1 and not p.oldest_waiting
                for (p,) in seen.of("pulse")
            ),
            "it waits",
        )
        turn.cancel()
        await asyncio.wait({turn})


async def test_waiting_calls_are_reported_with_the_age_of_the_oldest(seen: Recording) -> None:
    settings = Settings(slots_loop=1)
    async with Dispatcher.in_memory(TOOLS, settings=settings, observers=[seen]) as dispatcher:
        turn = asyncio.ensure_future(
            dispatcher.dispatch([{**asked("hangs")[0], "id": f"c{n}"} for n in range(3)])
        )
        await eventually(
            lambda: any(p.waiting == 2 and p.oldest_waiting > 0.1 for (p,) in seen.of("pulse")),
            "two wait",
        )
        turn.cancel()
        await asyncio.wait({turn})


async def test_the_event_loop_is_sampled_only_with_a_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []
    monkeypatch.setattr(in_flight, "beat", lambda *_: taken.append(1))
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        await dispatcher.dispatch(asked("echo", value=1))
    assert not taken


async def test_a_retry_by_the_pool_is_reported(dispatcher: Dispatcher, seen: Recording) -> None:
    await dispatcher.dispatch(asked("broken"))
    await told(seen, "ended")
    [(call, pause)] = seen.of("retried")
    assert (call.retry, pause > 0) == (0, True)
    [(call, ended)] = seen.of("ended")
    assert (call.retry, ended.code) == (1, Code.RAISED)


async def test_a_switch_for_a_tool_that_nobody_offers_is_set_with_a_warning(
    dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be set before its tool is deployed, or its name may be mistyped."""
    await dispatcher.deny("pya", reason="broken")
    assert "switch_for_unknown_tool tool=pya" in caplog.text


async def test_switches_and_workers_are_told(dispatcher: Dispatcher, seen: Recording) -> None:
    await dispatcher.deny("echo", reason="maintenance")
    await told(seen, "switched")
    [(turned,)] = seen.of("switched")
    assert (turned.tool, turned.argument, turned.denied) == ("echo", None, True)
    assert len(seen.of("worker_up")) == 1


async def test_no_fact_holds_an_argument_or_a_result(
    dispatcher: Dispatcher, seen: Recording
) -> None:
    await dispatcher.dispatch(asked("echo", value=424242), session="s")
    await dispatcher.dispatch(asked("echo", value="secret-424242"), session="s")
    await told(seen, "rejected")
    await told(seen, "ended")
    assert "424242" not in repr(seen.told)


async def test_one_that_raises_or_hangs_is_never_felt(
    seen: Recording, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what it is too slow for, the newest is dropped and counted."""
    monkeypatch.setattr(observer_dispatch, "_WAITING_AT_MOST", 2)
    monkeypatch.setattr(observer_dispatch, "_FLUSH_SECONDS", 0.01)
    goes_on = threading.Event()

    class Raising(Observer):
        def accepted(self, call: CallFacts) -> None:
            raise RuntimeError("observer")

    class Hanging(Observer):
        def accepted(self, call: CallFacts) -> None:
            goes_on.wait(30)

    try:
        async with Dispatcher.in_memory(
            TOOLS, observers=[Raising(), Hanging(), seen]
        ) as dispatcher:
            for value in range(8):
                turn = await dispatcher.dispatch(asked("echo", value=value))
                assert turn[0].data == value

            def said(what: str, who: str) -> bool:
                lines = [record.getMessage() for record in caplog.records]
                return any(what in line and who in line for line in lines)

            await eventually(lambda: said("observer_failed", "Raising"), "that one raised")
            await eventually(lambda: said("observer_too_slow", "Hanging"), "that one is too slow")
            assert dispatcher._parts.observers.dropped >= 1
    finally:
        goes_on.set()


async def test_it_closes_while_the_program_ends(seen: Recording) -> None:
    async with Dispatcher.in_memory(TOOLS, observers=[seen]) as dispatcher:
        await dispatcher.dispatch(asked("echo", value=1))
        await asyncio.get_running_loop().shutdown_default_executor()
    assert "ended" in seen.moments, "what waited for it was still told"


async def test_nothing_is_built_without_a_listener() -> None:
    class Never:
        @property
        def facts(self) -> CallFacts:
            raise AssertionError("made in vain")

    class Other(Observer):
        def looped(self, loop: Any) -> None: ...

    observers = Observers()
    observers.add(Other())
    for moment in moments(Observer):
        assert bool(observers.listeners[moment]) is (moment == "looped")
    observers.call("ended", Never())


def test_what_is_no_observer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"derive it from toolpool\.Observer"):
        Dispatcher.in_memory(TOOLS, observers=[print])  # type: ignore[list-item]


class Quick(Observer):
    """Notes on which thread it is told, and when it begins and ends."""

    is_quick = True

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def open(self) -> None:
        self.told.append(("open", threading.get_ident()))

    def close(self) -> None:
        self.told.append(("close", threading.get_ident()))

    def ended(self, call: CallFacts, ended: Any) -> None:
        self.told.append(("ended", threading.get_ident()))


async def test_a_quick_observer_is_called_inline_between_open_and_close() -> None:
    quick = Quick()
    async with Dispatcher.in_memory(TOOLS, observers=[quick]) as dispatcher:
        await dispatcher.dispatch(asked("echo", value=1))
    assert [moment for moment, _ in quick.told] == ["open", "ended", "close"]
    assert quick.told[1][1] == threading.get_ident()


class Failing(Observer):
    """Fails at every second moment."""

    is_quick = True

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def sent(self, queue: str, calls: int) -> None:
        self.told.append(f"sent {calls}")
        if calls % 2:
            raise ValueError("odd")

    def pulse(self, pulse: Any) -> None:
        self.told.append(f"pulse {pulse}")


def test_quick_observers_are_told_everything_in_order_whatever_they_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = list[str](), list[str]()
    observers = Observers()
    observers.add(Failing(first))
    observers.add(Failing(second))
    observers.notify("sent", "q", 1)
    observers.notify("pulse", 2)
    observers.notify("sent", "q", 3)
    assert first == second == ["sent 1", "pulse 2", "sent 3"]
    assert any("observer_failed" in line for line in caplog.messages)


async def test_a_slow_observer_is_never_called_on_the_event_loop() -> None:
    class Slow(Failing):
        is_quick = False

        def sent(self, queue: str, calls: int) -> None:
            self.told.append(threading.current_thread().name)

    told: list[str] = []
    observers = Observers([Slow(told)])
    observers.start()
    observers.notify("sent", "q", 2)
    observers.close()
    assert told == ["toolpool-observer"]


class Traced(Observer):
    """Names a trace for each call."""

    is_quick = True

    def __init__(self, headers: dict[str, str] | None) -> None:
        self._headers = headers

    def trace(self, call: CallFacts) -> dict[str, str] | None:
        return self._headers


class RaisingTracer(Observer):
    """Fails to name one."""

    def trace(self, call: CallFacts) -> dict[str, str] | None:
        raise RuntimeError(call.call_id)


@tool
async def shows_its_trace(ctx: ToolContext) -> dict[str, str]:
    "Show which trace it is in."
    return dict(ctx.trace)


async def test_a_call_carries_what_observers_say_of_its_trace() -> None:
    observers: list[Observer] = [
        Traced({"traceparent": "00-x", "baggage": "a=1"}),
        RaisingTracer(),
        Traced(None),
        Traced({"baggage": "b=2"}),
    ]
    async with Dispatcher.in_memory([shows_its_trace], observers=observers) as dispatcher:
        turn = await dispatcher.dispatch(asked("shows_its_trace"))
    assert turn[0].data == {"traceparent": "00-x", "baggage": "a=1,b=2"}


@pytest.mark.parametrize("texts", [False, True])
async def test_what_is_told_of_a_failure(seen: Recording, texts: bool) -> None:
    settings = Settings(retry_delay=0.01, error_texts=texts)
    async with Dispatcher.in_memory(TOOLS, settings=settings, observers=[seen]) as dispatcher:
        await dispatcher.dispatch(asked("broken"))
        await told(seen, "ended")
    [(call, ended)] = seen.of("ended")
    assert (call.retry, call.retries_left, call.provider) == (1, 0, "bare")
    [fault] = ended.failure.faults
    assert (fault.name, fault.frames[-1].function) == ("ValueError", "broken")
    assert ended.failure.text == ("always" if texts else None)
    assert ended.is_by_worker


class Cancelling(Observer):
    """Looks at a future that was cancelled, as asyncio's own say it."""

    is_quick = True

    def accepted(self, call: CallFacts) -> None:
        raise asyncio.CancelledError


class Unwritable(logging.Handler):
    """A host's handler whose stream is gone."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("I/O operation on closed file.")


async def test_neither_a_cancelled_future_nor_a_broken_log_touches_a_call() -> None:
    unwritable = Unwritable()
    logging.getLogger().addHandler(unwritable)
    try:
        async with Dispatcher.in_memory(TOOLS, observers=[Cancelling()]) as dispatcher:
            (answered,) = await dispatcher.dispatch(asked("echo", value=1))
            (failed,) = await dispatcher.dispatch(asked("broken"))
    finally:
        logging.getLogger().removeHandler(unwritable)
    assert answered.ok
    assert failed.code == Code.RAISED


class Exiting(Observer):
    """Calls sys.exit() for the first call, and notes the others."""

    def __init__(self) -> None:
        self.ended_calls: list[str] = []

    def ended(self, call: CallFacts, ended: Ended) -> None:
        self.ended_calls.append(call.tool)
        sys.exit("secret-424242")


async def test_an_observer_that_exits_is_told_of_the_next_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exiting = Exiting()
    async with Dispatcher.in_memory(TOOLS, observers=[exiting]) as dispatcher:
        await dispatcher.dispatch(asked("echo", value=1))
        await dispatcher.dispatch(asked("echo", value=2))
    assert exiting.ended_calls == ["echo", "echo"]
    assert "observer_failed observer=Exiting" in caplog.text
    assert "secret-424242" not in caplog.text


def test_a_class_in_place_of_an_observer_is_refused_with_what_to_give() -> None:
    with pytest.raises(TypeError, match=r"Exiting is a class: give Exiting\(\)"):
        Dispatcher.in_memory(TOOLS, observers=[Exiting])  # type: ignore[list-item]
