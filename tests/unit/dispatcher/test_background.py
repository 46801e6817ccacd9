"""Calls that outlive their wait budget: whose handles they are, and what becomes of them (R35)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.dispatcher.samples import Hand, turns
from tests.waiting import eventually
from toolpool.contract.envelope import BackgroundCall, Envelope, StoredOutput
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import Effects, ToolSpec, sealed
from toolpool.dispatcher import background, completed_handles
from toolpool.dispatcher.dispatch import Dispatcher
from toolpool.dispatcher.transports.memory import MemoryTransport

SPEC = sealed(ToolSpec(name="slow", effects=Effects.READ, background=True))
ENVELOPE = Envelope(Keyring.local())
LONG = 30.0
"""Longer than any test, for what is sure to come."""


class Keeping(MemoryTransport):
    """Cannot keep handles, a few times."""

    refusals_left = 0
    ahead = 0.0
    """How far the server's clock is said to have gone on, in seconds."""

    def server_time(self) -> float:
        """See `Transport.server_time`."""
        return super().server_time() + self.ahead

    async def keep_handle(self, handle: str, body: bytes, **options: Any) -> None:
        """See `Transport.keep_handle`."""
        if self.refusals_left:
            self.refusals_left -= 1
            raise OSError("the server is away")
        await super().keep_handle(handle, body, **options)


