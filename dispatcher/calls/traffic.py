"""The calls on their way: from the pump through the workers to one outcome each."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import BackgroundCall, CallMessage, Envelope, Progress
from toolpool.contract.ledger.steps import new_nonce
from toolpool.contract.names import Names
from toolpool.contract.outcome import Code, Executed, Outcome, failure, may_still_run
from toolpool.contract.settings import Settings
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.switches import Switches
from toolpool.dispatcher.calls import retries
from toolpool.dispatcher.calls.collect import Collector
from toolpool.dispatcher.calls.endings import Endings
from toolpool.dispatcher.calls.fleet import Fleet
from toolpool.dispatcher.calls.follow import Follower
from toolpool.dispatcher.calls.keeper import Keeper
from toolpool.dispatcher.calls.pending import Pending, Stage, retry_key, root_of
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.recovery import Recovery
from toolpool.dispatcher.calls.refusals import Refusals
from toolpool.dispatcher.observe import Ended, Observers, Progressed
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.turn_context import TurnContext
from toolpool.dispatcher.words.classify import not_queued

log = logging.getLogger("toolpool.traffic")

_CANCEL_AGAIN_SECONDS = 0.1
_ANSWER_MARGIN_SECONDS = 1.0


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
        observers: Observers,
    ) -> None:
        self.transport = transport
        self.observers = observers
        self.settings = settings
        self.envelope = envelope
        self.catalog = catalog
        self.open: dict[str, Pending] = {}
        self._fleet = Fleet(transport, envelope, Names(settings.key_prefix))
        self.switches = Switches(observers)
        self.breaker = Breaker(settings, observers)
        self.endings = Endings(lease_gone=settings.lease_gone)
        self.pump = Pump(
            transport=transport,
            envelope=envelope,
            settings=settings,
            resolve=self.resolve,
            settled=self._known,
            refuse=self._refuse,
            denial=self._denial,
            unwanted=self._unwanted,
            observers=observers,
        )
        self._refusals = Refusals(
            transport=transport,
            envelope=envelope,
            settings=settings,
            resolve=self.resolve,
            known=self._known,
            join=self._join,
            in_background=self.in_background,
        )
        self._keeper = Keeper(
            transport=transport,
            envelope=envelope,
            resolve=self.resolve,
            settled=self._settled,
            started=self._started,
            refuse=self._refuse,
        )
        self._recovery = Recovery(
            transport=transport,
            envelope=envelope,
            settings=settings,
            pump=self.pump,
            fleet=self._fleet,
            settled=self._settled,
            observers=observers,
        )
        self.follower = Follower(
            transport=transport,
            envelope=envelope,
            catalog=catalog,
            pump=self.pump,
            recovery=self._recovery,
            fleet=self._fleet,
            switches=self.switches,
            calls=self.open.values,
            follows_catalog=follows_catalog,
            lease_gone=settings.lease_gone,
            observers=observers,
        )
        self._collector = Collector(
            transport=transport,
            envelope=envelope,
            find=self._find,
            resolve=self.resolve,
            started=self._started,
            released=self._released,
            passed=self._passed,
            progressed=self._progressed,
            ended=self.endings.heard,
            observers=observers,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Connect, look around once, and keep reading and following. Raises `Misconfigured`."""
        await self.transport.open()
        await self.follower.once()
        self.in_background(self._collector.run())
        self.in_background(self.follower.run())

    async def close(self) -> None:
        """Cancel what somebody still waits for and let go of every connection. Idempotent.

        Background calls go on: their handles are adopted by whoever asks for them next.
        """
        self._is_closed = True
        await self.cancel([p for p in self.open.values() if not p.in_background])
        tasks = running = set(self._tasks)
        while running:
            for task in running:
                task.cancel()
            # Again: Python 3.11's asyncio.wait_for, which redis-py writes with, may swallow one.
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)
        for pending in self.open.values():
            self._keeper.forget(pending)
            pending.answer(failure(Code.CANCELLED, "", Executed.UNKNOWN))  # to whoever waits here
        self.open.clear()
        self._keeper.close()
        self.pump.close()
        await self.transport.close()

    def submit(self, call: ToolCall, spec: ToolSpec, turn: TurnContext, since: float) -> Pending:
        """Send an accepted call on its way, or join it if it is already open (R18).

        Its times run from `since`, when it left its barrier.
        """
        key = self.key(call, turn)
        known = self.open.get(key)
        if known is not None:
            return known
        pending = self._pending(key, call, spec, turn, since)
        self.observers.call("accepted", pending)
        self.pump.submit(pending)
        return pending

    def refuse(
        self, call: ToolCall, spec: ToolSpec, turn: TurnContext, since: float, outcome: Outcome
    ) -> Pending:
        """A call that is not sent; one that was asked before has its own result all the same."""
        key = self.key(call, turn)
        known = self.open.get(key)
        if known is not None:
            return known
        pending = self._pending(key, call, spec, turn, since)
        self._refuse(pending, outcome)
        return pending

    def _pending(
        self, key: str, call: ToolCall, spec: ToolSpec, turn: TurnContext, since: float
    ) -> Pending:
        """An open call whose times are kept from now on."""
        assert call.arguments is not None
        settings = self.settings
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
        )
        start_by = since + settings.queue_wait
        pending = Pending(
            call=call,
            spec=spec,
            message=message,
            queue=self._fleet.queue_for(spec),
            line=turn.line,
            size=len(encoding.encode(message.arguments)) + turn.context_bytes,
            start_by=start_by,
            deadline=start_by + message.timeout + _ANSWER_MARGIN_SECONDS,
            keep=settings.results_kept,
            began=since,
            again=turn.again,
            accepted_in=self.transport.epoch or "",
        )
        self.open[key] = pending
        self._keeper.watch(pending)
        return pending

    def run_here(
        self,
        call: ToolCall,
        spec: ToolSpec,
        session: str | None,
        work: Coroutine[Any, Any, Outcome],
    ) -> Pending:
        """A call that this dispatcher answers itself, by `work`, which never raises."""
        pending = self._here(call, spec, session)

        async def run() -> None:
            self.resolve(pending, await work)

        pending.work = self.in_background(run())
        return pending

    def _here(self, call: ToolCall, spec: ToolSpec, session: str | None) -> Pending:
        now = time.monotonic()
        message = CallMessage(
            key=new_nonce(),
            id=call.id,
            tool=call.name,
            digest=spec.digest,
            arguments={},
            session=session,
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
        self.open[pending.root] = pending
        return pending

    async def adopt(self, found: BackgroundCall, spec: ToolSpec) -> Pending:
        """Go on with a call that another dispatcher published; its outcome, if it has one.

        Raises what the transport does where the ledger cannot be asked.
        """
        now, server_now = time.monotonic(), self.transport.server_time()
        left = max(0.0, found.deadline - server_now)
        root = root_of(found.message.key)
        keys = [retry_key(root, number) for number in range(spec.retries + 1)]
        states = await self.transport.states(keys)
        last = max((n for n, state in enumerate(states) if state is not None), default=0)
        known = self.open.get(root)
        if known is not None:  # somebody else asked meanwhile
            return known
        message = msgspec.structs.replace(found.message, key=keys[last])
        pending = Pending(
            call=ToolCall(
                index=message.index, id=message.id, name=message.tool, arguments=message.arguments
            ),
            spec=spec,
            message=message,
            queue=self._fleet.home(found.queue, spec),
            line=message.session or message.key,
            size=0,
            start_by=now + left,
            deadline=now + left,
            keep=self.settings.background_kept,
            in_background=True,
            is_attached=True,
            began=now - max(0.0, server_now - found.started_at),
            published_at=now,
            retries=last,
            is_news=states[last] not in (None, "settled"),
        )
        may_start_for = found.started_at + self.settings.queue_wait - server_now
        may_still_wait = may_start_for > 0
        if states[last] is None and may_still_wait:  # whoever gave the handle may not have sent it
            pending.start_by = now + may_start_for
        self.open[root] = pending
        self.pump.adopt(pending)
        self._keeper.watch(pending, alone=True)
        if states[last] is not None or (message.rerunnable and left):
            await self._recovery.released(pending)
        elif may_still_wait:
            self.pump.stranded(pending)
        else:
            self.resolve(pending, failure(Code.WORKER_LOST, "", Executed.UNKNOWN))
        return pending

    def _refuse(self, pending: Pending, outcome: Outcome) -> None:
        """Answer a call that is not sent, unless the ledger has it from another asking (R18)."""
        if self._is_closed and pending.may_be_known:
            self.resolve(pending, msgspec.structs.replace(outcome, executed=Executed.UNKNOWN))
            return
        self._refusals.refuse(pending, outcome)

    def _join(self, pending: Pending) -> None:
        """Go on with a call that another dispatcher has sent."""
        self.pump.adopt(pending)
        self._released(pending)

    def refusal(self, call: ToolCall) -> Outcome | None:
        """Why a call may not be sent now: its tool is denied, or left alone for a while."""
        if self._is_closed:
            return not_queued(Code.CANCELLED)
        denied = self._denied(call)
        if denied is not None:
            return denied
        retry_after = self.breaker.retry_after(call.name)
        if retry_after is None:
            return None
        return not_queued(Code.CIRCUIT_OPEN, retry_after=round(retry_after, 1))

    def _denied(self, call: ToolCall) -> Outcome | None:
        reason = self.switches.denial(call)
        return not_queued(Code.DENIED, reason) if reason is not None else None

    def _denial(self, pending: Pending) -> Outcome | None:
        return self._denied(pending.call)

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

    def handed_over(self, pending: Pending, kept: float) -> None:
        """Nobody waits for the call any more; its outcome is kept for `kept` seconds."""
        self.pump.handed_over(pending)
        pending.in_background = True
        pending.keep = kept
        pending.message = msgspec.structs.replace(
            pending.message, keep=kept
        )  # if it is yet to be sent

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
            if pending.is_news:
                self.breaker.note(pending.call.name, outcome)
            else:
                self.breaker.release(pending.call.name)
            if self._try_again(pending, outcome):
                return
        pending.answer(outcome)
        if pending.work is not None:
            pending.work.cancel()
        if pending.spec.effects is Effects.WRITE and may_still_run(outcome):
            self.endings.watch(pending)
        if pending.is_news:
            if outcome.worker:
                self._tell_start(pending, outcome.worker)  # where it was too short to be announced
                self._recovery.noticed_start(pending)
            self._tell_end(pending, outcome)
        self._keeper.forget(pending)
        del self.open[pending.root]
        self.pump.done(pending)

    def _try_again(self, pending: Pending, outcome: Outcome) -> bool:
        """Retry by the pool.

        The retry has a record of its own, named after the first: whoever asks again follows the
        same names to the same end.
        """
        now = time.monotonic()
        pause = retries.pause_before(
            pending,
            outcome,
            first_pause=self.settings.retry_pause,
            time_left=pending.deadline - _ANSWER_MARGIN_SECONDS - now,
        )
        if pause is None:
            return False
        self.observers.call("retried", pending, pause)
        self.pump.done(pending)
        self._keeper.forget(pending)
        pending.start_again(start_by=min(now + pause + self.settings.queue_wait, pending.deadline))
        if outcome.executed is not Executed.NO:
            pending.ran_before = outcome.executed
        self._keeper.watch(pending, alone=True)
        asyncio.get_running_loop().call_later(pause, self._submit_again, pending)
        return True

    def _submit_again(self, pending: Pending) -> None:
        if not pending.is_open:
            return
        pending.queue = self._fleet.home(pending.queue, pending.spec)
        refusal = self.refusal(pending.call)
        if refusal is not None:
            self._refuse(pending, refusal)
        else:
            self.pump.submit(pending)

    def _started(self, pending: Pending) -> None:
        self._recovery.noticed_start(pending)
        self._tell_start(pending, pending.worker)
        self.pump.started(pending)

    def _tell_start(self, pending: Pending, worker: str) -> None:
        if pending.stage is not Stage.RUNNING:
            self.observers.call("started", pending, worker)

    def _tell_end(self, pending: Pending, outcome: Outcome) -> None:
        if self.observers.hear("ended"):
            ended = Ended(
                code=outcome.code,
                executed=outcome.executed,
                worker=outcome.worker or "",
                seconds=pending.ended - pending.began,
            )
            self.observers.call("ended", pending, ended)

    def _progressed(self, pending: Pending, progress: Progress) -> None:
        if self.observers.hear("progressed"):
            done, total, message = progress.done, progress.total, progress.message
            self.observers.call(
                "progressed", pending, Progressed(done=done, total=total, message=message)
            )

    def _released(self, pending: Pending) -> None:
        self.observers.call("released", pending)
        self.in_background(self._recovery.released(pending))

    def _passed(self, pending: Pending) -> None:
        self.in_background(self._recovery.passed(pending))

    def _settled(self, reply: bytes) -> None:
        self._collector.take(reply)

    def _known(self, pending: Pending, reply: bytes) -> None:
        """The ledger had the outcome before this dispatcher asked."""
        pending.is_news = False
        self._collector.take(reply)

    def _unwanted(self, calls: Sequence[Pending]) -> None:
        self._keeper.close_unwanted(calls)

    def _find(self, key: str) -> Pending | None:
        """The open call of this record; None for one of an earlier retry."""
        pending = self.open.get(key) or self.open.get(root_of(key))
        return pending if pending is not None and pending.key == key else None

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let work go on that ends with this dispatcher at the latest."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
