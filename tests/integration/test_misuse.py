"""A dispatcher used at the wrong time or place says so at once: it never hangs (R62)."""

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fleets import road as tools
from tests.integration.fleet import call
from tests.integration.twins import Gate, alone
from tests.waiting import eventually
from toolpool import (
    BrokerUnreachable,
    Deny,
    Dispatcher,
    Hooks,
    Misconfigured,
    ToolDeclarationInvalid,
    tool,
)
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.settings import Settings
from toolpool.dispatcher.dispatch import Dispatcher as Connected
from toolpool.pool import LocalDispatcher

AWAITED: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "dispatch": lambda d: d.dispatch(call("echo", value=1), session="s", turn="t"),
    "call": lambda d: d.call("echo", {"value": 1}, id="t", session="s"),
    "resume": lambda d: d.resume([], session="s"),
    "cancel": lambda d: d.cancel("s"),
    "task_result": lambda d: d.task_result("0" * 32, session="s"),
    "task_cancel": lambda d: d.task_cancel("0" * 32, session="s"),
    "task_list": lambda d: d.task_list(session="s"),
    "output": lambda d: d.output("0" * 32, session="s"),
    "deny": lambda d: d.deny("echo", reason="no"),
    "allow": lambda d: d.allow("echo"),
    "preview": lambda d: d.preview(call("echo", value=1)),
}
STREAMS: dict[str, Callable[[Any], Any]] = {
    "events": lambda d: d.events(),
    "completed": lambda d: d.completed(session="s"),
}
LOOKS: dict[str, Callable[[Any], Any]] = {
    "tools": lambda d: d.tools(),
    "specs": lambda d: d.specs,
    "refused": lambda d: d.refused,
    "check": lambda d: d.check(call("echo", value=1)),
    "in_flight": lambda d: d.in_flight(),
}
NOT_GUARDED = {"connect", "local", "in_memory", "close"}


def test_every_public_method_is_tried_here() -> None:
    public = {name for name, _ in inspect.getmembers(Dispatcher) if not name.startswith("_")}
    assert public == {*AWAITED, *STREAMS, *LOOKS, *NOT_GUARDED}


async def refused(dispatcher: Any, why: str, *, looks: bool = True) -> None:
    """Every method raises RuntimeError at once, and says why."""
    for ask in AWAITED.values():
        with pytest.raises(RuntimeError, match=why):
            await asyncio.wait_for(ask(dispatcher), 1.0)
    for name in [*STREAMS, *(LOOKS if looks else ())]:
        with pytest.raises(RuntimeError, match=why):
            (STREAMS | LOOKS)[name](dispatcher)


def connected(redis_url: str) -> Dispatcher:
    return Dispatcher.connect(redis_url, settings=Settings(catalog_timeout=0.0))


def in_memory() -> Dispatcher:
    return Dispatcher.in_memory([tools])


@pytest.fixture(params=["connect", "in_memory"])
def dispatcher(request: pytest.FixtureRequest) -> Any:
    if request.param == "in_memory":
        return in_memory()
    return connected(request.getfixturevalue("redis_url"))


async def test_not_entered(dispatcher: Any) -> None:
    await refused(dispatcher, "not entered: use it inside `async with")
    await dispatcher.close()


async def test_a_local_one_that_is_not_entered() -> None:
    local = Dispatcher.local(["tests.fleets.road"])
    for ask in (AWAITED | STREAMS | LOOKS).values():
        with pytest.raises(RuntimeError, match=r"not entered.*`async with Dispatcher.local"):
            ask(local)
    with pytest.raises(AttributeError):
        local.no_such_method()
    await local.close()
    with pytest.raises(RuntimeError, match="is closed"):
        local.tools()


