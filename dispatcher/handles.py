"""The dispatcher's methods for background calls and full outputs, by their handles."""

from collections.abc import AsyncIterator
from typing import Any

from toolpool.contract.result import ToolResult
from toolpool.contract.server.connection import mapped_errors
from toolpool.dispatcher.background import NO_SUCH_HANDLE, Background
from toolpool.dispatcher.lifetime import Lifetime
from toolpool.dispatcher.turn_context import page_number, patience, require_name


class Handles:
    """The part of `Dispatcher` that serves handles."""

    _background: Background
    _lifetime: Lifetime

    async def task_result(
        self, handle: str, *, session: str | None = None, wait: float = 0.0
    ) -> ToolResult | None:
        """The final result of a background call, after up to `wait` seconds; None while it runs.

        Raises KeyError if the handle is unknown, expired, or another session's, ValueError if
        `wait` is not a number of seconds, and `ServerUnavailable` if Redis does not answer.
        """
        self._require(session)
        with mapped_errors("task_result"):
            found = await self._background.result(handle, session, patience(wait))
        self._lifetime.require()  # it may have been closed meanwhile
        return found

    async def task_cancel(self, handle: str, *, session: str | None = None) -> ToolResult:
        """Stop a background call; its final result. Raises KeyError as `task_result` does."""
        self._require(session)
        return await self._background.cancel(handle, session)

    async def task_list(self, *, session: str | None = None) -> list[dict[str, Any]]:
        """A session's background calls: handle, tool, state, seconds since the start.

        Without a session, those that this dispatcher handed out, the last thousand at most.
        Raises `ServerUnavailable` if Redis does not answer.
        """
        self._require(session)
        with mapped_errors("task_list"):
            return await self._background.listed(session)

    async def output(
        self, handle: str, *, session: str | None = None, page: int = 1
    ) -> dict[str, Any]:
        """A page of a full output: `page`, `pages`, `text`.

        Raises KeyError and `ServerUnavailable` as `task_result` does, and ValueError if there is
        no such page.
        """
        self._require(session)
        with mapped_errors("output"):
            found = await self._background.page(handle, session, page_number(page))
        if found is None:
            raise KeyError(NO_SUCH_HANDLE)
        return found

    def completed(self, *, session: str | None = None) -> AsyncIterator[str]:
        """Yield the handles of a session's background calls as they end.

        The stream ends when the dispatcher is closed. It raises `ServerUnavailable` if Redis does
        not answer when it begins.
        """
        self._require(session)
        return self._background.completed(session)

    def _require(self, session: str | None) -> None:
        """Raises RuntimeError if the dispatcher is not open, ValueError for a bad session."""
        self._lifetime.require()
        require_name("session", session)
