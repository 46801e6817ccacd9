"""Observers of workers: the moments of a worker's life, and the facts of each.

`toolpool.contract.observer_dispatch` describes the delivery. Facts contain no arguments and no
results.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.envelope import Batch, CallMessage
from toolpool.contract.errors import Misconfigured
from toolpool.contract.exception_report import ExceptionReport, Failure, failure_of
from toolpool.contract.importing import loaded
from toolpool.contract.observer_dispatch import BaseObserver, ObserverDispatch
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.workers.running.process_role import import_from_here

if TYPE_CHECKING:
    from toolpool.workers.tool import Tool


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker and what it serves. `pid` is its process id.

    `kinds` of tools are `loop`, `thread` and `process`; `server` is its URL without a password.
    """

    id: str
    host: str
    pid: int
    version: str
    tools: tuple[str, ...]
    kinds: tuple[str, ...]
    queues: tuple[str, ...]
    server: str


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that a worker has claimed.

    `retry` counts the pool's retries of the call, from 0; `retries_left` is how many more are
    allowed. `run_in` is `loop`, `thread` or `process`; `run_in` and `queue` are empty for a tool
    that this worker lacks. `trace`: the call's trace headers.
    """

    call_id: str
    tool: str
    session: str | None
    turn: str | None
    key: str
    attempt: int
    retry: int
    retries_left: int
    queue: str
    run_in: str
    trace: Mapping[str, str] | None


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message of a call: its number of calls, its size, and the seconds since it was sent."""

    calls: int
    bytes: int
    seconds: float


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a worker answered a call.

    `code` is None for a success. `at` is Unix time; `seconds` is the time since the tool was
    entered, 0 if it was not entered.
    """

    code: Code | None
    executed: Executed
    at: float
    seconds: float
    failure: Failure | None


class Blocked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool that has blocked the event loop for `seconds` so far.

    `tool` is None if unknown; `stack` is that of the loop's thread. `is_fatal`: the worker ends at
    once, because nothing else stops the tool.
    """

    tool: str | None
    seconds: float
    stack: str
    is_fatal: bool


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks or threads (`what`) tools left running; `stack` is the most common one."""

    what: str
    count: int
    stack: str


class Unresolved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A secret that could not be resolved: its name, tool and `source`.

    `is_missing`: the operator has not configured it; otherwise resolving failed. `why` is the
    pool's description. `faults` are the exceptions; `text`, their message, is None unless the
    setting `error_texts` allows it.
    """

    name: str
    tool: str
    source: str
    why: str
    is_missing: bool = False
    seconds: float
    faults: tuple[ExceptionReport, ...]
    text: str | None


class WorkerPulse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker, about four times a second while its event loop turns.

    `lag` is the delay of the loop in seconds. `running` counts calls, `stuck` the slots held by
    calls that do not stop, `dropped` the notifications that were dropped because observers were too
    slow.
    """

    lag: float
    running: int
    stuck: int
    dropped: int


class WorkerObserver(BaseObserver):
    """Base class of worker observers: each method is a moment. Unused methods cost nothing.

    Each worker process has its own instance.
    """

    def ready(self, worker: WorkerFacts) -> None:
        """The worker is connected and accepts calls."""

    def draining(self, worker: WorkerFacts) -> None:
        """The worker accepts no new calls and lets running calls end."""

    def stopped(self, worker: WorkerFacts) -> None:
        """The last call has ended, and the worker exits."""

    def started(self, call: RunFacts, received: Received) -> None:
        """A call is passed to the event loop, a thread or a child process.

        If `is_quick` is true, an observer is called in the context in which the tool runs, except
        for child processes.
        """

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """A call was answered. `executed` tells whether its tool was entered."""

    def failed(self, call: RunFacts, ended: RunEnded) -> None:
        """A call was answered with a failure, just after `ended`."""

    def content(self, call: RunFacts, arguments: dict[str, Any], data: Any) -> None:
        """A tool's arguments and result, just before `ended`.

        This is the only moment with values, for observers whose operator has asked for them.
        """

    def released(self, call: RunFacts) -> None:
        """A claimed call was given back, to be run by another worker."""

    def unclaimed(self, call: RunFacts) -> None:
        """A call was given back unclaimed: this worker lacks its tool or this version of it, a kill
        switch denies it, or a limit is reached."""

    def refused(self, reason: str) -> None:
        """A message was dropped: it is foreign, damaged or too late."""

    def blocked(self, blocked: Blocked) -> None:
        """A tool blocks the event loop: nothing else runs in this worker."""

    def left_behind(self, left: LeftBehind) -> None:
        """Tools left 100 tasks or threads running, or twice as many as last reported."""

    def unresolved(self, unresolved: Unresolved) -> None:
        """A secret could not be resolved or is not configured: a call was not run."""

    def worn_out(self, worker: WorkerFacts) -> None:
        """Stuck calls hold half the slots of a kind: the worker will be replaced."""

    def server_lost(self, reason: str) -> None:
        """The server does not confirm the lease: running calls continue, and few new ones start."""

    def server_back(self, seconds: float) -> None:
        """The server confirms the lease again, after this many seconds."""

    def pool_alive(self, pool: str) -> None:
        """Called once a minute, in one worker of the pool with this key prefix."""

    def worker_down(self, worker: str, reason: str) -> None:
        """Another worker of this supervisor exited by itself or was killed."""

    def worker_stalled(self, worker: str, reason: str) -> None:
        """Another worker of this supervisor was ended or replaced for this reason."""

    def pulse(self, pulse: WorkerPulse) -> None:
        """The worker's event loop turns."""


