"""The calls on their way: from the pump through the workers to one outcome each."""

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from contract import encoding
from contract.call import ToolCall
from contract.envelope import BackgroundCall, CallMessage, Envelope, Progress
from contract.names import queue_name
from contract.outcome import Code, Executed, Outcome, failure, is_retryable, may_still_run
from contract.settings import Settings
from contract.spec import Effects, ToolSpec
from contract.steps import new_nonce
from dispatcher.breaker import Breaker
from dispatcher.catalog import Catalog
from dispatcher.collect import Collector
from dispatcher.events import Events
from dispatcher.follow import Follower
from dispatcher.keeper import Keeper
from dispatcher.pending import Pending, Stage
from dispatcher.pump import Pump
from dispatcher.recovery import Recovery
from dispatcher.switches import Switches
from dispatcher.transport import Transport

LEASES_TO_WAIT = 2
"""How long the end of a lost write is waited for: until then its worker has stopped it."""
_CANCEL_AGAIN_SECONDS = 0.1
_ANSWER_MARGIN_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_NEVER_RETRIED = frozenset({Code.OVERLOADED, Code.CIRCUIT_OPEN, Code.QUEUE_UNREACHABLE})


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What the calls of one dispatch share. `line` is what the pump is fair to."""

    id: str | None
    session: str | None
    line: str
    context: dict[str, Any] | None = None
    timeout: float | None = None
    wait: float | None = None


class Traffic:
    """Every call that was accepted and has no outcome yet, and all that moves it along."""

    def __init__(
        self,
        transport: Transport,
        *,
        settings: Settings,
        envelope: Envelope,
        catalog: Catalog,
        follows_catalog: bool,
    ) -> None:
        self.transport = transport
        self.settings = settings
        self.envelope = envelope
        self.catalog = catalog
        self.open: dict[str, Pending] = {}
        self.events = Events()
        self.switches = Switches()
        self.breaker = Breaker(settings)
        self.pump = Pump(
            transport=transport,
            envelope=envelope,
            settings=settings,
            resolve=self.resolve,
            settled=self._settled,
        )
        self._keeper = Keeper(
            transport=transport,
            envelope=envelope,
            resolve=self.resolve,
            settled=self._settled,
            started=self._started,
        )
        self._recovery = Recovery(
            transport=transport,
            envelope=envelope,
            settings=settings,
            pump=self.pump,
            settled=self._settled,
        )
        self.follower = Follower(
            transport=transport,
            envelope=envelope,
            catalog=catalog,
            pump=self.pump,
            recovery=self._recovery,
            switches=self.switches,
            calls=self.open.values,
            follows_catalog=follows_catalog,
        )
        self._collector = Collector(
            transport=transport,
            envelope=envelope,
            find=self.open.get,
            resolve=self.resolve,
            started=self._started,
            released=self._released,
            progressed=self._progressed,
            ended=self._ended,
        )
        self._unended: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, look around once, and keep reading and following. Raises `Misconfigured`."""
        await self.transport.open()
        await self.follower.once()
        self._in_background(self._collector.run())
        self._in_background(self.follower.run())

    async def close(self) -> None:
        """Cancel what somebody still waits for and let go of every connection. Idempotent.

        Background calls go on: their handles are adopted by whoever asks for them next.
        """
        await self.cancel([p for p in self.open.values() if not p.in_background])
        tasks = running = set(self._tasks)
        while running:
            for task in running:
                task.cancel()
            # Again: Python 3.11's asyncio.wait_for, which redis-py writes with, may swallow one.
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keeper.close()
        await self.transport.close()

    def submit(self, call: ToolCall, spec: ToolSpec, turn: TurnContext, since: float) -> Pending:
        """Send an accepted call on its way, or join it if it is already open (R18).

        Its times run from `since`, when it left its barrier.
        """
        assert call.arguments is not None
        key = self.key(call, turn)
        known = self.open.get(key)
        if known is not None:
            return known
        message = CallMessage(
            key=key,
            id=call.id,
            tool=call.name,
            digest=spec.digest,
            arguments=call.arguments,
            index=call.index,
            session=turn.session,
            turn=turn.id,
            context=turn.context,
            timeout=turn.timeout if turn.timeout is not None else spec.timeout,
            rerunnable=spec.rerunnable,
            keep=self.settings.background_kept if spec.background else None,
        )
        pending = self.pending(call, spec, message, line=turn.line, since=since)
        self.pump.submit(pending)
        return pending

    def pending(
        self, call: ToolCall, spec: ToolSpec, message: CallMessage, *, line: str, since: float
    ) -> Pending:
        """An open call whose times are kept from now on."""
        queue_wait = self.settings.queue_wait
        kept = self.settings.background_kept if spec.background else self.settings.results_kept
        pending = Pending(
            call=call,
            spec=spec,
            message=message,
            queue=queue_name(spec.queue, spec.run_in),
            line=line,
            size=len(encoding.encode(message.arguments)),
            start_by=since + queue_wait,
            deadline=since + message.timeout + queue_wait + _ANSWER_MARGIN_SECONDS,
            keep=kept,
            began=since,
        )
        self.open[message.key] = pending
        self._keeper.watch(pending)
        return pending

    def run_here(
        self, call: ToolCall, spec: ToolSpec, work: Coroutine[Any, Any, Outcome]
    ) -> Pending:
        """A call that this dispatcher answers itself, by `work`, which never raises."""
        pending = self._here(call, spec)

        async def run() -> None:
            self.resolve(pending, await work)

        self._in_background(run())
        return pending

    def refuse(self, call: ToolCall, spec: ToolSpec, outcome: Outcome) -> Pending:
        """A call that is answered at once."""
        pending = self._here(call, spec)
        self.resolve(pending, outcome)
        return pending

    def _here(self, call: ToolCall, spec: ToolSpec) -> Pending:
        now = time.monotonic()
        message = CallMessage(
            key=new_nonce(), id=call.id, tool=call.name, digest=spec.digest, arguments={}
        )
        pending = Pending(
            call=call,
            spec=spec,
            message=message,
            queue="",
            line="",
            size=0,
            start_by=now,
            deadline=now,
            keep=0.0,
            began=now,
        )
        self.open[pending.key] = pending
        return pending

    async def adopt(self, found: BackgroundCall, spec: ToolSpec) -> Pending:
        """Go on with a call that another dispatcher published; its outcome, if it has one."""
        now = time.monotonic()
        message = found.message
        deadline = now + max(0.0, found.deadline - time.time())
        pending = Pending(
            call=ToolCall(
                index=message.index, id=message.id, name=message.tool, arguments=message.arguments
            ),
            spec=spec,
            message=message,
            queue=found.queue,
            line=message.session or message.key,
            size=0,
            start_by=deadline,
            deadline=deadline,
            keep=message.keep or self.settings.results_kept,
            began=now - (time.time() - found.started_at),
            published_at=now,
        )
        self.open[pending.key] = pending
        self.pump.adopt(pending)
        state = (await self.transport.states([pending.key]))[0]
        if state is None and not message.rerunnable:
            self.resolve(pending, failure(Code.WORKER_LOST, "", Executed.UNKNOWN))
            return pending
        self._keeper.watch(pending)
        await self._recovery.released(pending)
        return pending

    def key(self, call: ToolCall, turn: TurnContext) -> str:
        """Stable for the same call of the same turn of the same session; else random (R18)."""
        if turn.session is None or turn.id is None:
            return new_nonce()
        return encoding.digest(
            [
                self.settings.tenant,
                turn.session,
                turn.id,
                call.index,
                call.id,
                call.name,
                call.arguments,
            ]
        )

    async def cancel(self, calls: Sequence[Pending]) -> None:
        """End calls; each is answered `aborted.cancelled`, saying whether it had started (R34)."""
        if calls:
            await self._keeper.cancel(calls)

    def resolve(self, pending: Pending, outcome: Outcome) -> None:
        """Answer a call; only the first answer counts."""
        if not pending.is_open:
            return
        if outcome.executed is Executed.NO and pending.ran_before is not None:
            outcome = msgspec.structs.replace(outcome, executed=pending.ran_before)
        if pending.queue:
            self.breaker.note(pending.call.name, outcome)
            if self._try_again(pending, outcome):
                return
        pending.answer(outcome)
        if pending.spec.effects is Effects.WRITE and may_still_run(outcome):
            self._watch_end(pending)
        if self.events.are_followed:
            self.events.ended(pending, outcome)
        if outcome.worker:
            self._recovery.noticed_start(pending)
        self._keeper.forget(pending)
        del self.open[pending.key]
        self.pump.done(pending)

    async def has_ended(self, pending: Pending, seconds: float) -> bool:
        """Whether an answered write has ended, as far as anybody says so within `seconds`."""
        ended = self._unended.get(pending.key)
        if ended is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        return True

    def _watch_end(self, pending: Pending) -> None:
        """Wait for word of an answered write, as long as any barrier would."""
        key = pending.key
        self._unended[key] = asyncio.Event()
        kept = 2 * LEASES_TO_WAIT * self.settings.lease_gone
        asyncio.get_running_loop().call_later(kept, self._unended.pop, key, None)

    def _ended(self, keys: Sequence[str]) -> None:
        for key in keys:
            if (ended := self._unended.get(key)) is not None:
                ended.set()

    def _try_again(self, pending: Pending, outcome: Outcome) -> bool:
        """Retry by the pool: a tool that asked for it, an outcome and a time that allow it.

        The retry has a record of its own, named after the first: whoever asks again follows the
        same names to the same end.
        """
        spec = pending.spec
        if outcome.ok or pending.retries >= spec.retries or not spec.rerunnable:
            return False
        if outcome.code is None or outcome.code in _NEVER_RETRIED:
            return False
        if not is_retryable(outcome.code, outcome.executed, rerunnable=True):
            return False
        pause = min(self.settings.retry_pause * 2**pending.retries, _LONGEST_PAUSE_SECONDS)
        pause *= random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        now = time.monotonic()
        if now + pause >= pending.deadline - _ANSWER_MARGIN_SECONDS:
            return False
        self.pump.done(pending)
        self._keeper.forget(pending)
        del self.open[pending.key]
        pending.start_again(start_by=min(now + pause + self.settings.queue_wait, pending.deadline))
        if outcome.executed is not Executed.NO:
            pending.ran_before = outcome.executed
        self.open[pending.key] = pending
        self._keeper.watch(pending)
        asyncio.get_running_loop().call_later(pause, self._submit_again, pending)
        return True

    def _submit_again(self, pending: Pending) -> None:
        if pending.is_open:
            self.pump.submit(pending)

    def _started(self, pending: Pending) -> None:
        self._recovery.noticed_start(pending)
        if self.events.are_followed and pending.stage is not Stage.RUNNING:
            self.events.started(pending)
        self.pump.started(pending)

    def _progressed(self, pending: Pending, progress: Progress) -> None:
        self.events.progressed(pending, progress)

    def _released(self, pending: Pending) -> None:
        self._in_background(self._recovery.released(pending))

    def _settled(self, reply: bytes) -> None:
        self._collector.take(reply)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