class Bench:
    """A server, a worker in the test's hand, and dispatchers."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.hand = Hand(self.server)
        self.transport = Keeping(self.server)

    @asynccontextmanager
    async def dispatcher(self, reply: str = "", **settings: Any) -> AsyncIterator[Dispatcher]:
        """Another one, where `reply` names its reply stream."""
        transport = MemoryTransport(self.server, reply) if reply else self.transport
        settings = {"background_wait": 0.0} | settings
        async with Dispatcher(
            transport, settings=Settings(**settings), envelope=ENVELOPE, specs=[SPEC]
        ) as made:
            yield made

    def store(self, handle: str, text: str, envelope: Envelope = ENVELOPE, **fields: Any) -> None:
        """Keep a whole output, as workers do."""
        fields = {"tenant": "default", "session": "s-1"} | fields
        output = StoredOutput(handle=handle, tool="slow", text=text, **fields)
        self.server.outputs[handle] = envelope.encode(output)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    work = asyncio.create_task(made.hand.run())
    yield made
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
async def dispatcher(bench: Bench) -> AsyncIterator[Dispatcher]:
    async with bench.dispatcher() as made:
        yield made


async def ask(
    dispatcher: Dispatcher, tool: str, session: str | None = "s-1", key: str = "k", **arguments: Any
) -> ToolResult:
    """One call of a model."""
    call = {"id": key, "name": tool, "input": arguments}
    (result,) = await dispatcher.dispatch([call], session=session)
    return result


async def move_to_background(dispatcher: Dispatcher, key: str, session: str | None = "s-1") -> str:
    """The handle of a call that goes on in the background."""
    result = await ask(dispatcher, "slow", session, key)
    assert result.handle
    return result.handle


async def final(
    dispatcher: Dispatcher, handle: str, session: str | None = "s-1"
) -> ToolResult | None:
    return await dispatcher.task_result(handle, session=session, wait=LONG)


# Whose a handle is.


async def test_a_handle_stands_for_the_call_that_goes_on(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handle = await move_to_background(dispatcher, "a")
    assert await dispatcher.task_result(handle, session="s-1") is None
    await bench.hand.end("a")
    result = await final(dispatcher, handle)
    assert result is not None
    assert (result.ok, result.data) == (True, "a")
    again = await final(dispatcher, handle)
    assert again is not None
    assert again.payload() == result.payload(), "as often as it is asked for"


@pytest.mark.parametrize("session", ["s-2", None])
async def test_a_handle_is_found_by_its_session_alone(
    dispatcher: Dispatcher, session: str | None
) -> None:
    handle = await move_to_background(dispatcher, "a")
    with pytest.raises(KeyError):
        await dispatcher.task_result(handle, session=session)
    with pytest.raises(KeyError):
        await dispatcher.task_cancel(handle, session=session)
    assert await dispatcher.task_list(session=session) == []
    assert dispatcher.in_flight() == 1


async def test_a_handle_of_no_session_is_found_without_one_alone(dispatcher: Dispatcher) -> None:
    handle = await move_to_background(dispatcher, "a", None)
    assert await dispatcher.task_result(handle) is None
    with pytest.raises(KeyError):
        await dispatcher.task_result(handle, session="s-1")


async def test_a_handle_is_found_by_its_tenant_alone(bench: Bench, dispatcher: Dispatcher) -> None:
    handle = await move_to_background(dispatcher, "a")
    async with bench.dispatcher("reply:other", tenant="another") as other:
        with pytest.raises(KeyError):
            await other.task_result(handle, session="s-1")
        assert await other.task_list(session="s-1") == []


@pytest.mark.parametrize("stored", ["under another name", "by a stranger"])
async def test_a_handle_stored_without_the_key_is_rejected(
    bench: Bench, dispatcher: Dispatcher, stored: str
) -> None:
    handle = await move_to_background(dispatcher, "a")
    await eventually(lambda: handle in bench.server.handles, "the server has it")
    owner, body = bench.server.handles[handle]
    stranger = Envelope(Keyring([generate_key()]))
    if stored == "by a stranger":
        body = stranger.encode(ENVELOPE.decode(BackgroundCall, body))
    bench.server.handles["forged"] = (owner, body)
    with pytest.raises(KeyError):
        await dispatcher.task_result("forged", session="s-1")


@pytest.mark.parametrize("tool", ["task_result", "task_cancel"])
async def test_a_model_does_not_learn_whether_a_handle_is_another_s(
    dispatcher: Dispatcher, tool: str
) -> None:
    handle = await move_to_background(dispatcher, "a")
    foreign = await ask(dispatcher, tool, "s-2", handle=handle)
    unknown = await ask(dispatcher, tool, "s-2", "other", handle="nothing")
    assert (foreign.code, foreign.executed) == (Code.REPORTED, Executed.YES)
    assert foreign.error == unknown.error


# What a model and a host are told of it.


async def test_a_model_gets_the_result_with_the_handle(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handle = await move_to_background(dispatcher, "a")
    await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    running = await ask(dispatcher, "task_result", key="b", handle=handle, wait=0)
    assert running.data == {"handle": handle, "tool": "slow", "state": "RUNNING"}
    await bench.hand.end("a")
    done = await ask(dispatcher, "task_result", key="c", handle=handle, wait=LONG)
    assert done.data == {"handle": handle, "tool": "slow", "state": "COMPLETED", "result": "a"}


async def test_a_model_that_asks_for_a_result_waits_for_it(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handle = await move_to_background(dispatcher, "a")
    asked = asyncio.create_task(ask(dispatcher, "task_result", key="b", handle=handle, wait=LONG))
    await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    await turns(50)
    assert not asked.done()
    await bench.hand.end("a")
    assert (await asked).data["result"] == "a"


async def test_a_model_is_told_why_a_background_call_failed(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handle = await move_to_background(dispatcher, "a")
    await bench.hand.end("a", failure(Code.REPORTED, "no such row", Executed.YES, worker="w-1"))
    told = await ask(dispatcher, "task_result", handle=handle, wait=LONG)
    assert told.ok, "the question was answered"
    assert (told.data["state"], told.data["ok"], told.data["code"]) == (
        "FAILED", False, "logical.reported",
    )  # fmt: skip
    assert "no such row" in told.data["error"]


async def test_a_host_stops_a_background_call(bench: Bench, dispatcher: Dispatcher) -> None:
    handle = await move_to_background(dispatcher, "a")
    await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    result = await dispatcher.task_cancel(handle, session="s-1")
    assert (result.code, result.executed) == (Code.CANCELLED, Executed.UNKNOWN)
    assert bench.server.waiting("cancel:w-1") == 1
    again = await dispatcher.task_cancel(handle, session="s-1")
    assert again.payload() == result.payload()


async def test_a_model_stops_a_background_call(bench: Bench, dispatcher: Dispatcher) -> None:
    handle = await move_to_background(dispatcher, "a")
    await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    told = await ask(dispatcher, "task_cancel", handle=handle)
    assert (told.data["state"], told.data["code"]) == ("FAILED", "aborted.cancelled")
    assert dispatcher.in_flight() == 0


# Lists.


async def test_a_session_s_calls_are_listed_with_their_states_the_newest_last(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handles = [await move_to_background(dispatcher, key) for key in "ab"]
    await move_to_background(dispatcher, "c", "s-2")
    await bench.hand.end("a")
    await final(dispatcher, handles[0])
    await eventually(lambda: "b" in bench.hand.ids, "it runs")
    listed = await dispatcher.task_list(session="s-1")
    assert [(task["handle"], task["tool"], task["state"]) for task in listed] == [
        (handles[0], "slow", "COMPLETED"), (handles[1], "slow", "RUNNING"),
    ]  # fmt: skip


@pytest.mark.parametrize("tenant", ["default", "another"])
async def test_a_call_listed_under_another_session_or_tenant_is_not_listed(
    bench: Bench, dispatcher: Dispatcher, tenant: str
) -> None:
    """R63: nobody signed the list, and whoever listens would send the call as its own."""
    session = "s-1" if tenant == "another" else "s-2"
    handle = await move_to_background(dispatcher, "a", session)
    _, body = bench.server.handles[handle]
    async with bench.dispatcher("reply:other", tenant=tenant) as other:
        bench.server.handles[handle] = other._background._owner("s-1"), body
        assert await other.task_list(session="s-1") == []


async def test_another_dispatcher_lists_the_state_of_the_record(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    await move_to_background(dispatcher, "a")
    await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    async with bench.dispatcher("reply:other") as other:
        (task,) = await other.task_list(session="s-1")
    assert task["state"] == "RUNNING"


async def test_what_is_kept_no_more_is_not_listed(bench: Bench, dispatcher: Dispatcher) -> None:
    await move_to_background(dispatcher, "a", None)
    assert len(await dispatcher.task_list()) == 1
    bench.transport.ahead = 2 * 86_400.0
    assert await dispatcher.task_list() == []


async def test_a_call_whose_record_is_gone_is_listed_as_expired(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handle = await move_to_background(dispatcher, "a")
    await bench.hand.end("a")
    await final(dispatcher, handle)
    bench.server.forget()
    (task,) = await dispatcher.task_list(session="s-1")
    assert task["state"] == "PENDING", "it may be that it was not sent yet"
    bench.transport.ahead = 40.0  # longer than a call waits to be sent
    (task,) = await dispatcher.task_list(session="s-1")
    assert task["state"] == "EXPIRED"


async def test_a_model_sees_the_newest_calls_and_the_count_of_older_ones(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LISTED_AT_MOST", 2)
    handles = [await move_to_background(dispatcher, key) for key in "abcde"]
    told = await ask(dispatcher, "task_list")
    assert [task["handle"] for task in told.data] == handles[-2:]
    assert told.note is not None
    assert "3" in told.note
    assert len(await dispatcher.task_list(session="s-1")) == 5, "a host is shown all"


async def test_a_model_without_a_session_is_shown_no_calls(dispatcher: Dispatcher) -> None:
    """They may be another conversation's."""
    await move_to_background(dispatcher, "a", None)
    told = await ask(dispatcher, "task_list", None)
    assert (told.data, bool(told.note)) == ([], True)


