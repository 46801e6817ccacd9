"""What observers are told of a call, on both sides, where a test does not say otherwise."""

from typing import Any

from toolpool.contract.exception_report import Failure
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.observer import CallFacts, Ended
from toolpool.workers.worker_observer import RunEnded, RunFacts

_CALL: dict[str, Any] = {
    "call_id": "c", "tool": "echo", "session": "s", "turn": "m", "key": "k", "queue": "q.loop",
    "attempt": 1, "retry": 0, "retries_left": 0, "trace": None,
}  # fmt: skip


def call_facts(**fields: Any) -> CallFacts:
    """A call, as a dispatcher tells of it."""
    return CallFacts(**(_CALL | {"bytes": 2, "provider": "bare"} | fields))


def run_facts(**fields: Any) -> RunFacts:
    """A call, as a worker tells of it."""
    return RunFacts(**(_CALL | {"run_in": "loop"} | fields))


def call_ended(code: Code | None = None, **fields: Any) -> Ended:
    """How it ended, for a dispatcher."""
    known: dict[str, Any] = {
        "executed": Executed.YES, "worker": "w", "at": 1_700_000_000.0, "seconds": 0.5,
        "run_seconds": 0.1, "queued_seconds": 0.01, "is_first": True, "failure": None,
    }  # fmt: skip
    return Ended(code=code, **(known | fields))


def run_ended(code: Code | None = None, **fields: Any) -> RunEnded:
    """How it ended, for a worker."""
    failure = Failure(text=None, faults=(), digest="", arguments_bytes=2) if code else None
    known: dict[str, Any] = {
        "executed": Executed.YES, "at": 1_700_000_000.0, "seconds": 0.5, "failure": failure
    }  # fmt: skip
    return RunEnded(code=code, **(known | fields))
