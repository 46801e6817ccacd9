"""What public methods raise while the server is away, full, or has another signing key."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from tests.integration.fleet import call, connected, running
from toolpool import Dispatcher, SyncDispatcher, ToolpoolError, ToolResult, TurnResult
from toolpool.contract.signing import generate_key
from toolpool.local import LocalFleet

HANDLE = "bg_AAAAAAAAAAAAAAAAAAAAAA"
HISTORY = [
    {"role": "user", "content": "echo"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "echo", "input": {"value": 1}}],
    },
]


async def first(items: AsyncIterator[Any]) -> Any:
    """The first of what is followed, or None if nothing comes in a moment."""
    try:
        return await asyncio.wait_for(anext(items), 1.0)
    except TimeoutError:
        return None


METHODS: dict[str, Callable[[Dispatcher], Awaitable[Any]]] = {
    "dispatch": lambda d: d.dispatch(call("echo", value=1), session="s", turn="t"),
    "dispatch in the background": lambda d: d.dispatch(call("whoami"), session="s"),
    "preview": lambda d: d.preview(call("echo", value=1), session="s"),
    "resume": lambda d: d.resume(HISTORY, session="s"),
    "task_result": lambda d: d.task_result(HANDLE, session="s"),
    "task_cancel": lambda d: d.task_cancel(HANDLE, session="s"),
    "task_list": lambda d: d.task_list(session="s"),
    "output": lambda d: d.output(HANDLE, session="s"),
    "completed": lambda d: first(d.completed(session="s")),
    "events": lambda d: first(d.events()),
    "cancel": lambda d: d.cancel("s"),
    "deny": lambda d: d.deny("echo", reason="not now"),
    "allow": lambda d: d.allow("echo"),
    "approvals.waiting": lambda d: d.approvals.waiting(),
    "approvals.get": lambda d: d.approvals.get("a"),
    "approvals.approve": lambda d: d.approvals.approve("a", by="anna"),
    "approvals.deny": lambda d: d.approvals.deny("a", by="anna"),
}
EXPECTED = (ToolpoolError, KeyError)
"""KeyError: there is no such handle or approval."""


async def outcomes(dispatcher: Dispatcher) -> dict[str, Any]:
    """What each method returned or raised. None may take for ever."""

    async def outcome(method: Callable[[Dispatcher], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(30):
                return await method(dispatcher)
        except Exception as error:
            return error

    said = await asyncio.gather(*(outcome(method) for method in METHODS.values()))
    return dict(zip(METHODS, said, strict=True))


def unexpected(said: dict[str, Any]) -> dict[str, Any]:
    """Errors outside the tree, and results that claim a fault of the pool itself."""
    wrong = {
        name: repr(one)
        for name, one in said.items()
        if isinstance(one, BaseException) and not isinstance(one, EXPECTED)
    }
    for name, one in said.items():
        for result in one if isinstance(one, TurnResult) else [one]:
            if isinstance(result, ToolResult) and result.code == "exception.internal":
                wrong[name] = result.code
    return wrong


SETTINGS: dict[str, Any] = {"queue_timeout": 2.0, "connect_timeout": 0.5}


@pytest.fixture
def fleet() -> Iterator[LocalFleet]:
    with running("tests.fleets.road", **SETTINGS) as started:
        yield started


async def test_every_method_raises_errors_of_the_tree_alone_while_the_server_is_away(
    fleet: LocalFleet,
) -> None:
    async with connected(fleet) as dispatcher:
        fleet._server.close()
        assert unexpected(await outcomes(dispatcher)) == {}


async def test_every_method_raises_errors_of_the_tree_alone_while_the_server_is_full(
    fleet: LocalFleet,
) -> None:
    async with connected(fleet) as dispatcher:
        with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
            client.config_set("maxmemory", 1)
            said = await outcomes(dispatcher)
            client.config_set("maxmemory", 0)
        assert unexpected(said) == {}


async def test_a_dispatcher_with_another_signing_key_says_so_before_it_is_used(
    fleet: LocalFleet,
) -> None:
    other = SecretStr(generate_key())
    with pytest.raises(ToolpoolError, match="TOOLPOOL_SIGNING_KEY"):
        async with connected(fleet, signing_key=other, catalog_timeout=1.0):
            pass


async def test_the_blocking_dispatcher_raises_errors_of_the_tree_alone_while_it_is_away(
    fleet: LocalFleet,
) -> None:
    def use() -> list[str]:
        wrong: list[str] = []
        with SyncDispatcher.connect(settings=fleet.settings) as dispatcher:
            fleet._server.close()
            for method in (
                lambda: dispatcher.dispatch(call("echo", value=1), session="s", turn="t"),
                lambda: dispatcher.resume(HISTORY, session="s"),
                lambda: dispatcher.deny("echo", reason="not now"),
                lambda: dispatcher.approvals.waiting(),
                lambda: dispatcher.cancel("s"),
            ):
                try:
                    method()
                except EXPECTED:
                    pass
                except Exception as error:
                    wrong.append(repr(error))
        return wrong

    assert await asyncio.to_thread(use) == []
