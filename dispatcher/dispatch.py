"""The dispatcher: parses, validates, orders, queues, awaits and classifies calls."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, Self

from toolpool.contract import logs
from toolpool.contract.envelope import Envelope
from toolpool.contract.kill_switches import why_never_matched
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.result import ToolResult
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.admission import catalog as catalogs
from toolpool.dispatcher.admission.availability import make_switch
from toolpool.dispatcher.background import NO_SUCH_HANDLE
from toolpool.dispatcher.events import CHANNELS, Event
from toolpool.dispatcher.formats import FORMATS, named, response_reader
from toolpool.dispatcher.lifetime import Lifetime, in_a_thread
from toolpool.dispatcher.observer import Observer
from toolpool.dispatcher.observers.observer_setup import Record
from toolpool.dispatcher.policy.hooks import Hooks
from toolpool.dispatcher.policy.verdict_types import Preview
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.dispatcher.turn_options import (
    page_number,
    patience,
    require_name,
    session_key,
    turn_options,
)
from toolpool.dispatcher.turn_result import TurnResult
from toolpool.dispatcher.wiring import Wiring

log = logs.logger("dispatcher")


class Dispatcher:
    """Runs the tool calls of model responses: every call gets exactly one classified result.

    Use it as `async with Dispatcher.connect(url) as dispatcher`. One dispatcher serves any number
    of concurrent `dispatch` calls on one event loop. Its methods raise RuntimeError if it is not
    entered, is closed, or belongs to another event loop or to the process before a fork; read-only
    methods (`tools`, `specs`, `refused`, `check`, `in_flight`) may be called from any thread.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        settings: Settings,
        envelope: Envelope,
        only: Collection[str] | None = None,
        specs: Sequence[ToolSpec] | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
    ) -> None:
        self._lifetime = Lifetime()
        self._starting: asyncio.Task[None] | None = None
        self._closed: asyncio.Task[None] | None = None
        self._settings = settings
        self._specs = specs
        parts = Wiring(
            transport,
            settings,
            envelope,
            only=only,
            follows_catalog=specs is None,
            hooks=hooks,
            observers=observers,
            record=record,
        )
        self._parts = parts
        self._acceptance = parts.acceptance
        self._in_flight = parts.in_flight
        self._background = parts.background
        self._turns = parts.turns
        self._pipeline = parts.pipeline
        self.loops = parts.loops
        self.analytics = parts.analytics
        self.approvals = parts.approvals

    @classmethod
    def connect(
        cls,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        settings: Settings | None = None,
        only: Collection[str] | None = None,
        catalog: str | Path | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
    ) -> Self:
        """A dispatcher for workers on a Redis or Valkey server.

        `redis_url` defaults to `TOOLPOOL_REDIS_URL`. `only` is an allow-list of tool names;
        `catalog` a file written by `toolpool tools export`, used instead of the live catalog;
        `hooks` decide about calls and results; `observers` follow the calls; `record` names the
        session record. Raises `Misconfigured` here and on entering.
        """
        settings = settings or Settings()
        given = {"redis_url": redis_url, "broker_url": broker_url}
        settings = settings.model_copy(update={k: v for k, v in given.items() if v is not None})
        return cls(
            RedisTransport(settings),
            settings=settings,
            envelope=Envelope(connection.keyring(settings), max_bytes=settings.max_message_bytes),
            only=only,
            specs=catalogs.read_file(catalog) if catalog is not None else None,
            hooks=hooks,
            observers=observers,
            record=record,
        )

    async def __aenter__(self) -> Self:
        self._lifetime.enter()
        self._starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.wait({self._starting})
            self._lifetime.open()
            self._starting.result()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def _start(self) -> None:
        self._parts.observers.start()
        self._parts.watching.start()
        await self._in_flight.start()
        self.loops.start()
        self._parts.approval_waits.start()
        if self._parts.hooks.rules is not None:
            self._in_flight.in_background(self._parts.hooks.rules.follow(self._look_at_rules))
        if self._parts.hooks.on_event is not None:
            self._in_flight.in_background(
                self._parts.watching.pass_events(self._parts.hooks.on_event)
            )
        if self._specs is not None:
            self._parts.catalog.replace(self._specs)
        await self._in_flight.server_monitor.wait_for_tools(self._settings.catalog_timeout)

    def _look_at_rules(self) -> None:
        offers = self._parts.catalog.listed.values()
        self._parts.policy.look(offer.spec for offer in offers)

    async def close(self) -> None:
        """Answer the waiting calls and close every connection. Idempotent.

        Calls that no other dispatcher waits for are ended; background calls go on. Does nothing in
        a forked process: the connections belong to its parent. Raises RuntimeError on another event
        loop than its own.
        """
        if self._lifetime.close():
            self._closed = asyncio.ensure_future(self._stop())
        if self._closed is not None and not self._lifetime.is_forked:
            await asyncio.shield(self._closed)

    async def _stop(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self._parts.watching.leave()
        self._background.close()
        await self._parts.resumer.close()
        await self.loops.close()
        self._turns.close()
        self._in_flight.available.close()
        await self._parts.provider_approvals.close()
        await self._parts.approval_waits.close()
        await self._in_flight.close()
        await self._parts.watching.close()
        await in_a_thread(self._parts.observers.close)
        self._parts.hooks.close()
        self._parts.notifier.close()

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools that can be called, by name."""
        self._lifetime.require_open()
        offers = self._acceptance.listed(None)
        return [offers[name].spec for name in sorted(offers)]

    @property
    def refused(self) -> Mapping[str, str]:
        """Why each published tool with an unusable schema is not offered, by name."""
        self._lifetime.require_open()
        return MappingProxyType(self._parts.catalog.refused)

    def tools(self, format: str = "anthropic", *, only: Collection[str] | None = None) -> list[Any]:
        """The tools to offer the model, in a provider's form: plain dicts that fit the SDKs' types.

        `format` is `anthropic`, `openai_chat` (or `openai`), `openai_responses`, `openai_realtime`,
        `openai_agents`, `anthropic_agents`, `gemini`, `gemini_interactions`, `gemini_live`,
        `bedrock`, `cohere`, `ollama`, `langchain`, `pydantic_ai`, `mcp` or `bare`. The
        list includes the pool's own `task_result`, `task_cancel` and `task_list`, as any call may
        be answered with a handle. With `only` they are offered if it names them, and no answer
        refers to one that is not offered. Raises ValueError for another format.
        """
        self._lifetime.require_open()
        module = FORMATS[named(format)]
        offers = self._acceptance.listed(only)
        return module.offer([offers[name].spec for name in sorted(offers)])

    def events(
        self,
        since: str | None = None,
        channels: Collection[str] = CHANNELS,
        *,
        session: str | None = None,
    ) -> AsyncIterator[Event]:
        """Yield the events of calls (`progress`) and those for operators (`monitor`).

        They cover the whole fleet if `TOOLPOOL_EVENTS` is on, else this dispatcher. `since` is the
        bookmark of the last event seen, or `0`: events still stored since then come first, and
        missing ones are reported by an event of the kind `gap`. With `session`, only its events and
        gaps. Ends when the dispatcher is closed. Raises ValueError for an invalid bookmark, channel
        or session.
        """
        self._require(session)
        return self._parts.watching.follow(since, channels, session)

    def in_flight(self, session: str | None = None) -> int:
        """The number of open calls, of one session or of all."""
        self._lifetime.require_open()
        calls = list(self._in_flight.all_open())  # called from any thread
        return sum(
            (session is None or p.message.session == session) and not p.is_run for p in calls
        )

    async def cancel(
        self,
        session: str | None = None,
        *,
        call_id: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> int:
        """Cancel this dispatcher's open calls of a session, or one call by its id.

        Ids repeat between sessions, so give both if there is a session. The `dispatch` of each call
        answers `aborted.cancelled`, saying whether the tool had started. Returns how many calls
        ended: a background call whose end the server does not confirm goes on for now. `by` and
        `reason` are for the audit. Raises ValueError if neither session nor call is given.
        """
        self._require(session)
        if session is None and call_id is None:
            raise ValueError("cancel needs a session, a call_id, or both")
        self._parts.observers.audited(
            "cancelled", tool="", call_id=call_id or "", session=session, by=by, reason=reason
        )
        ended = await asyncio.gather(
            self._turns.cancel_all(session, call_id),
            self._parts.provider_approvals.cancel(session, call_id),
        )
        return sum(ended)

    async def deny(
        self,
        tool: str,
        *,
        argument: str | None = None,
        value: Any = None,
        tenant: str | None = None,
        reason: str,
        by: str = "",
    ) -> None:
        """Switch a tool off for the whole fleet, or only for calls whose `argument` has this
        `value`.

        With `tenant` only for calls of that tenant. No worker starts such a call from now on. These
        calls are answered `aborted.denied` with `reason`, which the model reads. Calls that already
        run go on. `by` names the operator, for the audit. Raises ValueError if the switch is
        invalid, `tool` is a pattern, or the tool's schema never accepts `value`, and
        `ServerUnavailable` if Redis does not answer.
        """
        self._lifetime.require()
        asked = make_switch(tool, argument, value, reason, set_at=0.0, on=True, tenant=tenant)
        offer = self._parts.catalog.offers.get(tool)
        if offer and (
            why := why_never_matched(offer.spec, offer.validator, asked.argument, asked.value)
        ):
            raise ValueError(why)
        if offer is None and set(tool) & {"*", "?"}:
            raise ValueError(f"no tool is called {tool!r}: a switch is for one tool, not a pattern")
        if offer is None:
            log.warning("switch_for_unknown_tool tool=%s: no worker offers it now", tool)
        turn = self._in_flight.available.set_switch
        await turn(tool, argument, value, reason, on=True, tenant=tenant, by=by)

    async def allow(
        self,
        tool: str,
        *,
        argument: str | None = None,
        value: Any = None,
        tenant: str | None = None,
        by: str = "",
    ) -> None:
        """Undo a `deny` with the same tool, argument, value and tenant."""
        self._lifetime.require()
        turn = self._in_flight.available.set_switch
        await turn(tool, argument, value, "", on=False, tenant=tenant, by=by)

    def check(
        self, response: Any, *, only: Collection[str] | None = None
    ) -> list[ToolResult | None]:
        """Validate each call: its rejection, or None if it would be queued.

        Raises `UnreadableResponse` for a response without calls to check.
        """
        self._lifetime.require_open()
        allowed = self._acceptance.allowed(only)
        found = self._pipeline.read(response)
        verdicts = [self._acceptance.judge(call, allowed, found.format) for call in found.calls]
        return [verdict if isinstance(verdict, ToolResult) else None for verdict in verdicts]

    async def preview(
        self,
        response: Any,
        *,
        session: str | None = None,
        only: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> list[Preview]:
        """Preview each call by the policy, the kill switches and the tools' circuits.

        Runs nothing and requests no approval.

        Raises as `check` and `dispatch` do.
        """
        self._require(session)
        found = self._pipeline.read(response)
        options = turn_options(
            found.id,
            session,
            context=context,
            timeout=None,
            wait=None,
            only=self._acceptance.allowed(only),
            settings=self._settings,
        )
        return await self._pipeline.preview(found, options)

    async def dispatch(
        self,
        response: Any,
        *,
        session: str | None = None,
        turn: str | None = None,
        only: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        format: str | None = None,
        again: bool = False,
    ) -> TurnResult:
        """Run every tool call of a model response; one result per call, in order.

        `response` is any provider's response (an SDK object, plain data or JSON), or a list of bare
        calls `{"id", "name", "input"}`. `session` names the conversation: with it, and the
        response's id or `turn`, a repeated call attaches to its record and is never run twice.
        `only` narrows the allow-list, `context` is passed to the tools and is not shown to the
        model, `timeout` (seconds) replaces the tools' own. A call that runs longer than `wait`
        seconds goes on in the background and answers with a handle. Set `again` if a host that has
        crashed may already have dispatched the turn: a call that may not run twice and has no
        record is then not run, and is answered `executed: unknown`. Never raises for what a model
        or a tool does; cancelling it cancels its calls. Raises ValueError for an invalid time; for
        a `session` or `turn` that is empty, longer than 256 characters or not Unicode; for an empty
        `only`; and for a `context` that is not JSON or exceeds the size limit of one call's
        arguments.
        """
        self._require(session)
        if turn is not None:
            require_name("turn", turn)
        try:
            found = self._pipeline.read(response, turn=turn, format=format)
        except response_reader.UnreadableResponse as error:
            return TurnResult([], format=error.format, error=str(error), response=response)
        options = turn_options(
            found.id,
            session,
            context=context,
            timeout=timeout,
            wait=wait,
            again=again,
            only=self._acceptance.allowed(only),
            provider=found.format,
            settings=self._settings,
        )
        since, resumer = monotonic(), self._parts.resumer
        if resumer.is_behind:
            await resumer.catch_up(options.session_key)
        noted = resumer.note(response, found, options)
        results = await self._pipeline.run(found, options, since)
        if noted is not None:
            resumer.mark_answered(noted)
        return TurnResult(results, format=found.format, stop=found.stop, response=response)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        session: str | None = None,
        only: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> ToolResult:
        """Run one call that the host makes itself, by the tool's name, and return its result.

        It is validated, judged and limited as a model's call is. `id` names the call in its
        `session`: called again with the same id, name and arguments, it is not run twice. Without
        an id, each call is a new one. Arguments that are no object of JSON are answered as a
        model's are. The other parameters, and what is raised, are those of `dispatch`.
        """
        given: Any = {} if arguments is None else arguments
        if isinstance(given, Mapping):
            given = dict(given)
        call = {"id": id or f"call_{new_nonce()}", "name": name, "input": given}
        turn = await self.dispatch(
            [call],
            session=session,
            turn=id,
            only=only,
            context=context,
            timeout=timeout,
            wait=wait,
            format="bare",
            again=again,
        )
        [result] = turn
        return result

    async def resume(
        self,
        messages: Sequence[Any],
        *,
        session: str,
        only: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        format: str | None = None,
    ) -> list[Any]:
        """Return a conversation with every unanswered call of it answered.

        For a host that restarts after a crash: `messages` is the history as the provider's API
        takes it; the return value is that history with the answers in place. A call that was
        dispatched in this `session` is looked up and not run twice. A call without a record is run
        only if that is safe; otherwise it is answered `executed: unknown`. The other parameters are
        those of `dispatch`. Raises ValueError as `dispatch` does, and for a `format` whose provider
        stores the history itself.
        """
        self._require(session)
        options = turn_options(
            None,
            session,
            context=context,
            timeout=timeout,
            wait=wait,
            only=self._acceptance.allowed(only),
            settings=self._settings,
        )
        return await self._parts.resumer.resume(messages, options, format)

    async def task_result(
        self, handle: str, *, session: str | None = None, wait: float = 0.0
    ) -> ToolResult | None:
        """The final result of a background call, after up to `wait` seconds; None while it runs.

        Raises KeyError if the handle is unknown, expired, or another session's, ValueError if
        `wait` is not a number of seconds, and `ServerUnavailable` if Redis does not answer.
        """
        self._require(session)
        found = await self._background.result(handle, session, patience(wait))
        self._lifetime.require()  # the dispatcher may have been closed meanwhile
        return found

    async def task_cancel(self, handle: str, *, session: str | None = None) -> ToolResult:
        """Stop a background call and return its final result.

        Raises KeyError as `task_result` does.
        """
        self._require(session)
        return await self._background.cancel(handle, session)

    async def task_list(self, *, session: str | None = None) -> list[dict[str, Any]]:
        """A session's background calls: handle, tool, state, seconds since the start.

        Without a session: the last thousand calls whose handles this dispatcher returned.
        Raises `ServerUnavailable` if Redis does not answer.
        """
        self._require(session)
        return await self._background.listed(session)

    async def output(
        self, handle: str, *, session: str | None = None, page: int = 1
    ) -> dict[str, Any]:
        """A page of a full output: `page`, `pages`, `text`.

        Raises KeyError and `ServerUnavailable` as `task_result` does, and ValueError if there is
        no such page.
        """
        self._require(session)
        found = await self._background.page(handle, session, page_number(page))
        if found is None:
            raise KeyError(NO_SUCH_HANDLE)
        return found

    def completed(self, *, session: str | None = None) -> AsyncIterator[str]:
        """Yield the handles of a session's background calls as they end.

        The stream ends when the dispatcher is closed. It raises `ServerUnavailable` if Redis does
        not answer when it begins.
        """
        self._require(session)
        return self._background.completed(session)

    def _require(self, session: str | None) -> None:
        """Raises RuntimeError if the dispatcher is not open, ValueError for a bad session."""
        self._lifetime.require()
        if session is not None:
            try:
                session_key(self._settings.tenant, session)
            except TypeError:  # a list, for example
                require_name("session", session)