async def test_without_a_session_a_host_is_shown_the_newest_of_this_dispatcher(
    bench: Bench, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_OWN_KEPT", 2)
    handles = [await move_to_background(dispatcher, "a", None)]
    await bench.hand.end("a")
    await final(dispatcher, handles[0], None)
    handles += [await move_to_background(dispatcher, key, None) for key in "bc"]
    assert [task["handle"] for task in await dispatcher.task_list()] == handles[1:]
    handles.append(await move_to_background(dispatcher, "d", None))
    listed = [task["handle"] for task in await dispatcher.task_list()]
    assert listed == handles[1:], "what is open is kept"
    async with bench.dispatcher("reply:other") as other:
        assert await other.task_list() == []


# Pages of a whole output.


async def test_a_whole_output_is_read_page_by_page(bench: Bench) -> None:
    bench.store("o-1", "abcdefgh")
    async with bench.dispatcher(output_page_characters=3) as dispatcher:
        pages = [await dispatcher.output("o-1", session="s-1", page=n) for n in (1, 2, 3)]
        assert [page["text"] for page in pages] == ["abc", "def", "gh"]
        assert pages[1] == {"handle": "o-1", "tool": "slow", "page": 2, "pages": 3, "text": "def"}
        told = await ask(dispatcher, "task_result", handle="o-1", page=3)
        assert told.data == pages[2]


@pytest.mark.parametrize(("text", "pages"), [("", 1), ("ab", 1), ("abc", 1), ("abcd", 2)])
async def test_there_is_no_page_after_the_last(bench: Bench, text: str, pages: int) -> None:
    bench.store("o-1", text)
    async with bench.dispatcher(output_page_characters=3) as dispatcher:
        last = await dispatcher.output("o-1", session="s-1", page=pages)
        assert (last["page"], last["pages"]) == (pages, pages)
        with pytest.raises(ValueError, match=f"there is no page {pages + 1}: the output has"):
            await dispatcher.output("o-1", session="s-1", page=pages + 1)
        told = await ask(dispatcher, "task_result", handle="o-1", page=pages + 1)
        assert (told.code, told.executed) == (Code.REPORTED, Executed.YES)


@pytest.mark.parametrize(
    "fields", [{"session": "s-2"}, {"session": None}, {"tenant": "another"}], ids=str
)
async def test_an_output_is_found_by_its_session_and_tenant_alone(
    bench: Bench, dispatcher: Dispatcher, fields: dict[str, Any]
) -> None:
    bench.store("o-1", "abc", **fields)
    with pytest.raises(KeyError):
        await dispatcher.output("o-1", session="s-1")


async def test_an_output_stored_without_the_key_is_rejected(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    bench.store("o-1", "abc", Envelope(Keyring([generate_key()])))
    bench.store("o-2", "abc")
    bench.server.outputs["o-3"] = bench.server.outputs["o-2"]
    for handle in ("o-1", "o-3", "o-4"):
        with pytest.raises(KeyError):
            await dispatcher.output(handle, session="s-1")


# The stream of completed handles.


async def test_handles_come_as_their_calls_end_to_their_session_alone(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handles = {key: await move_to_background(dispatcher, key) for key in "ab"}
    foreign = await move_to_background(dispatcher, "c", "s-2")
    ours, theirs = dispatcher.completed(session="s-1"), dispatcher.completed(session="s-2")
    for key in "cba":
        await bench.hand.end(key)
    assert [await anext(ours), await anext(ours)] == [handles["b"], handles["a"]]
    assert await anext(theirs) == foreign


async def test_calls_that_ended_before_the_first_listener_come_first(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    first, second = [await move_to_background(dispatcher, key) for key in "ab"]
    await bench.hand.end("a")
    await final(dispatcher, first)
    stream = dispatcher.completed(session="s-1")
    assert await anext(stream) == first
    await bench.hand.end("b")
    assert await anext(stream) == second


async def test_a_listener_that_pauses_misses_nothing(bench: Bench, dispatcher: Dispatcher) -> None:
    first, second = [await move_to_background(dispatcher, key) for key in "ab"]
    stream = dispatcher.completed(session="s-1")
    assert isinstance(stream, AsyncGenerator)
    await bench.hand.end("a")
    assert await anext(stream) == first
    await stream.aclose()
    assert dispatcher._background._completed._followed == {}
    await bench.hand.end("b")
    await final(dispatcher, second)
    assert await anext(dispatcher.completed(session="s-1")) == second


async def test_of_undelivered_items_the_oldest_is_dropped(
    bench: Bench, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completed_handles, "_COMPLETED_KEPT", 2)
    handles = [await move_to_background(dispatcher, key) for key in "abc"]
    for key, handle in zip("abc", handles, strict=True):
        await bench.hand.end(key)
        await final(dispatcher, handle)
    stream = dispatcher.completed(session="s-1")
    assert [await anext(stream), await anext(stream)] == handles[1:]


async def test_the_sessions_that_nobody_listens_to_are_forgotten_the_oldest_first(
    bench: Bench, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completed_handles, "_SESSIONS_KEPT", 2)
    handles = {}
    for key in "abc":
        handles[key] = await move_to_background(dispatcher, key, key)
        await bench.hand.end(key)
        await final(dispatcher, handles[key], key)
    for key in "bc":
        assert await anext(dispatcher.completed(session=key)) == handles[key]
    assert "a" not in dispatcher._background._completed._inboxes


async def test_the_stream_ends_when_the_dispatcher_is_closed(bench: Bench) -> None:
    async with bench.dispatcher() as dispatcher:
        stream = dispatcher.completed(session="s-1")
        rest = asyncio.create_task(_all_of(stream))
        await turns(20)
        assert not rest.done()
    assert await asyncio.wait_for(rest, LONG) == []


async def _all_of(stream: AsyncIterator[str]) -> list[str]:
    return [handle async for handle in stream]


# While the server is away, and after a dispatcher has died.


async def test_a_handle_works_here_while_the_server_cannot_keep_it(
    bench: Bench, dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    bench.transport.refusals_left = 3
    handle = await move_to_background(dispatcher, "a")
    assert handle not in bench.server.handles
    assert await dispatcher.task_result(handle, session="s-1") is None
    with pytest.raises(KeyError):
        await dispatcher.task_result(handle, session="s-2")
    assert "handle_not_kept call=a" in caplog.text
    await eventually(lambda: handle in bench.server.handles, "it is kept after all")
    async with bench.dispatcher("reply:other") as other:
        assert await other.task_result(handle, session="s-1") is None


async def test_a_handle_works_here_though_the_server_lost_it(
    bench: Bench, dispatcher: Dispatcher
) -> None:
    handle = await move_to_background(dispatcher, "a")
    other = await move_to_background(dispatcher, "b")
    await eventually(lambda: bench.hand.ids == ["a", "b"], "they run")
    await eventually(lambda: other in bench.server.handles, "the server has them")
    bench.server.handles.clear()
    listed = [task["handle"] for task in await dispatcher.task_list(session="s-1")]
    assert listed == [handle, other]
    await move_to_background(dispatcher, "c")
    told = await ask(dispatcher, "task_list", key="list")
    assert len(told.data) == 3
    assert await dispatcher.task_result(handle, session="s-1") is None
    with pytest.raises(KeyError):
        await dispatcher.task_result(handle, session="s-2")
    await bench.hand.end("a")
    result = await final(dispatcher, handle)
    assert result is not None
    assert result.data == "a"


async def test_a_call_that_ends_while_its_handle_is_being_kept_has_its_result(
    bench: Bench, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle would only have to be asked for."""

    async def end_meanwhile(*args: Any, **options: Any) -> None:
        await bench.hand.end("a")
        await eventually(lambda: dispatcher.in_flight() == 0, "it is answered")

    monkeypatch.setattr(bench.transport, "keep_handle", end_meanwhile)
    result = await ask(dispatcher, "slow", key="a")
    assert (result.data, result.handle) == ("a", None)


async def test_a_handle_outlives_the_dispatcher_that_gave_it(bench: Bench) -> None:
    async with bench.dispatcher("reply:first") as first:
        handle = await move_to_background(first, "a")
        await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    async with bench.dispatcher("reply:second") as second:
        assert await second.task_result(handle, session="s-1") is None
        await bench.hand.end("a")
        result = await final(second, handle)
        assert result is not None
        assert result.data == "a"


async def test_a_call_that_ended_without_a_listener_is_found_by_its_handle(bench: Bench) -> None:
    async with bench.dispatcher("reply:first") as first:
        handle = await move_to_background(first, "a")
        await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    await bench.hand.end("a")
    async with bench.dispatcher("reply:second") as second:
        result = await final(second, handle)
        assert result is not None
        assert result.data == "a"


async def test_a_listener_adopts_the_calls_of_a_dead_dispatcher(bench: Bench) -> None:
    async with bench.dispatcher("reply:first") as first:
        handle = await move_to_background(first, "a")
        await eventually(lambda: bench.hand.ids == ["a"], "it runs")
    async with bench.dispatcher("reply:second") as second:
        stream = second.completed(session="s-1")
        coming = asyncio.ensure_future(anext(stream))
        await eventually(lambda: second.in_flight("s-1") == 1, "it is adopted")
        await bench.hand.end("a")
        assert await asyncio.wait_for(coming, LONG) == handle
