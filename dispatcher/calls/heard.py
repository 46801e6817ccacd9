"""What the parts that move calls tell of them, each handed on to whom it concerns."""

from collections.abc import Iterable, Sequence

from toolpool.contract.envelope import Progress, Question
from toolpool.contract.rates import Limit
from toolpool.dispatcher.calls.collect import Collector
from toolpool.dispatcher.calls.follow import Follower
from toolpool.dispatcher.calls.gate import Gate
from toolpool.dispatcher.calls.keeper import Keeper
from toolpool.dispatcher.calls.late_writes import LateWrites
from toolpool.dispatcher.calls.pending import Pending, Stage
from toolpool.dispatcher.calls.recovery import Recovery
from toolpool.dispatcher.calls.reporting import Reporter
from toolpool.dispatcher.calls.services import Calls
from toolpool.dispatcher.calls.telling import Telling
from toolpool.dispatcher.observe import Observers


class Heard(Calls):
    """A part of `Traffic`."""

    _observers: Observers
    _telling: Telling
    _gate: Gate
    _recovery: Recovery
    _follower: Follower
    _late_writes: LateWrites
    _collector: Collector
    _keeper: Keeper
    reporter: Reporter

    def progressed(self, pending: Pending, progress: Progress) -> None:
        """See `Calls.progressed`."""
        self._telling.progress(pending, progress)

    def released(self, pending: Pending) -> None:
        """See `Calls.released`."""
        self._observers.call("released", pending)
        self.in_background(self._recovery.released(pending))

    def limited(self, pending: Pending, limits: tuple[Limit, ...]) -> None:
        """See `Calls.limited`."""
        if pending.is_open and pending.stage is Stage.QUEUED:
            self._gate.hold_again(pending, limits)

    def passed(self, pending: Pending, reason: str) -> None:
        """See `Calls.passed`."""
        self.in_background(self._recovery.passed(pending, reason))
        if reason and not pending.republished:  # one that is passed again waits for the next look
            self._follower.soon()

    def ended(self, keys: Iterable[str]) -> None:
        """See `Calls.ended`."""
        self._late_writes.heard(keys)

    def asked(self, question: Question) -> None:
        """See `Calls.asked`."""
        self.in_background(self.reporter.answer(question))

    def settled(self, reply: bytes) -> None:
        """See `Calls.settled`."""
        self._collector.take(reply)

    def known(self, pending: Pending, reply: bytes) -> None:
        """See `Calls.known`."""
        pending.known_before()
        self._collector.take(reply)

    def unwanted(self, calls: Sequence[Pending]) -> None:
        """See `Calls.unwanted`."""
        self._keeper.close_unwanted(calls)
