"""The context of a running tool: its call's data, progress and secrets."""

import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from toolpool.contract import logs
from toolpool.contract.envelope import CallMessage
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.redaction import NOTHING, Redaction
from toolpool.contract.redis_keys import idempotency_key
from toolpool.workers.safe_text import text_of

log = logs.logger("context")

_PROGRESS_SECONDS = 0.25
_MESSAGE_CHARACTERS = 1_000
_HIDDEN_IN_CHARACTERS = 100_000

ReportProgress = Callable[[float, float | None, str | None], None]


class ProgressThrottle:
    """Forwards a progress report every quarter of a second, and the final one once.

    Thread-safe. `close` returns when no report is in progress; afterwards, none is sent.
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
            return  # in a fork of the tool the connection is not its own
        try:
            with self._lock:
                self._report(done, total, message)
        except Exception as error:  # noqa: BLE001 - progress never fails a tool
            log.info("progress_not_reported: %s", error)

    def close(self) -> None:
        """Drop later reports of the call's threads."""
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
        raise ValueError("progress must be finite numbers")
    return float(number)


def _short(message: str) -> str:
    cut = message if len(message) <= _MESSAGE_CHARACTERS else message[:_MESSAGE_CHARACTERS]
    return cut.encode("utf-8", "replace").decode()


def _discard(done: float, total: float | None, message: str | None) -> None:
    """Discards progress reports."""


def _beat_unheard() -> None:
    """Discards heartbeats."""


ResourcesT = TypeVar("ResourcesT", default=Any)


@dataclass(frozen=True, kw_only=True)
class ToolContext(Generic[ResourcesT]):
    """Injected into a tool's parameter of this type; invisible to the model.

    `context` is what the host passed to `dispatch(context=…)`; `trace` are the call's trace
    headers, for the tool's own requests. `ends_at` is on the monotonic clock.

    `idempotency_key` is a UUID of the call, for APIs that deduplicate requests by key: it is the
    same in every attempt, in retries by the pool and if the call is dispatched again; no other call
    has it. In a context created by hand it is random.

    `secrets` are the secrets that the tool declares, by name; see `secret`. `resources` are what
    the `@lifespan` of the tool's module yielded: `ToolContext[Resources]` gives them a type.
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
    resources: ResourcesT = field(default=cast(Any, None), repr=False, compare=False)
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
        """Whether the caller no longer wants a result: a long tool should check it and stop."""
        return self.is_cancelled()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the caller. Cheap, never blocks, never raises."""
        self.beat()
        if message is not None and self.secrets:
            message = text_of(message, _HIDDEN_IN_CHARACTERS, self.redaction.text)
        self.report_progress(done, total, message)

    def secret(self, name: str) -> str:
        """The value of a secret that the tool declares: `@tool(secrets=["name"])`.

        It works the same on the event loop, in threads and in child processes, takes no time and
        never fails because the value is missing: the worker resolves declared secrets before it
        enters the tool, and answers a call without them unexecuted. A tool can only get declared
        secrets, whatever arguments a model sends.

        The value is that of the call's own user. The pool replaces it with `[secret name]` in all
        that it passes on; the tool is responsible for what it prints or sends itself.

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
        """Report that the tool is alive, as `progress` also does; see the option `heartbeat`."""
        self.beat()


def context_of(
    call: CallMessage,
    seconds: float,
    report_progress: ReportProgress,
    beat: Callable[[], None],
    secrets: Mapping[str, str],
    resources: Any,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ToolContext:
    """The context of a call that times out in `seconds`."""
    return ToolContext(
        call_id=call.id,
        tool=call.tool,
        session=call.session,
        attempt=call.attempt,
        idempotency_key=idempotency_key(call.idempotency or call.key),
        context=call.context or {},
        trace=call.trace or {},
        ends_at=time.monotonic() + seconds,
        report_progress=report_progress,
        beat=beat,
        is_cancelled=is_cancelled,
        secrets=secrets,
        resources=resources,
    )
