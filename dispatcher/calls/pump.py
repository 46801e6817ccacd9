"""Fair micro-batches: takes calls, and hands each to its queue."""

from toolpool.contract.outcome import Code
from toolpool.dispatcher.calls.pending import Pending, Stage
from toolpool.dispatcher.calls.queue_pump import QueuePump, Shared
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.messages.classify import not_queued, server_full

_RETRY_AFTER_SECONDS = 1.0


class Pump:
    """The queues of one dispatcher."""

    def __init__(self, services: Services, calls: Calls) -> None:
        self._services = services
        self._calls = calls
        self._shared = Shared()

    @property
    def waiting(self) -> int:
        """Calls that were not sent yet."""
        return self._shared.waiting

    @property
    def unstarted(self) -> int:
        """Calls that were sent, and no worker has started yet."""
        return sum(queue.unstarted for queue in self._shared.queues.values())

    def submit(self, pending: Pending) -> None:
        """Take a call; `exception.overloaded` at once where there is no room for it."""
        if self._has_room(pending):
            self._queue(pending).submit(pending)

    def hold(self, pending: Pending, *, always: bool = False) -> bool:
        """Count a call that waits elsewhere as waiting; False where it is refused instead.

        `always`: it waits already, for another dispatcher.
        """
        has_room = always or self._has_room(pending)
        if has_room:
            self._shared.hold(pending.line, 1)
        return has_room

    def let_go(self, pending: Pending) -> None:
        """A call that was held does not wait any more."""
        self._shared.hold(pending.line, -1)
        self._shared.forget_if_empty(pending.line)

    def admit(self, pending: Pending) -> None:
        """Take a call that was held."""
        self._shared.hold(pending.line, -1)
        self.submit(pending)
        self._shared.forget_if_empty(pending.line)

    def _has_room(self, pending: Pending) -> bool:
        settings, session = self._services.settings, self._shared.sessions.get(pending.line)
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

    def _queue(self, pending: Pending) -> QueuePump:
        """A tool with a cap of its own has a line of its own, so that it holds up no other."""
        spec = pending.spec
        name = pending.queue if spec.concurrency is None else f"{pending.queue}#{spec.name}"
        queue = self._shared.queues.get(name)
        if queue is None:
            queue = self._shared.queues[name] = QueuePump(
                self._services, self._calls, self._shared, pending.queue, spec.run_in
            )
        queue.cap = spec.concurrency  # a tool declared anew may have another
        return queue

    def held_back_by(self, pending: Pending) -> str:
        """See `QueuePump.held_back_by`."""
        return self._queue(pending).held_back_by(pending)

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
        for queue in self._shared.queues.values():
            queue.close()

    def take_back(self, pending: Pending) -> None:
        """A call that was sent is on no queue any more, and has to pass the gate once more."""
        self.done(pending)
        pending.to(Stage.NEW)

    def reroute(self, pending: Pending, queue: str) -> None:
        """Move a call to another queue, wherever it is."""
        known = self._queue(pending)
        if pending.stage is Stage.NEW:
            pending.rerouted(queue)
        elif pending.stage is Stage.WAITING:
            known.done(pending)
            pending.rerouted(queue)
            self._queue(pending).submit(pending)
        else:
            known.leave(pending)
            pending.rerouted(queue)
            self._queue(pending).enter(pending)

    def interrupted(self) -> None:
        """The server did not answer: what it would say of a call is to be seen."""
        self._shared.knows_workers = False
        self._shared.wake()

    def set_workers(self, slots: dict[str, list[int]]) -> None:
        """Which workers live, by queue; what they make room for is sent."""
        self._shared.set_workers(slots)
