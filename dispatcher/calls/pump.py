"""Fair micro-batches: calls leave round robin over the sessions, many in one message.

While one publish is under way, what arrives for the same queue gathers, and leaves in the next. An
idle pump sends at once, so batching never adds latency.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolpool.contract.envelope import Batch, Envelope
from toolpool.contract.ledger.client import ATTACHED, MOVED, NEW, RAN, running_on
from toolpool.contract.ledger.steps import ServerAway, new_nonce
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.calls.pace import Pace
from toolpool.dispatcher.calls.pending import Pending, Stage
from toolpool.dispatcher.observe import Observers
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.words.classify import forgotten, not_queued

log = logging.getLogger("toolpool.pump")

_BATCHES_PER_WORKER = 2
_RETRY_AFTER_SECONDS = 1.0
_TOO_LATE_SECONDS = 0.1
"""Before the end of its queue wait a call is not sent any more: no worker could start it."""
_FULL_SERVER = 0.9
_FIRST_BATCH = {RunIn.LOOP: 64, RunIn.THREAD: 8, RunIn.PROCESS: 1}

Resolve = Callable[[Pending, Outcome], None]


@dataclass(slots=True, eq=False)
class _Session:
    """One session's calls in all queues together."""

    waiting: int = 0
    in_flight: int = 0


@dataclass(slots=True, eq=False)
class _Line:
    """One session's calls for one queue."""

    session: _Session
    waiting: OrderedDict[Pending, None] = field(default_factory=OrderedDict)
    in_flight: int = 0
    in_ring: bool = False