async def test_a_local_one_has_the_methods_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`async with local:` without `as` is no mistake."""

    class Fleet:
        settings = Settings()
        description = "a fleet"
        closed = 0

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def close(self) -> None:
            Fleet.closed += 1

    monkeypatch.setattr("toolpool.pool.LocalFleet", Fleet)
    monkeypatch.setattr(Dispatcher, "connect", lambda **_: in_memory())
    local = LocalDispatcher([], Settings())
    async with local:
        assert (await local.dispatch(call("echo", value=1)))[0].data == 1
        assert local.analytics is not None
        with pytest.raises(RuntimeError, match="entered already"):
            await local.__aenter__()
    await refused(local, "is closed: make another")
    assert Fleet.closed == 1


async def test_closed() -> None:
    async with in_memory() as dispatcher:
        assert (await dispatcher.dispatch(call("echo", value=1)))[0].data == 1
    await refused(dispatcher, "is closed: make another")
    await dispatcher.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await dispatcher.__aenter__()


async def test_entered_twice() -> None:
    async with in_memory() as dispatcher:
        with pytest.raises(RuntimeError, match="entered already"):
            async with dispatcher:
                pass
        assert (await dispatcher.dispatch(call("echo", value=1)))[0].data == 1


async def test_a_start_that_failed_is_closed() -> None:
    settings = Settings(redis_url="unix:///nowhere.sock", connect_timeout=0.2)
    dispatcher = Dispatcher.connect(settings=settings)
    with pytest.raises(BrokerUnreachable):
        await dispatcher.__aenter__()
    await refused(dispatcher, "is closed")


async def test_closed_while_it_is_entered(redis_url: str) -> None:
    dispatcher = Dispatcher.connect(redis_url, settings=Settings(catalog_timeout=0.5))
    entering = asyncio.ensure_future(dispatcher.__aenter__())
    await asyncio.sleep(0)
    await refused(dispatcher, "not entered")
    await dispatcher.close()
    with pytest.raises(Exception, match="closed|no worker"):
        await entering
    await refused(dispatcher, "is closed")


async def test_another_thread_with_a_loop_of_its_own() -> None:
    """What only looks may be called from anywhere."""
    async with in_memory() as dispatcher:
        await asyncio.to_thread(
            asyncio.run, refused(dispatcher, "another event loop.*SyncDispatcher", looks=False)
        )
        for look in LOOKS.values():
            await asyncio.to_thread(look, dispatcher)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, dispatcher.close())
        assert (await dispatcher.dispatch(call("echo", value=1)))[0].data == 1


def test_asyncio_run_twice() -> None:
    """The loop that it was entered on is gone."""

    async def opened() -> Dispatcher:
        return await in_memory().__aenter__()

    dispatcher = asyncio.run(opened())
    asyncio.run(refused(dispatcher, "event loop of this dispatcher has ended"))
    again = in_memory()

    async def used() -> None:
        async with again:
            pass

    asyncio.run(used())
    with pytest.raises(RuntimeError, match="is closed"):
        asyncio.run(used())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_after_a_fork() -> None:
    """The child is told; what its parent has goes on, also where the child leaves the block."""
    async with in_memory() as dispatcher:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:  # the child: no loop runs here
            status = b"no"
            try:
                os.close(read)
                told = []
                for look in LOOKS.values():
                    try:
                        look(dispatcher)
                    except RuntimeError as error:
                        told.append(str(error))
                thread = threading.Thread(target=lambda: told.extend(_told_in(dispatcher)))
                thread.start()
                thread.join(10)
                if len(told) == len(LOOKS) + len(AWAITED) + 1 and all("forked" in t for t in told):
                    status = b"ok"
                else:
                    status = repr(told).encode()
            finally:
                os.write(write, status)
                os._exit(0)
        os.close(write)
        said = b"".join(iter(lambda: os.read(read, 4096), b""))
        os.close(read)
        os.waitpid(pid, 0)
        assert said == b"ok"
        assert (await dispatcher.dispatch(call("echo", value=1)))[0].data == 1


def _told_in(dispatcher: Any) -> list[str]:
    async def ask() -> list[str]:
        told = []
        for each in (*AWAITED.values(), lambda d: d.__aenter__()):
            try:
                await each(dispatcher)
            except RuntimeError as error:
                told.append(str(error))
        await dispatcher.close()  # leaves the parent's alone
        return told

    return asyncio.run(ask())


async def test_streams_end_with_the_dispatcher() -> None:
    async with in_memory() as dispatcher:
        events = asyncio.ensure_future(anext(dispatcher.events(), None))
        completed = asyncio.ensure_future(anext(dispatcher.completed(session="s"), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert await asyncio.wait_for(events, 2.0) is None
    assert await asyncio.wait_for(completed, 2.0) is None


async def test_closing_ends_what_runs_and_what_waits_its_turn() -> None:
    """Each dispatch is answered, whatever stage of its turn it is in."""
    gate = Gate()

    @tool(effects="write")
    async def work(label: str) -> str:
        """Work."""
        await gate.wait(label)
        return label

    async with alone([work]) as dispatcher:
        calls = [{"id": x, "name": "work", "input": {"label": x}} for x in ("a", "b", "c")]
        turns = [
            asyncio.ensure_future(dispatcher.dispatch(calls, session="s", turn="t")),
            asyncio.ensure_future(dispatcher.dispatch(calls)),
        ]
        await eventually(lambda: len(gate.came) == 2, "both are at work")
    for turn in turns:
        results = await asyncio.wait_for(turn, 5.0)
        assert [result.code for result in results] == [Code.CANCELLED] * 3
    assert results[1].executed is Executed.NO
    assert gate.came == ["a", "a"]


async def test_closing_ends_a_wait_for_a_background_call() -> None:
    """The call goes on; who waits for it here is told that he waits no more."""
    gate = Gate()

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as dispatcher:
        asked = {"response": call("work"), "session": "s", "turn": "t"}
        handle = str((await dispatcher.dispatch(**asked, wait=0.01))[0].handle)
        waits = asyncio.ensure_future(dispatcher.task_result(handle, session="s", wait=600))
        joined = asyncio.ensure_future(dispatcher.dispatch(**asked))
        await asyncio.sleep(0.05)
    with pytest.raises(RuntimeError, match="is closed"):
        await asyncio.wait_for(waits, 5.0)
    result = (await asyncio.wait_for(joined, 5.0))[0]
    assert result.executed is Executed.UNKNOWN


async def test_what_connect_gives_is_the_same_class() -> None:
    """So that the guards of one are those of all."""
    assert issubclass(Dispatcher, Connected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": None},
        {"tool": 5},
        {"tool": ""},
        {"tool": "a\ud800"},
        {"tool": "x" * 5_000_000},
        {"reason": None},
        {"reason": ""},
        {"reason": "\ud800"},
        {"reason": "x" * 5_000_000},
        {"argument": 5, "value": 1},
        {"argument": "value", "value": object()},
        {"value": 5},
    ],
)
async def test_a_switch_that_would_deny_nothing(wrong: dict[str, Any]) -> None:
    """Stored, and read by no dispatcher: the tool that was to be off would have stayed on."""
    async with in_memory() as dispatcher:
        given = {"tool": "echo", "reason": "no"} | wrong
        with pytest.raises(ValueError, match="must be|needs"):
            await dispatcher.deny(given.pop("tool"), **given)


@pytest.mark.parametrize("make", [Dispatcher.in_memory, Dispatcher.local])
@pytest.mark.parametrize(
    "wrong", ["tests.fleets.road", 5, None, tools, tools.echo, [5], [None], [len]], ids=repr
)
def test_invalid_tools_are_refused(make: Any, wrong: Any) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="not a tool|list of tools"):
        make(wrong)


def test_no_tool_at_all() -> None:
    """No worker will ever publish one: nothing is waited for."""
    for empty in ([], [asyncio]):
        with pytest.raises(ToolDeclarationInvalid, match="no tool in what in_memory was given"):
            Dispatcher.in_memory(empty)


async def test_an_unknown_format_is_refused() -> None:
    async with in_memory() as dispatcher:
        turn = await dispatcher.dispatch(call("echo", value=1))
        with pytest.raises(ValueError, match="unknown format 'gpt': use one of"):
            turn.messages("gpt")


@pytest.mark.parametrize("hook", [5, 0, False, "", []], ids=repr)
@pytest.mark.parametrize("name", ["before_call", "after_result", "on_loop"])
def test_a_hook_that_is_no_function(name: str, hook: Any) -> None:
    with pytest.raises(Misconfigured, match=name):
        Dispatcher.in_memory([tools], hooks=Hooks(**{name: hook}))


class EmptyChain(list[Any]):
    """False, as it is empty, and callable all the same."""

    def __call__(self, call: Any) -> Deny:
        return Deny("no step allows it")


async def test_a_hook_that_is_false_holds() -> None:
    async with Dispatcher.in_memory([tools], hooks=Hooks(before_call=EmptyChain())) as dispatcher:
        (result,) = await dispatcher.dispatch(call("echo", value=1))
    assert result.code is Code.DENIED


@pytest.mark.parametrize("name", ["before_call", "after_result", "policy"])
def test_a_hook_of_the_host_does_not_silently_replace_that_of_the_environment(
    name: str, tmp_path: Path
) -> None:
    given: Any = str(tmp_path / "p") if name == "policy" else lambda *_: None
    settings = Settings(**{name: "policy.toml" if name == "policy" else "math:sqrt"})
    with pytest.raises(Misconfigured, match=f"both TOOLPOOL_{name.upper()} and Hooks"):
        Dispatcher.in_memory([tools], hooks=Hooks(**{name: given}), settings=settings)
