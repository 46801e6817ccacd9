"""The one classified result that every call gets."""

from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract.outcome import Code, ErrorType, Executed


class State(StrEnum):
    """The public states of a call; the last two are final.

    A call is `PENDING` until it is sent (it waits for earlier calls of its turn, a free place, or a
    rate limit), and `WAITING` until a person approves it.
    """

    PENDING = "PENDING"
    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one tool call.

    `data` is what the tool returned; `error` is the text the model reads. `retry_after` and
    `duration` (from when the call need not wait for others of its turn) are in seconds. `details`
    hold the exception class and stack for operators; `payload()` omits them. `id_given` is False if
    the model's call had no id; `origin` is data that the provider's format needs back.
    """

    call_id: str
    name: str
    ok: bool
    data: Any = None
    error: str | None = None
    code: Code | None = None
    retryable: bool | None = None
    executed: Executed = Executed.YES
    retry_after: float | None = None
    recommendations: tuple[str, ...] = ()
    note: str | None = None
    handle: str | None = None
    duration: float = 0.0
    attempts: int = 1
    details: dict[str, Any] | None = None
    id_given: bool = True
    origin: dict[str, Any] | None = None

    @property
    def error_type(self) -> ErrorType | None:
        """The kind of failure; None for a success."""
        return self.code.error_type if self.code is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the call continues in the background, so that this is not its final result."""
        return self.ok and self.executed is Executed.UNKNOWN

    @property
    def state(self) -> State:
        """The state of the call; `WAITING` if a person has to approve it."""
        if not self.is_running:
            return State.COMPLETED if self.ok else State.FAILED
        said = self.data.get("state") if isinstance(self.data, dict) else None
        return State(said) if said in list(State) else State.RUNNING

    def payload(self) -> dict[str, Any]:
        """The result as the model's JSON; absent fields are omitted."""
        if self.ok:
            payload: dict[str, Any] = {"ok": True, "data": self.data}
            if self.note is not None:
                payload["note"] = self.note
            return payload
        payload = {"ok": False, "error": self.error}
        if self.code is not None:
            payload["errorType"] = self.code.error_type.value
            payload["code"] = self.code.value
        if self.retryable is not None:
            payload["retryable"] = self.retryable
        payload["executed"] = self.executed.value
        if self.retry_after is not None:
            payload["retryAfter"] = self.retry_after
        if self.note is not None:
            payload["note"] = self.note
        if self.recommendations:
            payload["recommendations"] = list(self.recommendations)
        return payload
