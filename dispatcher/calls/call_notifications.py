"""Tells observers that calls were started and made progress."""

from toolpool.contract.envelope import Progress
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.observer import Observers, Progressed


class CallNotifications:
    """Reports each start once."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def start(self, pending: Pending, worker: str) -> None:
        """Report that a worker started the call."""
        if self._observers.listeners["started"] and pending.take_start_report():
            for followers in pending.followers:
                self._observers.call("started", followers, worker)

    def progress(self, pending: Pending, progress: Progress) -> None:
        """Report a tool's progress, which may arrive before its worker's report of the start."""
        if self._observers.listeners["progressed"]:
            self.start(pending, pending.worker)
            told = Progressed(done=progress.done, total=progress.total, message=progress.message)
            for followers in pending.followers:
                self._observers.call("progressed", followers, told)
