"""Puts each call on its queue, and sends the calls of a queue in fair micro-batches.

A queue sends round robin over its sessions, many calls in one message. While one publish is under
way, arriving calls collect for the next. An idle queue sends at once, so batching never adds
latency.
"""

import asyncio
import time
from collections import OrderedDict, deque

import msgspec

from toolpool.contract.outcome import Code
from toolpool.contract.spec import BATCH_CALLS, RunIn
from toolpool.dispatcher.calls.batching import BatchSizing, next_batch
from toolpool.dispatcher.calls.pending import UNSTARTED, PendingCall, Stage
from toolpool.dispatcher.calls.publishing import Publisher
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import not_queued, server_full

_RETRY_AFTER_SECONDS = 1.0
_BATCH_BYTES = 512 * 1024
"""The limit on the arguments in one message, in bytes. A call with more is sent alone."""
_TOO_LATE_SECONDS = 0.1
_FIRST_BATCH = {RunIn.LOOP: 64, RunIn.THREAD: 8, RunIn.PROCESS: 1}


class Session(msgspec.Struct, eq=False, gc=False):
    """The counts of one session's calls in all queues together."""

    waiting: int = 0
    in_flight: int = 0


class _Flow(msgspec.Struct, eq=False):
    """One session's calls for one queue."""

    session: Session
    waiting: OrderedDict[PendingCall, None] = msgspec.field(default_factory=OrderedDict)
    in_flight: int = 0
    in_ring: bool = False


