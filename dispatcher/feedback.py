"""The only place that writes sentences for the model (R11, R23–R27).

No sentence holds a rejected value: it may be a secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contract.call import Flaw
from contract.outcome import Code, Executed, Outcome
from contract.problem import Problem
from contract.schema import closest

_SEND_AGAIN = "Send the call again with one JSON object, keys and strings in double quotes."


@dataclass(frozen=True, slots=True)
class Caps:
    """How much one rejection may say."""

    errors: int = 5
    characters: int = 100
    names: int = 30


def invalid_arguments(problems: Sequence[Problem], caps: Caps) -> str:
    """`Please rewrite the tool input with valid arguments. Errors: path: message; …`."""
    lines = [_cut(_line(problem), caps.characters) for problem in problems[: caps.errors]]
    more = len(problems) - len(lines)
    tail = f"; and {more} more" if more else ""
    return "Please rewrite the tool input with valid arguments. Errors: " + "; ".join(lines) + tail


def refused_by_check(message: str) -> str:
    """What a tool's own check objected to."""
    return f"Please rewrite the tool input with valid arguments. Errors: {message}"


def unknown_tool(name: str, offered: Sequence[str], caps: Caps) -> str:
    """`Tool 'x' not found`, what was probably meant, and what there is (R26)."""
    text = f"Tool '{_cut(name, 64)}' not found."
    near = closest(name, offered)
    if near is not None:
        text += f" Did you mean '{near}'?"
    if not offered:
        return text + " No tools are available."
    listed = ", ".join(offered[: caps.names])
    more = len(offered) - caps.names
    return text + f" Available tools: {listed}" + (f" and {more} more." if more > 0 else ".")


def flawed(flaw: Flaw) -> str:
    """A call that could not be read."""
    sentence = flaw.error[0].upper() + flaw.error[1:]
    if flaw.code is Code.TRUNCATED:
        return f"{sentence}. It was not run. Send it again, shorter, or in several smaller calls."
    if flaw.code is Code.TOO_LARGE:
        return f"{sentence}. Send less at once, or pass a reference to the data."
    return f"{sentence}. {_SEND_AGAIN}"


def too_many_calls(cap: int) -> str:
    """A call beyond the cap of one turn."""
    return (
        f"Only {cap} tool calls are run in one turn and this one came after them. "
        "It was not run. Send it again in a later turn."
    )


def no_response(reason: str) -> str:
    """A response that held nothing to answer (R14)."""
    return f"Please try again with valid format. The last response could not be read: {reason}."


def cut(size: int, handle: str | None) -> str:
    """An output that was cut in the middle (R37)."""
    told = f"The output was {size:,} bytes; the middle was left out."
    if handle is None:
        return f"{told} Ask for less at once."
    return (
        f"{told} All of it is kept for a while: read it in pages with task_result, the handle "
        f"'{handle}' and page 1, 2, …, or ask for less at once."
    )


def still_running(handle: str) -> str:
    """A call that goes on in the background (R35)."""
    return (
        f"It is still running in the background. Call task_result with the handle '{handle}' to "
        "get its result."
    )


def no_such_handle() -> str:
    """An unknown, expired or foreign handle: one and the same answer (R35)."""
    return "There is no background task with this handle. Use task_list to see what there is."


def failed(name: str, outcome: Outcome, *, timeout: float, caps: Caps) -> str:
    """What a call that was accepted came to."""
    code = outcome.code
    if code is Code.INVALID_ARGUMENTS:
        if outcome.problems:
            return invalid_arguments(outcome.problems, caps)
        return refused_by_check(outcome.error)
    if code in (Code.RAISED, Code.BAD_RESULT):
        return f"Error executing tool '{name}': {outcome.error}"
    if code is Code.CRASHED:
        return f"Error executing tool '{name}': {outcome.error}. {_MAY_HAVE_RUN}"
    if code is Code.REPORTED:
        return outcome.error
    if code is Code.TIMEOUT:
        end = f"but {outcome.error}" if outcome.error else "and was stopped"
        return f"Tool '{name}' timed out after {timeout:g} s {end}. {_MAY_HAVE_RUN}"
    if code is Code.CANCELLED:
        return f"Tool '{name}' was cancelled. {_whether_it_ran(outcome.executed)}"
    if code is Code.DENIED:
        return f"Tool '{name}' was not run: {outcome.error or 'it is not allowed here'}."
    pool = {
        Code.WORKER_LOST: "the worker that ran it was lost",
        Code.EXPIRED: "no worker started it in time",
        Code.QUEUE_UNREACHABLE: "the queue could not be reached",
        Code.OVERLOADED: "too many calls are waiting",
        Code.CIRCUIT_OPEN: "it has been failing and is switched off for a moment",
    }.get(code or Code.INTERNAL, outcome.error or "the tool system had an internal fault")
    return f"Tool '{name}' gave no result: {pool}. {_whether_it_ran(outcome.executed)}"


_MAY_HAVE_RUN = "It may have had effects: check before you repeat it."


def _whether_it_ran(executed: Executed) -> str:
    return "It was not run." if executed is Executed.NO else _MAY_HAVE_RUN


def _line(problem: Problem) -> str:
    message = _message(problem)
    path = ".".join(str(part) for part in problem.path)
    return f"{path}: {message}" if path else message


def _message(problem: Problem) -> str:
    if problem.kind == "required":
        return "Required" + (f", expected {problem.shape}" if problem.shape else "")
    if problem.kind == "additionalProperties":
        if problem.closest:
            return f"unknown field, did you mean '{problem.closest}'?"
        if problem.allowed:
            return f"unknown field; allowed: {', '.join(problem.allowed)}"
        return "unknown field, leave it out"
    if problem.allowed:
        hint = f"did you mean {problem.closest!r}? " if problem.closest else ""
        only = "expected " if len(problem.allowed) == 1 else "expected one of "
        return f"{hint}{only}{', '.join(problem.allowed)}"
    if problem.kind == "value":
        return problem.expected
    expected = problem.shape or problem.expected
    if problem.shape and problem.kind == "type":
        expected = problem.shape if problem.shape.startswith("array") else f"object {problem.shape}"
    got = f", got {problem.received}" if problem.kind in ("type", "anyOf", "oneOf") else ""
    return f"expected {expected}{got}"


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
