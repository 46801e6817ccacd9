"""Parts of a `SyncDispatcher`: handles of background calls, and approvals, for blocking code."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from toolpool.contract.result import ToolResult
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.policy.approval_view import Approval
from toolpool.pool import Dispatcher

T = TypeVar("T")


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


class SyncHandles(ABC):
    """See `Dispatcher`: what is known of calls by their handles."""

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, T]) -> T: ...

    @abstractmethod
    def _opened(self) -> Dispatcher: ...

    @abstractmethod
    def _stream(self, follow: Callable[[Dispatcher], AsyncIterator[T]]) -> Iterator[T]: ...

    def task_result(
        self, handle: str, *, session: str | None = None, wait: float = 0.0
    ) -> ToolResult | None:
        """See `Dispatcher.task_result`."""
        return self._run(self._opened().task_result(handle, session=session, wait=wait))

    def task_cancel(self, handle: str, *, session: str | None = None) -> ToolResult:
        """See `Dispatcher.task_cancel`."""
        return self._run(self._opened().task_cancel(handle, session=session))

    def task_list(self, *, session: str | None = None) -> list[dict[str, Any]]:
        """See `Dispatcher.task_list`."""
        return self._run(self._opened().task_list(session=session))

    def output(self, handle: str, *, session: str | None = None, page: int = 1) -> dict[str, Any]:
        """See `Dispatcher.output`."""
        return self._run(self._opened().output(handle, session=session, page=page))

    def completed(self, *, session: str | None = None) -> Iterator[str]:
        """See `Dispatcher.completed`: blocks for the next one, until the dispatcher is closed."""
        return self._stream(lambda opened: opened.completed(session=session))
