"""The road of a call: parse, validate, order, queue, wait, classify. The rest hangs beside it."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contract import connection, encoding
from contract.call import ToolCall
from contract.envelope import CallMessage, Envelope
from contract.errors import CatalogEmpty, Misconfigured
from contract.names import queue_name
from contract.outcome import Code, Outcome
from contract.result import ToolResult
from contract.settings import Settings
from contract.spec import ToolSpec
from contract.steps import new_nonce
from dispatcher import catalog as catalogs
from dispatcher import feedback, intake
from dispatcher.catalog import Catalog, Offer
from dispatcher.classify import Wording, classified, rejected
from dispatcher.collect import Collector
from dispatcher.feedback import Caps
from dispatcher.follow import Follower
from dispatcher.formats import FORMATS, Response
from dispatcher.keeper import Keeper
from dispatcher.order import stages
from dispatcher.pending import Latch, Pending
from dispatcher.pump import Pump
from dispatcher.recovery import Recovery
from dispatcher.redis_transport import RedisTransport
from dispatcher.transport import Transport
from dispatcher.turn import TurnResult
from dispatcher.validate import validate

log = logging.getLogger("toolpool.dispatch")

_ANSWER_MARGIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the calls of one dispatch share."""

    id: str | None
    session: str | None
    line: str
    context: dict[str, Any] | None
    timeout: float | None