class Pump:
    """The queues of one dispatcher."""

    def __init__(self, services: Services, calls: Calls) -> None:
        self._services = services
        self._calls = calls
        self.waiting = 0
        """The number of calls not sent yet."""
        self.sessions: dict[str, Session] = {}
        self.knows_workers = False
        """Whether the last survey showed which workers live."""
        self._queues: dict[str, QueuePump] = {}
        self._slots: dict[str, list[int]] = {}
        settings = services.settings
        self._few = min(settings.waiting_per_session, settings.waiting_per_dispatcher)
        """While fewer calls than this wait, calls of every session are accepted."""
        self.too_late = min(_TOO_LATE_SECONDS, settings.queue_timeout / 4)
        """A call with fewer seconds of its queue wait left is not sent: no worker could start it.
        """

    @property
    def unstarted(self) -> int:
        """The number of calls that were sent and that no worker has started."""
        return sum(queue.unstarted for queue in self._queues.values())

    def submit(self, pending: PendingCall) -> None:
        """Accept a call; answer it `exception.overloaded` at once if there is no room for it."""
        has_room = self.waiting < self._few and not self._services.transport.is_full
        if has_room or self._has_room(pending):
            self.queue_of(pending).submit(pending)

    def hold(self, pending: PendingCall, *, always: bool = False) -> bool:
        """Count a call that is on no queue as waiting.

        Returns False if the call is refused instead. `always` admits a call that already waits for
        another dispatcher.
        """
        has_room = always or self._has_room(pending)
        if has_room:
            self._hold(pending.flow, 1)
        return has_room

    def remove_held(self, pending: PendingCall) -> None:
        """Stop counting a held call as waiting."""
        self._hold(pending.flow, -1)
        self.forget_if_empty(pending.flow)

    def admit(self, pending: PendingCall) -> None:
        """Queue a call that was held."""
        self._hold(pending.flow, -1)
        self.submit(pending)
        self.forget_if_empty(pending.flow)

    def _has_room(self, pending: PendingCall) -> bool:
        settings, session = self._services.settings, self.sessions.get(pending.flow)
        if self._services.transport.is_full:
            self._calls.refuse(pending, server_full(_RETRY_AFTER_SECONDS))
            return False
        if self.waiting >= settings.waiting_per_dispatcher or (
            session is not None and session.waiting >= settings.waiting_per_session
        ):
            full = not_queued(Code.OVERLOADED, retry_after=_RETRY_AFTER_SECONDS)
            self._calls.refuse(pending, full)
            return False
        return True

    def queue_of(self, pending: PendingCall) -> "QueuePump":
        """The queue of a call.

        A tool with a concurrency cap has its own, so it holds up no other.
        """
        spec = pending.spec
        name = pending.queue if spec.concurrency is None else f"{pending.queue}#{spec.name}"
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = QueuePump(
                self._services, self._calls, self, pending.queue, spec.run_in
            )
        queue.cap = spec.concurrency  # a redeclared tool may have another cap
        return queue

    def move_to_background(self, pending: PendingCall) -> None:
        """Record that the call moves to the background, before it is marked so."""
        if pending.queue:
            self.queue_of(pending).move_to_background(pending)

    def done(self, pending: PendingCall) -> None:
        """Record that the call was answered."""
        if pending.queue:
            self.queue_of(pending).done(pending)

    def close(self) -> None:
        """Stop sending."""
        for queue in self._queues.values():
            queue.close()

    def take_back(self, pending: PendingCall) -> None:
        """Take a call off its queue; it has to pass the rate gate again."""
        self.done(pending)
        pending.move_to(Stage.NEW)

    def reroute(self, pending: PendingCall, queue: str) -> None:
        """Move a call to another queue, wherever it is."""
        known = self.queue_of(pending)
        if pending.stage is Stage.NEW:
            pending.queue = queue
        elif pending.stage is Stage.WAITING:
            known.done(pending)
            pending.queue = queue
            self.queue_of(pending).submit(pending)
        else:
            known.leave(pending)
            pending.queue = queue
            self.queue_of(pending).enter(pending)

    def interrupted(self) -> None:
        """Record that the server did not answer, so that the live workers are unknown."""
        self.knows_workers = False
        self._wake()

    def slots(self, queue: str) -> list[int]:
        """The slots of each live worker of a queue."""
        return self._slots.get(queue, [])

    def set_workers(self, slots: dict[str, list[int]]) -> None:
        """Set the live workers' slots by queue, and send what they have room for."""
        self._slots, self.knows_workers = slots, True
        self._wake()

    def has_room(self, flow: str) -> None:
        """Called when a call of this session has left: sends its other calls, on any queue."""
        for queue in self._queues.values():
            queue.has_room(flow)

    def forget_if_empty(self, flow: str) -> None:
        """Forget a session that has no calls."""
        session = self.sessions.get(flow)
        if session is not None and not session.waiting and not session.in_flight:
            del self.sessions[flow]

    def _hold(self, flow: str, change: int) -> None:
        """Change the number of a session's calls that wait outside of any queue."""
        self.waiting += change
        self.sessions.setdefault(flow, Session()).waiting += change

    def _wake(self) -> None:
        for queue in self._queues.values():
            queue.wake()


