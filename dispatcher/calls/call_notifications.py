"""Tells observers about calls that were sent."""

from toolpool.contract.envelope import Progress
from toolpool.contract.outcome import Outcome
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.observer import Observers, Progressed


class CallNotifications:
    """Reports each start and each end once."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def start(self, pending: Pending, worker: str) -> None:
        """Report that a worker started the call."""
        if self._observers.has_listeners("started") and pending.take_start_report():
            for followers in pending.followers:
                self._observers.call("started", followers, worker)

    def end(self, pending: Pending, outcome: Outcome) -> None:
        """Report that the call was answered."""
        self._observers.ended(
            pending,
            pending.message,
            outcome,
            seconds=pending.ended - pending.began,
            queued_seconds=pending.queued_at - pending.began if pending.queued_at else 0.0,
            is_first=pending.is_new_outcome and not pending.is_attached,
            shared=pending.shared_as,
        )

    def progress(self, pending: Pending, progress: Progress) -> None:
        """Report a tool's progress, which may arrive before its worker's report of the start."""
        if self._observers.has_listeners("progressed"):
            self.start(pending, pending.worker)
            told = Progressed(done=progress.done, total=progress.total, message=progress.message)
            for followers in pending.followers:
                self._observers.call("progressed", followers, told)