class WorkerObservers(ObserverDispatch):
    """The observers of one worker."""

    def __init__(
        self,
        hosts: Sequence[WorkerObserver] = (),
        *,
        settings: Settings,
        tools: Mapping[str, "Tool"],
    ) -> None:
        super().__init__(WorkerObserver, hosts)
        self._with_texts = settings.error_texts
        self._names = RedisKeys(settings.key_prefix)
        self._tools = tools
        self._known: dict[str, tuple[str, str, int]] = {}

    def run(self, moment: str, call: CallMessage) -> None:
        """Report a moment of a claimed call."""
        if self.listeners[moment]:
            self.notify(moment, self._facts(call))

    def started(self, call: CallMessage, batch: Batch, size: int, now: float) -> RunFacts | None:
        """Report that a call of this batch, of `size` bytes, starts `now` by the server's clock.

        Returns the facts for the call's end.
        """
        if not self.listeners["started"]:
            return None
        received = Received(
            bytes=size,
            calls=len(batch.calls),
            seconds=max(0.0, now - batch.sent_at) if batch.sent_at else 0.0,
        )
        facts = self._facts(call)
        self.notify("started", facts, received)
        return facts

    def pulse(self, *, lag: float, running: int, stuck: int) -> None:
        """Report the worker's state."""
        pulse = WorkerPulse(lag=max(0.0, lag), running=running, stuck=stuck, dropped=self.dropped)
        self.notify("pulse", pulse)

    def ended(
        self, call: CallMessage, outcome: Outcome, seconds: float, facts: RunFacts | None = None
    ) -> None:
        """Report a call's outcome, `seconds` after its tool was entered."""
        if self.listeners["content"]:
            data = outcome.data
            data = encoding.decode(bytes(data)) if isinstance(data, msgspec.Raw) else data
            self.notify("content", facts or self._facts(call), call.arguments, data)
        is_failure = outcome.code is not None and self.listeners["failed"]
        if self.listeners["ended"] or is_failure:
            facts = facts or self._facts(call)
            ended = RunEnded(
                code=outcome.code,
                executed=outcome.executed,
                at=time.time(),
                seconds=seconds,
                failure=failure_of(outcome, call.arguments, with_text=self._with_texts),
            )
            self.notify("ended", facts, ended)
            if is_failure:
                self.notify("failed", facts, ended)

    def _facts(self, call: CallMessage) -> RunFacts:
        queue, run_in, retries = self._known.get(call.tool) or self._look_up(call.tool)
        return RunFacts(
            call_id=call.id,
            tool=call.tool,
            session=call.session,
            turn=call.turn,
            key=call.key,
            attempt=call.attempt,
            retry=max(0, retries - call.retries),
            retries_left=call.retries,
            queue=queue,
            run_in=run_in,
            trace=call.trace,
        )

    def _look_up(self, name: str) -> tuple[str, str, int]:
        """A tool's queue, its `run_in`, and its number of retries."""
        tool = self._tools.get(name)
        if tool is None:
            return "", "", 0
        spec = tool.spec
        queue = self._names.queue(spec.queue, spec.run_in)
        known = (queue, spec.run_in.value, spec.retries if spec.rerunnable else 0)
        self._known[name] = known
        return known


def load(sources: Iterable[str]) -> list[WorkerObserver]:
    """Load the observers at `module:name`: instances, or callables that create one.

    Raises `Misconfigured` with the reason.
    """
    return [_load(source) for source in sources]


def _load(source: str) -> WorkerObserver:
    import_from_here()
    found = loaded("the observer", source)
    if not isinstance(found, WorkerObserver) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise Misconfigured(
                f"the observer {source} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, WorkerObserver):
        raise Misconfigured(
            f"the observer {source} is {type(found).__name__}, not an observer: derive its class "
            "from toolpool.WorkerObserver"
        )
    return found
