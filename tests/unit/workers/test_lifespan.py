"""Resources of a tools module: what is declared, and when it is opened and closed."""

import asyncio
import threading
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from toolpool import (
    Dispatcher,
    ToolContext,
    ToolDeclarationInvalid,
    ToolsUnimportable,
    lifespan,
    tool,
)
from toolpool.contract.spec import RunIn
from toolpool.workers.lifespan import Lifespan, Resources
from toolpool.workers.tool import Tool

TOLD: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    TOLD.clear()


def module_of(monkeypatch: pytest.MonkeyPatch, **values: Any) -> Tool[..., Any]:
    """A tool of a new module that has these values."""
    module = types.ModuleType("resourceful_module")
    vars(module).update(values)
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)

    async def look(ctx: ToolContext[Any]) -> Any:
        """Look."""
        return ctx.resources

    look.__module__ = module.__name__
    made: Tool[..., Any] = tool(effects="read")(look)
    return made


@lifespan
async def pool() -> AsyncIterator[str]:
    TOLD.append("open pool")
    try:
        yield "the pool"
    finally:
        TOLD.append("close pool")


@lifespan
def file() -> Iterator[str]:
    TOLD.append("open file")
    yield "the file"
    TOLD.append("close file")


@pytest.mark.parametrize("declared", [pool, file])
async def test_tools_get_what_it_yields(
    monkeypatch: pytest.MonkeyPatch, declared: Lifespan
) -> None:
    look = module_of(monkeypatch, resources=declared, same=declared)
    name = declared.function.__name__
    async with Dispatcher.in_memory([look]) as dispatcher:
        assert [f"open {name}"] == TOLD
        for _ in range(2):
            assert (await dispatcher.call("look")).data == f"the {name}"
    assert [f"open {name}", f"close {name}"] == TOLD


async def test_without_one_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Dispatcher.in_memory([module_of(monkeypatch)]) as dispatcher:
        result = await dispatcher.call("look")
        assert (result.ok, result.data) == (True, None)


async def test_it_is_opened_and_closed_in_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a task group or a cancel scope in it fails."""
    tasks: list[object] = []

    @lifespan
    async def scoped() -> AsyncIterator[None]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60):
            yield
        tasks.append(asyncio.current_task())

    async with Dispatcher.in_memory([module_of(monkeypatch, scoped=scoped)]):
        pass
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_one_that_fails_closes_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @lifespan
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("password=hunter2")
        yield

    first = module_of(monkeypatch, pool=pool)
    resources = Resources([first])
    resources._lifespans["other"] = broken
    with pytest.raises(ToolsUnimportable, match="broken failed while it was opened"):
        await resources.open()
    assert TOLD == ["open pool", "close pool"]


@pytest.mark.parametrize(
    "end", [SystemExit("no DATABASE_URL"), asyncio.CancelledError(), KeyError()]
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_one_that_ends_in_any_way_is_an_error_with_its_name(
    monkeypatch: pytest.MonkeyPatch, end: BaseException, is_async: bool
) -> None:
    def broken() -> Iterator[None]:
        raise end
        yield

    async def broken_later() -> AsyncIterator[None]:
        raise end
        yield

    declared = lifespan(broken_later if is_async else broken)
    resources = Resources([module_of(monkeypatch, declared=declared)])
    with pytest.raises(ToolsUnimportable, match="failed while it was opened"):
        await asyncio.wait_for(resources.open(), 5)
    if not is_async:
        with pytest.raises(ToolsUnimportable, match=type(end).__name__):
            resources.open_in_child()


async def test_a_blocking_one_is_opened_and_closed_in_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    @lifespan
    def bound() -> Iterator[None]:
        threads.append(threading.get_ident())
        yield
        threads.append(threading.get_ident())

    async with Dispatcher.in_memory([module_of(monkeypatch, bound=bound)]):
        pass
    assert len(threads) == 2
    assert len({*threads, threading.get_ident()}) == 2


async def test_one_that_fails_to_close_is_logged_without_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @lifespan
    async def broken() -> AsyncIterator[None]:
        yield
        raise ConnectionError("password=hunter2")

    async with Dispatcher.in_memory([module_of(monkeypatch, broken=broken)]):
        pass
    assert "lifespan_not_closed" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_child_process_opens_only_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = Resources([look := module_of(monkeypatch, file=file)])
    with resources.open_in_child():
        assert resources.of(look) == "the file"
    assert TOLD == ["open file", "close file"]
    with pytest.raises(ToolDeclarationInvalid, match="write it as a plain `def`"):
        Resources([module_of(monkeypatch, pool=pool)]).open_in_child()


def test_a_module_has_at_most_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="several lifespans"):
        Resources([module_of(monkeypatch, pool=pool, file=file)])


def test_it_must_be_a_generator_function_without_parameters() -> None:
    def returns() -> int:
        return 1

    def takes(url: str) -> Iterator[str]:
        yield url

    with pytest.raises(ToolDeclarationInvalid, match="yields the resources once"):
        lifespan(returns)  # type: ignore[arg-type]
    with pytest.raises(ToolDeclarationInvalid, match="no parameters"):
        lifespan(takes)  # type: ignore[arg-type]


def test_a_test_gives_a_tool_its_resources() -> None:
    context = ToolContext[str](call_id="1", tool="look", resources="a stand-in")
    assert context.resources == "a stand-in"


def test_the_context_of_any_type_is_injected() -> None:
    @tool(effects="read", run_in="thread")
    def look(one: ToolContext[int] | None, two: ToolContext) -> str:
        """Look."""
        return "seen"

    assert look.spec.run_in is RunIn.THREAD
    assert look.spec.input_schema["properties"] == {}
