"""Observers: told every moment of a call, and never felt by one."""

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.waiting import eventually
from toolpool import Dispatcher, Settings, ToolContext, tool
from toolpool.contract import observing
from toolpool.contract.observing import moments
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.observe import CallFacts, Ended, Observer, Observers


@tool
async def echo(value: int, ctx: ToolContext) -> int:
    "Give it back."
    ctx.progress(1, 2)
    return value


@tool(effects="read", retries=1)
async def broken() -> int:
    "Fail."
    raise ValueError("always")


TOOLS = [echo, broken]


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
    settings = Settings(retry_pause=0.01)
    async with Dispatcher.in_memory(TOOLS, settings=settings, observers=[seen]) as dispatcher:
        yield dispatcher


async def told(seen: Recording, moment: str) -> None:
    await eventually(lambda: moment in seen.moments, f"{moment} is told")


async def test_the_life_of_a_call_is_told_in_order(dispatcher: Dispatcher, seen: Recording) -> None:
    await dispatcher.dispatch(asked("echo", value=7), session="s", turn="t")
    await told(seen, "ended")
    life = [moment for moment in seen.moments if moment != "worker_up"]
    assert [m for m in life if m != "progressed"] == ["accepted", "queued", "started", "ended"]
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
    assert "accepted" not in seen.moments


async def test_a_retry_by_the_pool_is_told(dispatcher: Dispatcher, seen: Recording) -> None:
    await dispatcher.dispatch(asked("broken"))
    await told(seen, "ended")
    [(call, pause)] = seen.of("retried")
    assert (call.retry, pause > 0) == (0, True)
    [(call, ended)] = seen.of("ended")
    assert (call.retry, ended.code) == (1, Code.RAISED)


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
    monkeypatch.setattr(observing, "_WAITING_AT_MOST", 2)
    monkeypatch.setattr(observing, "_FLUSH_SECONDS", 0.01)
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
    finally:
        goes_on.set()


async def test_it_closes_while_the_program_ends(seen: Recording) -> None:
    async with Dispatcher.in_memory(TOOLS, observers=[seen]) as dispatcher:
        await dispatcher.dispatch(asked("echo", value=1))
        await asyncio.get_running_loop().shutdown_default_executor()
    assert "ended" in seen.moments, "what waited for it was still told"


async def test_nothing_is_made_for_nobody() -> None:
    class Never:
        @property
        def facts(self) -> CallFacts:
            raise AssertionError("made in vain")

    class Other(Observer):
        def looped(self, loop: Any) -> None: ...

    observers = Observers()
    observers.add(Other())
    for moment in moments(Observer):
        assert observers.hear(moment) is (moment == "looped")
    observers.call("ended", Never())


def test_what_is_no_observer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"derive its class from toolpool\.Observer"):
        Dispatcher.in_memory(TOOLS, observers=[print])  # type: ignore[list-item]


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
