"""The workers' seam for observers: what happens in a worker, and the facts of each moment.

`toolpool.contract.observer_dispatch` says how they are told. Facts hold no argument and no result.
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
from toolpool.contract.observer_dispatch import Listening, Tellers
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.workers.running.process_role import import_from_here

if TYPE_CHECKING:
    from toolpool.workers.tool import Tool


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which worker it is, and what it serves. `pid` is that of its process.

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
    """Which call a worker has claimed.

    `retry` counts the pool's own retries of it, from 0; `retries_left` is how many more it may
    make. `run_in` is `loop`,
    `thread` or `process`; it and the `queue` are empty for a tool that this worker lacks. `trace`:
    the headers of the trace that it belongs to.
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
    """The message that a call came in: its calls, its size, and how long ago it was sent."""

    calls: int
    bytes: int
    seconds: float


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a worker answered a call: `code` is None where it went well.

    `at` is Unix time; `seconds` since it was given to what runs its tool; 0 where it never was.
    """

    code: Code | None
    executed: Executed
    at: float
    seconds: float
    failure: Failure | None


class Blocked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool that blocks the event loop, `seconds` so far.

    `tool` is None where it is not known; `stack` is where the loop's thread is. `is_fatal`: the
    worker ends at once, as nothing else stops it.
    """

    tool: str | None
    seconds: float
    stack: str
    is_fatal: bool


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many tasks or threads (`what`) tools have left running; `stack` is the most common."""

    what: str
    count: int
    stack: str


class Unresolved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A secret that a call could not be given: its name, for which tool, and of which `source`.

    `is_missing`: the operator has not set it up; otherwise it could not be resolved. `why` is in
    words of the pool's. `faults` are what was raised; `text`, what that says, is None
    unless the setting `error_texts` allows it.
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
    """How a worker stands; told about four times a second, while its event loop turns.

    `lag` is how many seconds the loop came too late to it. `running` counts calls, `stuck` the
    slots held by what does not end, `dropped` the moments that observers were too slow for.
    """

    lag: float
    running: int
    stuck: int
    dropped: int


class WorkerObserver(Listening):
    """To be derived from: each method is a moment. What is not overridden costs nothing.

    An instance lives in each worker process.
    """

    def ready(self, worker: WorkerFacts) -> None:
        """This worker is in touch with the server, and takes calls."""

    def draining(self, worker: WorkerFacts) -> None:
        """It takes nothing new, and lets what runs end."""

    def stopped(self, worker: WorkerFacts) -> None:
        """Its last call has ended, and it exits."""

    def started(self, call: RunFacts, received: Received) -> None:
        """A call is given to what runs its tool: the event loop, a thread, a child process.

        A quick observer that does not want it told together is told in the context that the tool
        runs in, but for child processes.
        """

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """A call was answered, entered or not: `executed` says it."""

    def content(self, call: RunFacts, arguments: dict[str, Any], data: Any) -> None:
        """What a tool was given and returned, just before its end is told.

        The one moment with values in it: for an observer whose operator has asked for them.
        """

    def released(self, call: RunFacts) -> None:
        """A claimed call was given back, to be run by another worker."""

    def passed(self, call: RunFacts) -> None:
        """A call was passed on: this worker lacks its tool, or the version of it."""

    def refused(self, reason: str) -> None:
        """A message was dropped: it is not one of ours, not whole, or too late."""

    def blocked(self, blocked: Blocked) -> None:
        """A tool blocks the event loop: nothing else of this worker goes on."""

    def left_behind(self, left: LeftBehind) -> None:
        """Tools left 100 tasks or threads running, or twice as many as last reported."""

    def unresolved(self, unresolved: Unresolved) -> None:
        """A secret could not be resolved, or the operator has not set it up: a call was not run."""

    def worn_out(self, worker: WorkerFacts) -> None:
        """Half its slots of a kind are held by calls that do not end: it will be replaced."""

    def server_lost(self, reason: str) -> None:
        """The server does not confirm the lease: what runs goes on, and little starts."""

    def server_back(self, seconds: float) -> None:
        """The server confirms the lease again, after so long."""

    def pool_alive(self, pool: str) -> None:
        """Told once a minute, in one worker of the pool that has this key prefix."""

    def down(self, worker: str, reason: str) -> None:
        """Another worker of this supervisor, here before, ended by itself or was killed."""

    def stalled(self, worker: str, reason: str) -> None:
        """Another worker of this supervisor, here before, was ended or replaced for this reason."""

    def pulse(self, pulse: WorkerPulse) -> None:
        """Its event loop turns."""


_OF_CALLS = ("started", "released", "passed", "ended")


class WorkerObservers(Tellers):
    """Whoever listens to one worker."""

    def __init__(
        self,
        hosts: Sequence[WorkerObserver] = (),
        *,
        settings: Settings,
        tools: Mapping[str, "Tool"],
    ) -> None:
        super().__init__(WorkerObserver, hosts, together=_OF_CALLS)
        self._with_texts = settings.error_texts
        self._names = RedisKeys(settings.key_prefix)
        self._tools = tools
        self._known: dict[str, tuple[str, str, int]] = {}

    def run(self, moment: str, call: CallMessage) -> None:
        """Tell a moment in the life of a claimed call."""
        if self._listeners[moment]:
            self.tell(moment, self._facts(call))

    def started(self, call: CallMessage, batch: Batch, size: int, now: float) -> RunFacts | None:
        """Tell that a call of this batch, of `size` bytes, is run `now` by the server's clock.

        Answers with the facts that were told, for its end.
        """
        if not self._listeners["started"]:
            return None
        received = Received(
            bytes=size,
            calls=len(batch.calls),
            seconds=max(0.0, now - batch.sent_at) if batch.sent_at else 0.0,
        )
        facts = self._facts(call)
        self.tell("started", facts, received)
        return facts

    def pulse(self, *, lag: float, running: int, stuck: int) -> None:
        """Tell how the worker stands."""
        pulse = WorkerPulse(lag=max(0.0, lag), running=running, stuck=stuck, dropped=self.dropped)
        self.tell("pulse", pulse)

    def ended(
        self, call: CallMessage, outcome: Outcome, seconds: float, facts: RunFacts | None = None
    ) -> None:
        """Tell how a call was answered, so many seconds after it was given to what runs it."""
        if self._listeners["content"]:
            data = outcome.data
            data = encoding.decode(bytes(data)) if isinstance(data, msgspec.Raw) else data
            self.tell("content", facts or self._facts(call), call.arguments, data)
        if self._listeners["ended"]:
            ended = RunEnded(
                code=outcome.code,
                executed=outcome.executed,
                at=time.time(),
                seconds=seconds,
                failure=failure_of(outcome, call.arguments, with_text=self._with_texts),
            )
            self.tell("ended", facts or self._facts(call), ended)

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
        """A tool's queue, what it runs in, and how often it may be retried."""
        tool = self._tools.get(name)
        if tool is None:
            return "", "", 0
        spec = tool.spec
        queue = self._names.queue(spec.queue, spec.run_in)
        known = (queue, spec.run_in.value, spec.retries if spec.rerunnable else 0)
        self._known[name] = known
        return known


def load(sources: Iterable[str]) -> list[WorkerObserver]:
    """The observers that `module:name` stands for: an instance, or what makes one when called.

    Raises `Misconfigured`, saying what is wrong with it.
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
