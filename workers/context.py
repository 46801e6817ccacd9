"""What a running tool may know and say about its own call."""

import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolpool.contract import logs
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.redaction import NOTHING, Redaction
from toolpool.workers.safe_text import text_of

log = logs.logger("progress")

_PROGRESS_SECONDS = 0.25
_MESSAGE_CHARACTERS = 1_000
_HIDDEN_IN_CHARACTERS = 100_000

ReportProgress = Callable[[float, float | None, str | None], None]


class ProgressGate:
    """Lets a report through every quarter of a second, and once the one that says it is all done.

    From any thread. `close` returns when no report is under way, and none comes after it.
    """

    def __init__(self, send: ReportProgress) -> None:
        self._send = send
        self._open_at = 0.0
        self._said_all = False
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        """Report, or drop the report. Never raises."""
        if os.getpid() != self._process:
            return  # a fork of the tool's: what it would write on is not its own
        try:
            with self._lock:
                self._report(done, total, message)
        except Exception as error:  # noqa: BLE001 - progress never fails a tool
            log.info("progress_not_reported: %s", error)

    def close(self) -> None:
        """The call has ended: drop what its threads still report."""
        with self._lock:
            self._closed = True

    def _report(self, done: float, total: float | None, message: str | None) -> None:
        now, says_all = time.monotonic(), done == total
        if self._closed or (now < self._open_at and (self._said_all or not says_all)):
            return
        self._open_at = now + _PROGRESS_SECONDS
        self._said_all = self._said_all or says_all
        self._send(
            _finite(done),
            None if total is None else _finite(total),
            None if message is None else _short(str(message)),
        )


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("progress in numbers that JSON does not have")
    return float(number)


def _short(message: str) -> str:
    cut = message if len(message) <= _MESSAGE_CHARACTERS else message[:_MESSAGE_CHARACTERS]
    return cut.encode("utf-8", "replace").decode()


def _discard(done: float, total: float | None, message: str | None) -> None:
    """Progress nobody listens to."""


def _beat_unheard() -> None:
    """A sign of life nobody waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Injected into a tool's parameter of this type; invisible to the model.

    `context` is what the host gave to `dispatch(context=…)`; `trace` are the headers of the trace
    that the call belongs to, for what the tool calls. `ends_at` is on the monotonic clock.

    `idempotency_key` is for the API behind a tool, which takes a request that it has seen with the
    same key for the same request: a UUID of the call, the same in every attempt, in retries by the
    pool, and where the call is asked again; no other call has it. Of one made by hand it is random.

    `secrets` are those that the tool declares, by name; see `secret`.
    """

    call_id: str
    tool: str
    session: str | None = None
    attempt: int = 1
    idempotency_key: str = field(default_factory=lambda: str(uuid.uuid4()))
    context: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    ends_at: float = float("inf")
    report_progress: ReportProgress = _discard
    beat: Callable[[], None] = _beat_unheard
    is_cancelled: Callable[[], bool] = lambda: False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    redaction: Redaction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        redaction = Redaction(self.secrets) if self.secrets else NOTHING
        object.__setattr__(self, "redaction", redaction)

    @property
    def remaining(self) -> float:
        """Seconds until the call times out; never negative."""
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once the caller wants no result any more: a long tool should look and stop."""
        return self.is_cancelled()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tells the caller how far the tool is. Cheap, never blocks, never raises."""
        self.beat()
        if message is not None and self.secrets:
            message = text_of(message, _HIDDEN_IN_CHARACTERS, self.redaction.text)
        self.report_progress(done, total, message)

    def secret(self, name: str) -> str:
        """The value of a secret that the tool declares: `@tool(secrets=["name"])`.

        The same plain call on the event loop, in threads and in child processes. It takes no time
        and never fails for want of the value: the worker asks for what a tool declares before it
        enters the tool, so that a call without it is answered unrun, and a slow vault holds up no
        event loop. And what is declared is all that a tool can ask for, whatever a model
        puts into its arguments.

        The value is the call's own user's. Whatever the pool passes on of the call shows
        `[secret name]` in its place; what the tool itself prints or sends is its own affair.

        Raises `ToolDeclarationInvalid` for a name that is not declared.
        """
        try:
            return self.secrets[name]
        except KeyError:
            raise ToolDeclarationInvalid(
                f"{self.tool} asks for the secret {name!r} and does not declare it: "
                f"@tool(secrets=[{name!r}]), or ToolContext(secrets=…) in a test"
            ) from None

    def heartbeat(self) -> None:
        """Says that the tool is alive, as `progress` does too; see the tool option `heartbeat`."""
        self.beat()