class QueuePump:
    """The calls of one queue."""

    def __init__(
        self, services: Services, calls: Calls, pump: "Pump", name: str, run_in: RunIn
    ) -> None:
        self.name = name
        self.cap: int | None = None
        """The concurrency cap of the tool, if the queue is that of one tool."""
        self._calls = calls
        self._pump = pump
        self._publisher = Publisher(services, calls, self)
        self._in_flight = 0
        largest = BATCH_CALLS[run_in]
        self._batch_sizing = BatchSizing(largest=largest, first=_FIRST_BATCH[run_in])
        self._flows: dict[str, _Flow] = {}
        self._ring: deque[str] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waiting = 0
        self._next_size = 0
        self._unstarted = 0
        self._most_in_flight = services.settings.in_flight_per_session
        self._sent_to_nobody = False
        """Whether a message was sent to the queue before it had any worker."""

    @property
    def unstarted(self) -> int:
        """The number of calls that were sent and that no worker has started."""
        return self._unstarted

    def submit(self, pending: PendingCall) -> None:
        """Queue a call behind the others of its session."""
        flow = self._flow(pending.flow)
        pending.move_to(Stage.WAITING)
        flow.waiting[pending] = None
        self._waiting += 1
        self._pump.waiting += 1
        flow.session.waiting += 1
        self._join_ring(pending.flow, flow)
        if self._sending is None:
            self.wake()

    def wake(self) -> None:
        """Send what may be sent now."""
        if self._sending is None and not self._is_closed and self._may_send():
            self._sending = asyncio.ensure_future(self._send())

    def started(self, pending: PendingCall) -> None:
        """Record that a worker has claimed the call, which makes room for another."""
        self._leave_queue(pending, Stage.RUNNING)

    def orphaned(self, pending: PendingCall) -> None:
        """Record that no worker will start the call, so that it does not hold back others."""
        self._leave_queue(pending, Stage.ORPHANED)

    def move_to_background(self, pending: PendingCall) -> None:
        """Record that the call moves to the background, which makes room in its session."""
        flow = self._flows.get(pending.flow)
        if flow is not None and not pending.in_background and pending.is_in_flight:
            flow.session.in_flight -= 1
            self._pump.has_room(pending.flow)

    def _leave_queue(self, pending: PendingCall, stage: Stage) -> None:
        was_unstarted = pending.is_unstarted
        if pending.move_to(stage) and was_unstarted:
            self._unstarted -= 1
            self.wake()

    def blocked_by(self, pending: PendingCall) -> str:
        """Why a call that waits here was not sent: `concurrency`, `session_limit` or `workers`."""
        if self.cap is not None and self._in_flight >= self.cap:
            return "concurrency"
        session = self._pump.sessions.get(pending.flow)
        is_limited = session is not None and session.in_flight >= self._most_in_flight
        return "session_limit" if is_limited else "workers"

    def adopt(self, pending: PendingCall) -> None:
        """Take over a call that another dispatcher published; a started call stays started."""
        if pending.stage not in (Stage.NEW, Stage.WAITING):
            return
        if pending.stage is Stage.WAITING:
            self._stop_waiting(pending)
        flow = self._flow(pending.flow)
        self._count_in_flight(flow, 1, of_session=not pending.in_background)
        pending.move_to(Stage.QUEUED)
        self._unstarted += 1

    def leave(self, pending: PendingCall) -> None:
        """Remove a published call that moves to another queue."""
        flow = self._flows[pending.flow]
        self._unstarted -= pending.is_unstarted
        self._count_in_flight(flow, -1, of_session=not pending.in_background)
        self._forget_if_empty(pending.flow, flow)
        self.wake()

    def enter(self, pending: PendingCall) -> None:
        """Add a published call that comes from another queue."""
        flow = self._flow(pending.flow)
        self._count_in_flight(flow, 1, of_session=not pending.in_background)
        self._unstarted += pending.is_unstarted

    def published_again(self, pending: PendingCall) -> None:
        """Record that a call, which a worker had started, waits to be started again."""
        if pending.stage in (Stage.RUNNING, Stage.ORPHANED) and pending.move_to(Stage.QUEUED):
            self._unstarted += 1

    def done(self, pending: PendingCall) -> None:
        """Record that the call was answered, wherever it was."""
        if pending.stage is Stage.NEW:
            return
        if pending.stage is Stage.WAITING:
            self._stop_waiting(pending)
            return
        flow = self._flows[pending.flow]
        self._unstarted -= pending.stage in UNSTARTED
        if pending.outcome is not None:
            self._batch_sizing.note(pending.outcome)
        flow.in_flight -= 1
        flow.session.in_flight -= not pending.in_background
        self._in_flight -= 1
        self._forget_if_empty(pending.flow, flow)
        if flow.session.waiting:
            self._pump.has_room(pending.flow)
        if self._sending is None:
            self.wake()

    def _flow(self, name: str) -> _Flow:
        flow = self._flows.get(name)
        if flow is None:
            sessions = self._pump.sessions
            if (session := sessions.get(name)) is None:
                session = sessions[name] = Session()
            flow = self._flows[name] = _Flow(session)
        return flow

    def _forget_if_empty(self, name: str, flow: _Flow) -> None:
        if flow.waiting or flow.in_flight or flow.in_ring:
            return
        self._flows.pop(name, None)
        self._pump.forget_if_empty(name)

    def has_room(self, name: str) -> None:
        """Send this session's next call, since the session may have one more call in flight."""
        flow = self._flows.get(name)
        if flow is not None and flow.waiting and not flow.in_ring:
            self._join_ring(name, flow)
            self.wake()

    def _stop_waiting(self, pending: PendingCall) -> None:
        flow = self._flow(pending.flow)
        self._remove_waiting(flow, pending)
        self._forget_if_empty(pending.flow, flow)

    def _join_ring(self, name: str, flow: _Flow) -> None:
        if not flow.in_ring and flow.session.in_flight < self._most_in_flight:
            flow.in_ring = True
            self._ring.append(name)

    def _remove_waiting(self, flow: _Flow, pending: PendingCall) -> None:
        flow.waiting.pop(pending, None)
        self._waiting -= 1
        self._pump.waiting -= 1
        flow.session.waiting -= 1

    def _count_in_flight(self, flow: _Flow, change: int, *, of_session: bool) -> None:
        flow.in_flight += change
        self._in_flight += change
        flow.session.in_flight += change if of_session else 0

    def _may_send(self) -> bool:
        """Whether to send now instead of collecting more.

        Without workers one message is sent, for autoscalers to see; more would stay on the queue
        long after their calls have ended.
        """
        if not self._ring:
            return False
        slots = self._pump.slots(self.name)
        if slots:
            self._sent_to_nobody = False
        elif self._sent_to_nobody and self._pump.knows_workers:
            return False
        self._next_size = next_batch(
            slots=slots,
            waiting=self._waiting,
            unstarted=self._unstarted,
            largest=self._batch_sizing.batch_size(max(slots, default=1)),
            left=None if self.cap is None else self.cap - self._in_flight,
        )
        return self._next_size > 0

    def _next_batch(self) -> list[PendingCall]:
        """The next batch, one call per session in turn."""
        taken: list[PendingCall] = []
        size = 0
        too_late = time.monotonic() + self._pump.too_late
        while self._ring and len(taken) < self._next_size and size < _BATCH_BYTES:
            name = self._ring.popleft()
            flow = self._flows[name]
            flow.in_ring = False
            if flow.session.in_flight >= self._most_in_flight:
                continue  # its calls on another queue used up its limit
            pending = self._first(flow, too_late)
            if pending is None:
                self._forget_if_empty(name, flow)
                continue
            if taken and size + pending.size > _BATCH_BYTES:
                flow.in_ring = True
                self._ring.appendleft(name)
                break
            self._remove_waiting(flow, pending)
            flow.in_flight += 1
            flow.session.in_flight += not pending.in_background
            self._in_flight += 1
            self._unstarted += 1
            pending.move_to(Stage.PUBLISHING)
            size += pending.size
            taken.append(pending)
            if flow.waiting:
                self._join_ring(name, flow)
        return taken

    def _first(self, flow: _Flow, too_late: float) -> PendingCall | None:
        """The first of a session's calls that may be sent; removes those that may not.

        A call that no worker could start in time stays until it expires; a cancelled call is about
        to end.
        """
        while flow.waiting:
            pending = next(iter(flow.waiting))
            denial = self._calls.denial(pending)
            if denial is None and pending.start_by > too_late and not pending.is_abandoned:
                return pending
            del flow.waiting[pending]
            if denial is not None and not pending.is_abandoned:
                self._calls.refuse(pending, denial)
        return None

    def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        try:
            while self._may_send() and (taken := self._next_batch()):
                if await self._publisher.publish(taken):
                    self._sent_to_nobody = not self._pump.slots(self.name)
        finally:
            self._sending = None
            self.wake()