class Dispatcher:
    """Runs the tool calls of model responses: every call gets exactly one classified result.

    Use it as `async with Dispatcher.connect(url) as dispatcher`. One dispatcher serves any number
    of concurrent `dispatch` calls on one event loop.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        settings: Settings,
        envelope: Envelope,
        tools: Collection[str] | None = None,
        specs: Sequence[ToolSpec] | None = None,
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._envelope = envelope
        self._allowed = frozenset(tools) if tools is not None else None
        self._specs = specs
        self._catalog = Catalog()
        self._wording = Wording(
            Caps(settings.feedback_errors, settings.feedback_characters, settings.feedback_names),
            settings.locale,
        )
        self._open: dict[str, Pending] = {}
        self._pump = Pump(
            transport=transport,
            envelope=envelope,
            settings=settings,
            resolve=self._resolve,
            settled=self._settled,
        )
        self._keeper = Keeper(
            transport=transport,
            envelope=envelope,
            resolve=self._resolve,
            settled=self._settled,
            started=self._started,
        )
        self._recovery = Recovery(
            transport=transport,
            envelope=envelope,
            settings=settings,
            pump=self._pump,
            resolve=self._resolve,
            settled=self._settled,
        )
        self._follower = Follower(
            transport=transport,
            envelope=envelope,
            catalog=self._catalog,
            pump=self._pump,
            recovery=self._recovery,
            calls=lambda: list(self._open.values()),
            follows_catalog=specs is None,
        )
        self._collector = Collector(
            transport=transport,
            envelope=envelope,
            find=self._open.get,
            resolve=self._resolve,
            started=self._started,
            released=self._released,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[None]] = set()

    @classmethod
    def connect(
        cls,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        settings: Settings | None = None,
        tools: Collection[str] | None = None,
        catalog: str | Path | None = None,
    ) -> Self:
        """A dispatcher for workers on a Redis or Valkey server.

        The URL comes from `TOOLPOOL_REDIS_URL` where it is not given. `tools` is an allow-list of
        names; `catalog` a file that `toolpool tools export` wrote, in place of the live catalog.
        Raises `Misconfigured` errors here and on entering.
        """
        settings = settings or Settings()
        given = {"redis_url": redis_url, "broker_url": broker_url}
        settings = settings.model_copy(update={k: v for k, v in given.items() if v is not None})
        return cls(
            RedisTransport(settings),
            settings=settings,
            envelope=Envelope(connection.keyring(settings), max_bytes=settings.max_message),
            tools=tools,
            specs=catalogs.read_file(catalog) if catalog is not None else None,
        )

    async def __aenter__(self) -> Self:
        await self._transport.open()
        if self._specs is not None:
            self._catalog.replace(self._specs)
        self._tasks.append(asyncio.ensure_future(self._collector.run()))
        await self._follower.once()
        self._tasks.append(asyncio.ensure_future(self._follower.run()))
        try:
            await self._wait_for_catalog()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what is still running and let go of every connection. Idempotent."""
        if self._open:
            await self._keeper.cancel(list(self._open.values()))
        for task in (*self._tasks, *self._background):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._keeper.close()
        await self._transport.close()

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools that can be called, by name."""
        offers = self._offers(None)
        return [offers[name].spec for name in sorted(offers)]

    def tools(
        self, format: str = "anthropic", *, only: Collection[str] | None = None
    ) -> list[dict[str, Any]]:
        """What to offer the model, in a provider's form (`anthropic`, `openai_chat`, `bare`)."""
        if format not in FORMATS:
            raise ValueError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
        offers = self._offers(only)
        return FORMATS[format].offer([offers[name].spec for name in sorted(offers)])

    def check(
        self, response: Any, *, tools: Collection[str] | None = None
    ) -> list[ToolResult | None]:
        """What would happen to each call: its rejection, or None where it would be queued.

        Raises `intake.Unreadable` for a response without calls to check.
        """
        found = intake.read(response, max_bytes=self._settings.max_arguments)
        verdicts = [self._validate(call, tools) for call in found.calls]
        return [verdict if isinstance(verdict, ToolResult) else None for verdict in verdicts]

    async def dispatch(
        self,
        response: Any,
        *,
        session: str | None = None,
        turn: str | None = None,
        tools: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        format: str | None = None,
    ) -> TurnResult:
        """Run every tool call of a model response; one result a call, in order (R1).

        `response` is any provider's response (an SDK object, plain data or JSON), or a list of
        bare calls `{"id", "name", "input"}`. `session` names the conversation: with it, and the
        response's id or `turn`, the same call asked again attaches to its record and is never run
        twice (R18). `tools` narrows the allow-list, `context` is handed to the tools and shown to
        nobody, `timeout` (seconds) replaces the tools' own. Never raises for what a model or a
        tool does; cancelling it cancels its calls.
        """
        try:
            found = intake.read(
                response, turn=turn, format=format, max_bytes=self._settings.max_arguments
            )
        except intake.Unreadable as error:
            return TurnResult([], format=error.format, error=feedback.no_response(str(error)))
        shared = _Turn(
            id=found.id,
            session=session,
            line=session or new_nonce(),
            context=dict(context) if context else None,
            timeout=timeout,
        )
        return await self._run_turn(found, shared, tools)

    async def _run_turn(
        self, found: Response, shared: _Turn, tools: Collection[str] | None
    ) -> TurnResult:
        results: list[ToolResult | None] = [None] * len(found.calls)
        accepted: list[tuple[ToolCall, Offer]] = []
        for call in found.calls:
            verdict = self._judge(call, tools)
            if isinstance(verdict, ToolResult):
                results[call.index] = verdict
            else:
                accepted.append((call, verdict))
        for stage in stages(accepted, lambda item: item[1].spec.effects):
            pendings = [self._start(call, offer.spec, shared) for call, offer in stage]
            latch = Latch(pendings)
            try:
                await latch.wait()
            except asyncio.CancelledError:
                await asyncio.shield(self._abandon(pendings, latch))
                raise
            for pending in pendings:
                results[pending.call.index] = self._classify(pending)
        return TurnResult([r for r in results if r is not None], format=found.format)

    def _judge(self, call: ToolCall, tools: Collection[str] | None) -> Offer | ToolResult:
        cap = self._settings.calls_per_turn
        if call.index >= cap:
            text = feedback.too_many_calls(cap)
            return rejected(call, Code.TOO_MANY_CALLS, text, self._wording)
        return self._validate(call, tools)

    def _validate(self, call: ToolCall, tools: Collection[str] | None) -> Offer | ToolResult:
        return validate(call, self._catalog.offers, self._allowed_of(tools), self._wording)

    def _allowed_of(self, tools: Collection[str] | None) -> Collection[str] | None:
        if tools is None:
            return self._allowed
        return frozenset(tools) & self._allowed if self._allowed is not None else frozenset(tools)

    def _offers(self, tools: Collection[str] | None) -> dict[str, Offer]:
        allowed = self._allowed_of(tools)
        return {
            name: offer
            for name, offer in self._catalog.offers.items()
            if allowed is None or name in allowed
        }

    def _start(self, call: ToolCall, spec: ToolSpec, shared: _Turn) -> Pending:
        """Hand an accepted call to the pump and the keeper, or join it if it is already open."""
        assert call.arguments is not None
        key = self._key(call, shared)
        known = self._open.get(key)
        if known is not None:
            return known
        timeout = shared.timeout if shared.timeout is not None else spec.timeout
        now = time.monotonic()
        message = CallMessage(
            key=key,
            id=call.id,
            tool=call.name,
            digest=spec.digest,
            arguments=call.arguments,
            index=call.index,
            session=shared.session,
            turn=shared.id,
            context=shared.context,
            timeout=timeout,
            rerunnable=spec.rerunnable,
        )
        pending = Pending(
            call=call,
            spec=spec,
            message=message,
            queue=queue_name(spec.queue, spec.run_in),
            line=shared.line,
            size=len(encoding.encode(call.arguments)),
            start_by=now + self._settings.queue_wait,
            deadline=now + timeout + self._settings.queue_wait + _ANSWER_MARGIN_SECONDS,
            keep=self._settings.results_kept,
            began=now,
        )
        self._open[key] = pending
        self._keeper.watch(pending)
        self._pump.submit(pending)
        return pending

    def _key(self, call: ToolCall, shared: _Turn) -> str:
        """Stable for the same call of the same turn of the same session; else random (R18)."""
        if shared.session is None or shared.id is None:
            return new_nonce()
        return encoding.digest(
            [
                self._settings.tenant,
                shared.session,
                shared.id,
                call.index,
                call.id,
                call.name,
                call.arguments,
            ]
        )

    def _classify(self, pending: Pending) -> ToolResult:
        assert pending.outcome is not None
        return classified(
            pending.call,
            pending.spec,
            pending.outcome,
            timeout=pending.message.timeout,
            duration=pending.ended - pending.began,
            wording=self._wording,
        )

    def _resolve(self, pending: Pending, outcome: Outcome) -> None:
        """Answer a call, once."""
        if not pending.is_open:
            return
        pending.answer(outcome)
        if outcome.worker:
            self._recovery.noticed_start(pending)
        if pending.timer is not None:
            pending.timer.cancel()
        del self._open[pending.key]
        self._pump.done(pending)

    def _started(self, pending: Pending) -> None:
        self._recovery.noticed_start(pending)
        self._pump.started(pending)

    def _released(self, pending: Pending) -> None:
        """A worker gave the call back: publish its next attempt."""
        task = asyncio.ensure_future(self._recovery.released(pending))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _settled(self, reply: bytes) -> None:
        self._collector.take(reply)

    async def _abandon(self, pendings: Sequence[Pending], latch: Latch) -> None:
        """Cancel the calls of a cancelled dispatch that nobody else asked for."""
        unwanted = [p for p in pendings if p.is_open and p.latches == [latch]]
        await self._keeper.cancel(unwanted)

    async def _wait_for_catalog(self) -> None:
        give_up_at = time.monotonic() + self._settings.catalog_wait
        while not self._catalog.offers:
            if self._catalog.refused:
                name, reason = next(iter(self._catalog.refused.items()))
                raise Misconfigured(f"no tool can be offered: {name}: {reason}")
            if time.monotonic() >= give_up_at:
                raise CatalogEmpty(
                    f"no worker has published a tool in {self._settings.catalog_wait:g} s: start "
                    "one with `toolpool worker --tools …` on the same Redis, key prefix and "
                    "signing key"
                )
            await asyncio.sleep(0.05)
            await self._follower.once()
