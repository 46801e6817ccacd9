"""Puts each call on its queue. The queues send their calls in fair micro-batches."""

from toolpool.contract.outcome import Code
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.queue_pump import PumpState, QueuePump
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import not_queued, server_full

_RETRY_AFTER_SECONDS = 1.0


class Pump:
    """The queues of one dispatcher."""

    def __init__(self, services: Services, calls: Calls) -> None:
        self._services = services
        self._calls = calls
        self._shared = PumpState()
        settings = services.settings
        self._few = min(settings.waiting_per_session, settings.waiting_per_dispatcher)
        """While fewer calls than this wait, calls of every session are accepted."""

    @property
    def waiting(self) -> int:
        """The number of calls not sent yet."""
        return self._shared.waiting

    @property
    def unstarted(self) -> int:
        """The number of calls that were sent and that no worker has started."""
        return sum(queue.unstarted for queue in self._shared.queues.values())

    def submit(self, pending: PendingCall) -> None:
        """Accept a call; answer it `exception.overloaded` at once if there is no room for it."""
        has_room = self._shared.waiting < self._few and not self._services.transport.is_full
        if has_room or self._has_room(pending):
            self.queue_of(pending).submit(pending)

    def hold(self, pending: PendingCall, *, always: bool = False) -> bool:
        """Count a call that is on no queue as waiting.

        Returns False if the call is refused instead. `always` admits a call that already waits for
        another dispatcher.
        """
        has_room = always or self._has_room(pending)
        if has_room:
            self._shared.hold(pending.flow, 1)
        return has_room

    def remove_held(self, pending: PendingCall) -> None:
        """Stop counting a held call as waiting."""
        self._shared.hold(pending.flow, -1)
        self._shared.forget_if_empty(pending.flow)

    def admit(self, pending: PendingCall) -> None:
        """Queue a call that was held."""
        self._shared.hold(pending.flow, -1)
        self.submit(pending)
        self._shared.forget_if_empty(pending.flow)

    def _has_room(self, pending: PendingCall) -> bool:
        settings, session = self._services.settings, self._shared.sessions.get(pending.flow)
        if self._services.transport.is_full:
            self._calls.refuse(pending, server_full(_RETRY_AFTER_SECONDS))
            return False
        if self._shared.waiting >= settings.waiting_per_dispatcher or (
            session is not None and session.waiting >= settings.waiting_per_session
        ):
            full = not_queued(Code.OVERLOADED, retry_after=_RETRY_AFTER_SECONDS)
            self._calls.refuse(pending, full)
            return False
        return True

    def queue_of(self, pending: PendingCall) -> QueuePump:
        """The queue of a call.

        A tool with a concurrency cap has its own, so it holds up no other.
        """
        spec = pending.spec
        name = pending.queue if spec.concurrency is None else f"{pending.queue}#{spec.name}"
        queue = self._shared.queues.get(name)
        if queue is None:
            queue = self._shared.queues[name] = QueuePump(
                self._services, self._calls, self._shared, pending.queue, spec.run_in
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
        for queue in self._shared.queues.values():
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
        self._shared.knows_workers = False
        self._shared.wake()

    def set_workers(self, slots: dict[str, list[int]]) -> None:
        """Set the live workers' slots by queue, and send what they have room for."""
        self._shared.set_workers(slots)
