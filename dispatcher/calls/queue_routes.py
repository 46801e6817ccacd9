"""Chooses the queue of a call.

During a rolling release, workers of one queue offer different tools. A call goes to a queue whose
workers have its tool in the version that its arguments were validated against.
"""

from toolpool.contract.redis_keys import RedisKeys, common_queue, toolset_queue
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.calls.live_workers import LiveWorkers


class QueueRoutes:
    """Finds the queue of each tool, by what the live workers offer."""

    def __init__(self, live_workers: LiveWorkers, names: RedisKeys) -> None:
        self._live = live_workers
        self._names = names
        self._routes: dict[str, str] = {}
        """Queues by spec digest, valid while the workers of the queues stay the same."""
        self._based_on = live_workers.by_queue

    def queue_for(self, spec: ToolSpec) -> str:
        """The queue whose workers all run this version of the tool, as far as known here."""
        if self._based_on is not self._live.by_queue:
            self._routes.clear()
            self._based_on = self._live.by_queue
        queue = self._routes.get(spec.digest)
        if queue is None:
            queue = self._routes[spec.digest] = self._route(spec)
        return queue

    def queue_for_another(self, spec: ToolSpec) -> str | None:
        """A queue whose workers run the tool in any version; None if none is known."""
        queue = self._names.queue(spec.queue, spec.run_in)
        return self._largest(queue, self._offering(queue, spec.name))

    def home(self, queue: str, spec: ToolSpec) -> str:
        """Return `queue`, or another queue if its toolset is gone and it has no workers left."""
        common = common_queue(queue)
        if queue in (common, *self._live.slots):
            return queue
        route = self.queue_for(spec)
        return route if route in self._live.slots else common

    def _route(self, spec: ToolSpec) -> str:
        queue = self._names.queue(spec.queue, spec.run_in)
        sets = self._live.by_queue.get(queue, {})
        fit = self._offering(queue, spec.name, spec.digest)
        if len(fit) == len(sets) or not all(map(self._live.is_known, sets)):
            return queue
        return self._largest(queue, fit) or queue

    def _offering(self, queue: str, tool: str, digest: str | None = None) -> dict[str, int]:
        """The slots by toolset of the queue's workers that have the tool."""
        sets = self._live.by_queue.get(queue, {})
        return {name: slots for name, slots in sets.items() if self._live.has(name, tool, digest)}

    @staticmethod
    def _largest(queue: str, fit: dict[str, int]) -> str | None:
        return toolset_queue(queue, max(fit, key=fit.__getitem__)) if fit else None
