"""What people decide about calls that wait for them, for blocking code."""

from collections.abc import Callable, Coroutine
from typing import Any

from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.policy.approval import Approval


class SyncApprovals:
    """See `Dispatcher.approvals`."""

    def __init__(
        self, approvals: Approvals, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._approvals = approvals
        self._run = run

    def waiting(self, *, session: str | None = None) -> list[Approval]:
        """See `Approvals.waiting`."""
        found: list[Approval] = self._run(self._approvals.waiting(session=session))
        return found

    def get(self, id: str) -> Approval:
        """See `Approvals.get`."""
        found: Approval = self._run(self._approvals.get(id))
        return found

    def approve(self, id: str, *, by: str, digest: str | None = None, reason: str = "") -> Approval:
        """See `Approvals.approve`."""
        work = self._approvals.approve(id, by=by, digest=digest, reason=reason)
        decided: Approval = self._run(work)
        return decided

    def deny(self, id: str, *, by: str, digest: str | None = None, reason: str = "") -> Approval:
        """See `Approvals.deny`."""
        work = self._approvals.deny(id, by=by, digest=digest, reason=reason)
        decided: Approval = self._run(work)
        return decided
