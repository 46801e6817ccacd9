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
    """The blocking form of `Approvals`."""

    def __init__(
        self, approvals: Approvals, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._approvals = approvals
        self._run = run

    def waiting(self, *, session: str | None = None) -> list[Approval]:
        """The pending approvals, of one session or of all, the first to expire first."""
        found: list[Approval] = self._run(self._approvals.waiting(session=session))
        return found

    def get(self, id: str) -> Approval:
        """An approval in any state; see `Approvals.get`."""
        found: Approval = self._run(self._approvals.get(id))
        return found

    def approve(self, id: str, *, by: str, digest: str | None = None, reason: str = "") -> Approval:
        """Let a call run, once, with its exact arguments; see `Approvals.approve`."""
        work = self._approvals.approve(id, by=by, digest=digest, reason=reason)
        decided: Approval = self._run(work)
        return decided

    def deny(self, id: str, *, by: str, digest: str | None = None, reason: str = "") -> Approval:
        """Have a call answered `aborted.denied`; see `Approvals.deny`."""
        work = self._approvals.deny(id, by=by, digest=digest, reason=reason)
        decided: Approval = self._run(work)
        return decided


class SyncHandles(ABC):
    """The blocking form of `Handles`."""

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, T]) -> T: ...

    @abstractmethod
    def _opened(self) -> Dispatcher: ...

    @abstractmethod
    def _stream(self, follow: Callable[[Dispatcher], AsyncIterator[T]]) -> Iterator[T]: ...

    def task_result(
        self, handle: str, *, session: str | None = None, wait: float = 0.0
    ) -> ToolResult | None:
        """The final result of a background call; see `Dispatcher.task_result`."""
        return self._run(self._opened().task_result(handle, session=session, wait=wait))

    def task_cancel(self, handle: str, *, session: str | None = None) -> ToolResult:
        """Stop a background call; see `Dispatcher.task_cancel`."""
        return self._run(self._opened().task_cancel(handle, session=session))

    def task_list(self, *, session: str | None = None) -> list[dict[str, Any]]:
        """A session's background calls; see `Dispatcher.task_list`."""
        return self._run(self._opened().task_list(session=session))

    def output(self, handle: str, *, session: str | None = None, page: int = 1) -> dict[str, Any]:
        """A page of a full output; see `Dispatcher.output`."""
        return self._run(self._opened().output(handle, session=session, page=page))

    def completed(self, *, session: str | None = None) -> Iterator[str]:
        """Yield the handles of background calls as they end; see `Dispatcher.completed`.

        Blocks for the next one, until the dispatcher is closed.
        """
        return self._stream(lambda opened: opened.completed(session=session))
