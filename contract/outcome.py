"""How a call can end: five error types, twenty codes, three answers to "did it run?"."""

from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract.schema.problem import Problem


class ErrorType(StrEnum):
    """What kind of failure a result reports."""

    VALIDATION = "validation"  # the call could not be accepted
    RUNTIME = "runtime"  # the tool raised or its process died
    LOGICAL = "logical"  # the tool reported a failure, or a secret is missing
    ABORTED = "aborted"  # timed out, cancelled or denied
    EXCEPTION = "exception"  # the pool failed, not the tool


class Code(StrEnum):
    """Every way a call can fail; the part before the dot is its `ErrorType`."""

    INVALID_ARGUMENTS = "validation.arguments"
    UNKNOWN_TOOL = "validation.unknown_tool"
    UNPARSEABLE = "validation.unparseable"
    TRUNCATED = "validation.truncated"  # cut off by the model's token limit
    LOOP = "validation.loop"  # the same failing call again
    TOO_LARGE = "validation.too_large"
    TOO_MANY_CALLS = "validation.too_many_calls"
    RAISED = "runtime.raised"
    CRASHED = "runtime.crashed"  # the tool's own process died: exit, signal, out of memory
    BAD_RESULT = "runtime.bad_result"  # not JSON, far too much, or not as declared
    REPORTED = "logical.reported"
    TIMEOUT = "aborted.timeout"
    CANCELLED = "aborted.cancelled"
    DENIED = "aborted.denied"  # by the policy, a person, a kill switch or the worker
    WORKER_LOST = "exception.worker_lost"
    EXPIRED = "exception.expired"  # not started or not approved in time, or its tool has changed
    QUEUE_UNREACHABLE = "exception.queue_unreachable"
    OVERLOADED = "exception.overloaded"
    CIRCUIT_OPEN = "exception.circuit_open"
    INTERNAL = "exception.internal"

    @property
    def error_type(self) -> ErrorType:
        """The type this code refines."""
        return ErrorType(self.value.partition(".")[0])


class Executed(StrEnum):
    """Whether the tool ran. Never guessed."""

    NO = "no"  # it did not run, and cannot run any more
    YES = "yes"  # it returned or raised
    UNKNOWN = "unknown"  # it started, or may have, and its end was not seen


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The end of one call, as a worker reports it or a dispatcher concludes it.

    `error` is the bare message; `dispatcher/messages` writes the sentence that the model reads.
    `details` (exception class, stack) are for operators; the model reads no more of them than which
    secret is missing. If `data` is truncated, the whole output of `output_bytes` is stored under
    the handle `output`. `still_running`: the worker ended the call, but cannot stop its tool.
    `silence`: the tool was stopped after this many seconds without a heartbeat. Times are in
    seconds.
    """

    ok: bool
    data: Any = None
    code: Code | None = None
    error: str = ""
    executed: Executed = Executed.YES
    problems: tuple[Problem, ...] = ()
    details: dict[str, Any] | None = None
    recommendations: tuple[str, ...] = ()
    retry_after: float | None = None
    note: str | None = None
    output: str | None = None
    output_bytes: int = 0
    still_running: bool = False
    silence: float = 0.0
    duration: float = 0.0
    worker: str = ""
    attempt: int = 1


def may_still_run(outcome: Outcome) -> bool:
    """Whether the tool may still run after its answer, so that order is not guaranteed."""
    if outcome.executed is not Executed.UNKNOWN:
        return False
    was_seen = outcome.worker and outcome.code is not Code.WORKER_LOST
    return outcome.still_running or not was_seen


def is_temporary_refusal(outcome: Outcome) -> bool:
    """Whether a call was refused temporarily: it did not run, and may run if dispatched again."""
    return outcome.executed is Executed.NO and outcome.retry_after is not None


BLOCKED_LOOP = "blocked_loop"
"""The reason of a call that blocked its worker's event loop until the worker was killed."""
ARGUMENTS_DIFFER = "arguments_differ"
"""The reason of a call whose arguments the tool would read differently than the policy did."""
NOT_COMPARABLE = "not_comparable"
"""The reason of a call with an argument whose type cannot be compared with the judged value."""
NOT_JUDGED = "not_judged"
"""The reason of a call without a policy's verdict, where the worker requires one."""
SWITCHED_OFF = "a kill switch denies the argument that the tool would receive"
"""The cause of a denial by a kill switch, which is not a fault: an operator set the switch."""


def failure(code: Code, error: str, executed: Executed, **fields: Any) -> Outcome:
    """An outcome with `ok=False`."""
    return Outcome(ok=False, code=code, error=error, executed=executed, **fields)