class QueuePump:
    """The calls of one queue."""

    def __init__(self, pump: "Pump", queue: str, run_in: RunIn, cap: int | None = None) -> None:
        self.cap = cap
        self._in_flight = 0
        self._pump = pump
        self._queue = queue
        self._pace = Pace(largest=pump.settings.batch_size(run_in), first=_FIRST_BATCH[run_in])
        self._lines: dict[str, _Line] = {}
        self._ring: deque[str] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waiting = 0
        self._next_size = 0
        self._unstarted = 0
        self._most_in_flight = pump.settings.in_flight_per_session
        self._sent_to_nobody = False
        """Whether a message lies on the queue since before any worker was there to take it."""

    def submit(self, pending: Pending) -> None:
        """Queue a call behind its session's others."""
        line = self._line(pending.line)
        pending.stage = Stage.WAITING
        line.waiting[pending] = None
        self._count_waiting(line, 1)
        self._join_ring(pending.line, line)
        self.wake()

    def wake(self) -> None:
        """Send what may go now."""
        if self._sending is None and not self._is_closed and self._may_send():
            self._sending = asyncio.ensure_future(self._send())

    def started(self, pending: Pending) -> None:
        """A worker has the call: there is room for another."""
        self._leave_queue(pending, Stage.RUNNING)

    def stranded(self, pending: Pending) -> None:
        """Nobody will start the call any more: it must not keep others from being sent."""
        self._leave_queue(pending, Stage.STRANDED)

    def handed_over(self, pending: Pending) -> None:
        """Nobody waits for the call any more: its session may have another in its place."""
        line = self._lines.get(pending.line)
        if line is not None and not pending.in_background and _is_in_flight(pending):
            line.session.in_flight -= 1
            self._pump.has_room(pending.line)

    def _leave_queue(self, pending: Pending, stage: Stage) -> None:
        if not pending.is_open:  # `done` has let go of it
            return
        if pending.stage is Stage.QUEUED:
            self._unstarted -= 1
            pending.stage = stage
            self.wake()
        elif pending.stage is Stage.STRANDED:
            pending.stage = stage

    def adopt(self, pending: Pending) -> None:
        """Take over a call that another dispatcher published; one that is taken stays as it is."""
        if pending.stage not in (Stage.NEW, Stage.WAITING):
            return
        if pending.stage is Stage.WAITING:
            self._stop_waiting(pending)
        line = self._line(pending.line)
        self._count_in_flight(line, 1, of_session=not pending.in_background)
        pending.stage = Stage.QUEUED
        self._unstarted += 1

    def leave(self, pending: Pending) -> None:
        """A published call goes on in another queue."""
        line = self._lines[pending.line]
        self._unstarted -= pending.stage not in (Stage.RUNNING, Stage.STRANDED)
        self._count_in_flight(line, -1, of_session=not pending.in_background)
        self._forget_if_empty(pending.line, line)
        self.wake()

    def enter(self, pending: Pending, stage: Stage) -> None:
        """A published call comes from another queue."""
        line = self._line(pending.line)
        self._count_in_flight(line, 1, of_session=not pending.in_background)
        self._unstarted += stage not in (Stage.RUNNING, Stage.STRANDED)

    def published_again(self, pending: Pending) -> None:
        """A call that a worker had waits to be started once more."""
        if pending.is_open and pending.stage in (Stage.RUNNING, Stage.STRANDED):
            pending.stage = Stage.QUEUED
            self._unstarted += 1

    def done(self, pending: Pending) -> None:
        """The call was answered, wherever it was."""
        if pending.stage is Stage.NEW:
            return
        if pending.stage is Stage.WAITING:
            self._stop_waiting(pending)
            return
        line = self._lines[pending.line]
        if pending.stage not in (Stage.RUNNING, Stage.STRANDED):
            self._unstarted -= 1
        if pending.outcome is not None:
            self._pace.note(pending.outcome)
        self._count_in_flight(line, -1, of_session=not pending.in_background)
        self._forget_if_empty(pending.line, line)
        if line.session.waiting:
            self._pump.has_room(pending.line)
        self.wake()

    def _line(self, name: str) -> _Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self._pump.sessions.setdefault(name, _Session()))
        return line

    def _forget_if_empty(self, name: str, line: _Line) -> None:
        if line.waiting or line.in_flight or line.in_ring:
            return
        self._lines.pop(name, None)
        if not line.session.waiting and not line.session.in_flight:
            self._pump.sessions.pop(name, None)

    def has_room(self, name: str) -> None:
        """A session may have one more in flight, in whichever queue it has calls waiting."""
        line = self._lines.get(name)
        if line is not None and line.waiting and not line.in_ring:
            self._join_ring(name, line)
            self.wake()

    def _stop_waiting(self, pending: Pending) -> None:
        line = self._line(pending.line)
        line.waiting.pop(pending, None)
        self._count_waiting(line, -1)
        self._forget_if_empty(pending.line, line)

    def _join_ring(self, name: str, line: _Line) -> None:
        if not line.in_ring and line.session.in_flight < self._most_in_flight:
            line.in_ring = True
            self._ring.append(name)

    def _count_waiting(self, line: _Line, change: int) -> None:
        self._waiting += change
        self._pump.waiting += change
        line.session.waiting += change

    def _count_in_flight(self, line: _Line, change: int, *, of_session: bool) -> None:
        line.in_flight += change
        self._in_flight += change
        line.session.in_flight += change if of_session else 0

    def _may_send(self) -> bool:
        """Whether to send now, or to gather a little more.

        While workers have calls ahead of them that they cannot start yet, sending a few more
        starts nothing sooner and costs a message, so those wait for company: for a full batch, or
        for as many as are ahead. Where no worker is there, one message is sent, for autoscalers to
        see; more would lie there long after their calls have ended.
        """
        if not self._ring:
            return False
        slots = self._pump.slots(self._queue)
        if slots:
            self._sent_to_nobody = False
        elif self._sent_to_nobody and self._pump.knows_workers:
            return False
        batch = self._pace.batch_size(max(slots, default=1))
        if self._unstarted < sum(slots):  # some are idle: each is to have its share
            batch = min(batch, max(1, -(-(self._waiting + self._unstarted) // len(slots))))
        ahead = _BATCHES_PER_WORKER * batch
        room = (sum(slots) + ahead * max(len(slots), 1)) - self._unstarted
        if self.cap is not None:
            room = min(room, self.cap - self._in_flight)
        self._next_size = min(room, batch)
        if room <= 0 or (self.cap is None and room < min(self._waiting, batch)):
            return False
        return self._waiting >= min(batch, self._unstarted - sum(slots))

    def _take(self) -> list[Pending]:
        """The next batch, one call a session in turn."""
        taken: list[Pending] = []
        size = 0
        settings = self._pump.settings
        too_late = time.monotonic() + min(_TOO_LATE_SECONDS, settings.queue_wait / 4)
        while self._ring and len(taken) < self._next_size and size < settings.batch_bytes:
            name = self._ring.popleft()
            line = self._lines[name]
            line.in_ring = False
            if line.session.in_flight >= self._most_in_flight:
                continue  # its calls of another queue took its place
            pending = self._first(line, too_late)
            if pending is None:
                self._forget_if_empty(name, line)
                continue
            if taken and size + pending.size > settings.batch_bytes:
                line.in_ring = True
                self._ring.appendleft(name)
                break
            del line.waiting[pending]
            self._count_in_flight(line, 1, of_session=not pending.in_background)
            self._count_waiting(line, -1)
            pending.stage = Stage.PUBLISHING
            self._unstarted += 1
            size += pending.size
            taken.append(pending)
            if line.waiting:
                self._join_ring(name, line)
        return taken

    def _first(self, line: _Line, too_late: float) -> Pending | None:
        """The first of a session's calls that may go; what may not is out of the line after this.

        A call that no worker could start in time expires where it is; one that is being cancelled
        is on its way out.
        """
        while line.waiting:
            pending = next(iter(line.waiting))
            denial = self._pump.denial(pending)
            if denial is None and pending.start_by > too_late and not pending.is_unwanted:
                return pending
            del line.waiting[pending]
            if denial is not None and not pending.is_unwanted:
                self._pump.refuse(pending, denial)
        return None

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            while self._may_send() and (taken := self._take()):
                await self._publish(taken)
        finally:
            self._sending = None
            self.wake()

    async def _publish(
        self, taken: list[Pending], *, sent: bool = False, epoch: str | None = None
    ) -> None:
        """Publish until the server confirms it; calls whose queue wait ends first are answered.

        `sent`: an earlier try may have been taken, in this epoch.
        """
        epoch = epoch if sent else self._pump.transport.epoch  # before anything was sent
        nonce = new_nonce()  # one for every try, so that what is noted is still to be published
        while taken := [pending for pending in taken if pending.is_open]:
            try:
                await self._publish_once(taken, nonce, epoch if sent else None)
                return
            except ServerAway as away:
                sent = sent or away.sent
                now = time.monotonic()
                for pending in [pending for pending in taken if pending.start_by <= now]:
                    may_have_run = sent or pending.may_be_known
                    executed = Executed.UNKNOWN if may_have_run else Executed.NO
                    self._pump.resolve(pending, failure(Code.QUEUE_UNREACHABLE, "", executed))
            except Exception as error:
                log.exception("publish_failed queue=%s calls=%d", self._queue, len(taken))
                if len(taken) > 1:  # one may be at fault for all
                    for pending in taken:
                        await self._publish([pending], sent=sent, epoch=epoch)
                    return
                reason = f"publishing failed ({type(error).__name__})"
                self._pump.resolve(taken[0], failure(Code.INTERNAL, reason, Executed.UNKNOWN))
                return  # it may be open again, as a retry that is submitted in a while

    async def _publish_once(self, taken: list[Pending], nonce: str, epoch: str | None) -> None:
        """`epoch` is the server's before an earlier try that it may have taken."""
        pump, now, server_now = self._pump, time.monotonic(), self._pump.transport.server_time()
        batch = Batch(
            id=new_nonce(),
            reply=pump.transport.reply,
            calls=tuple(pending.message for pending in taken),
            tenant=pump.settings.tenant,
            sent_at=server_now,
            ends_at=server_now + max(pending.start_by for pending in taken) - now,
        )
        current, answers = await pump.transport.publish(
            [pending.opening(now, server_now) for pending in taken],
            nonce=nonce,
            queue=self._queue,
            message=pump.envelope.encode_batch(batch),
            give_up_at=min(pending.start_by for pending in taken),
            tried_in=epoch,
        )
        self._sent_to_nobody = not pump.slots(self._queue)
        unwanted: list[Pending] = []
        for pending, message, answer in zip(taken, batch.calls, answers, strict=True):
            if not pending.is_open:
                unwanted += [pending] if answer == NEW else []
                continue
            if (pending.key, pending.message.attempt) != (message.key, message.attempt):
                continue  # it is another try by now
            if pending.stage is Stage.PUBLISHING:
                pending.stage = Stage.QUEUED
                pump.observers.call("queued", pending)
            pending.epoch, pending.published_at = current, now
            if (worker := running_on(answer)) is not None:
                pending.worker = worker
                self.started(pending)
            elif answer == MOVED:
                self.stranded(pending)
            elif answer == RAN:
                pending.is_news = False
                pump.resolve(pending, forgotten())
            elif answer not in (NEW, ATTACHED):
                pump.settled(pending, answer)
            pending.is_attached = worker is not None or answer == ATTACHED
        if unwanted:
            pump.unwanted(unwanted)


def _is_in_flight(pending: Pending) -> bool:
    return pending.is_open and pending.stage not in (Stage.NEW, Stage.WAITING)


class Pump:
    """The queues of one dispatcher.

    `settled` takes a signed outcome that the ledger had before; `refuse` the outcome of a call that
    is not sent; `denial` answers such an outcome for one that may not be; `unwanted` takes calls
    that were answered while their message was on its way.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        envelope: Envelope,
        settings: Settings,
        resolve: Resolve,
        settled: Callable[[Pending, bytes], None],
        refuse: Resolve,
        denial: Callable[[Pending], Outcome | None],
        unwanted: Callable[[Sequence[Pending]], None],
        observers: Observers | None = None,
    ) -> None:
        self.transport = transport
        self.envelope = envelope
        self.settings = settings
        self.refuse = refuse
        self.denial = denial
        self.unwanted = unwanted
        self.observers = observers or Observers()
        self.resolve = resolve
        self.settled = settled
        self.waiting = 0
        self.sessions: dict[str, _Session] = {}
        self._queues: dict[str, QueuePump] = {}
        self._slots: dict[str, list[int]] = {}
        self._server_is_full = False
        self.knows_workers = False
        """Whether the last look at the server said which workers live."""

    def submit(self, pending: Pending) -> None:
        """Take a call; `exception.overloaded` at once where there is no room for it."""
        settings, session = self.settings, self.sessions.get(pending.line)
        if (
            self._server_is_full
            or self.waiting >= settings.waiting_per_dispatcher
            or (session is not None and session.waiting >= settings.waiting_per_session)
        ):
            self.refuse(pending, not_queued(Code.OVERLOADED, retry_after=_RETRY_AFTER_SECONDS))
            return
        self._queue(pending).submit(pending)

    def _queue(self, pending: Pending) -> QueuePump:
        """A tool with a cap of its own has a line of its own, so that it holds up no other."""
        spec = pending.spec
        name = pending.queue if spec.concurrency is None else f"{pending.queue}#{spec.name}"
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = QueuePump(
                self, pending.queue, spec.run_in, spec.concurrency
            )
        queue.cap = spec.concurrency  # a tool declared anew may have another
        return queue

    def adopt(self, pending: Pending) -> None:
        """See `QueuePump.adopt`."""
        self._queue(pending).adopt(pending)

    def started(self, pending: Pending) -> None:
        """See `QueuePump.started`."""
        self._queue(pending).started(pending)

    def stranded(self, pending: Pending) -> None:
        """See `QueuePump.stranded`."""
        self._queue(pending).stranded(pending)

    def handed_over(self, pending: Pending) -> None:
        """See `QueuePump.handed_over`. To be called before it is marked as in the background."""
        if pending.queue:
            self._queue(pending).handed_over(pending)

    def published_again(self, pending: Pending) -> None:
        """See `QueuePump.published_again`."""
        self._queue(pending).published_again(pending)

    def done(self, pending: Pending) -> None:
        """See `QueuePump.done`."""
        if pending.queue:
            self._queue(pending).done(pending)

    def close(self) -> None:
        """Send nothing more."""
        for queue in self._queues.values():
            queue.close()

    def reroute(self, pending: Pending, queue: str) -> None:
        """Move a call to another queue, wherever it is."""
        known, stage = self._queue(pending), pending.stage
        if stage is Stage.NEW:
            pending.queue = queue
        elif stage is Stage.WAITING:
            known.done(pending)
            pending.queue = queue
            self._queue(pending).submit(pending)
        else:
            known.leave(pending)
            pending.queue = queue
            self._queue(pending).enter(pending, stage)

    def has_room(self, line: str) -> None:
        """A call of this session has left: its others may go, whatever their queue."""
        for queue in self._queues.values():
            queue.has_room(line)

    def set_memory(self, share: float) -> None:
        """How full the server is: a nearly full one takes no new calls, so that it can end others.

        `share` is 0.0 to 1.0.
        """
        is_full = share >= _FULL_SERVER
        if is_full and not self._server_is_full:
            log.error("server_nearly_full memory=%.0f%%: new calls are refused", share * 100)
        self._server_is_full = is_full

    def interrupted(self) -> None:
        """The server did not answer: what it would say of a call is to be seen."""
        self.knows_workers = False
        for queue in self._queues.values():
            queue.wake()

    def slots(self, queue: str) -> list[int]:
        """The slots of each living worker of a queue."""
        return self._slots.get(queue, [])

    def set_workers(self, slots: dict[str, list[int]]) -> None:
        """Which workers live, by queue; what they make room for is sent."""
        self._slots, self.knows_workers = slots, True
        for queue in self._queues.values():
            queue.wake()
