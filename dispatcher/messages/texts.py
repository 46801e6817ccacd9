"""Builds every sentence for the model.

The texts are in `locales`, one file per language, which also has the four styles of a rejection. No
sentence contains a rejected value: it may be a secret.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolpool.contract.call import Flaw
from toolpool.contract.credentials import MissingReason, missing_secret_in
from toolpool.contract.ledger.failure_memory import FailureHistory
from toolpool.contract.outcome import (
    ARGUMENTS_DIFFER,
    BLOCKED_LOOP,
    NOT_COMPARABLE,
    NOT_JUDGED,
    Code,
    ErrorType,
    Executed,
    Outcome,
)
from toolpool.contract.schema import suggestions
from toolpool.contract.schema.json_values import escaped
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.shape import Shapes
from toolpool.dispatcher import outcomes
from toolpool.dispatcher.messages import argument_paths
from toolpool.dispatcher.messages.locales import Locale
from toolpool.dispatcher.messages.problem_lines import lines_of
from toolpool.dispatcher.messages.rejection import Rejection
from toolpool.dispatcher.messages.wording import PLAIN, Wording

_LONGEST_NAME = 64
_ABOUT_TOOLS = 300
_LONGEST_OF_A_RESULT = 100
_SPECIAL_TOKEN = re.compile(r"<[|｜/]|<\w+>|\[/?[A-Z_]+\]")
_FIRST_TOKENS = re.compile(r"(?:<[|｜][^<>]*[|｜]>|</?\w+>|\[/?[A-Z_]+\]|\s)+")
_NAMESPACE = re.compile(r".*(?:\.|:|/|__)")


def invalid_arguments(
    problems: Sequence[Problem],
    wording: Wording = PLAIN,
    shapes: Shapes | None = None,
    hidden: Collection[str] = (),
    arguments: Any = None,
) -> str:
    """What is wrong with the arguments, with the wanted shape if needed.

    `shapes` are those of the tool's schema, `hidden` the fields that the host fills in. If space is
    short, a shape leaves out the fields that are correct in `arguments`; None if not every error
    was found.
    """
    return Rejection(problems, wording, shapes, hidden, arguments).text()


def refused_by_check(message: str, wording: Wording = PLAIN) -> str:
    """The error of a tool's own check."""
    return wording.words.refused_by_check.format(message=message)


def unknown_tool(name: str, offered: Sequence[str], wording: Wording = PLAIN) -> str:
    """`Tool 'x' not found`, the likely meaning, and the offered tools, the likeliest first."""
    words = wording.words
    text = words.unknown_tool.format(name=argument_paths.cut_at(escaped(name[:500]), _LONGEST_NAME))
    meant = without_special_tokens(name)
    bare = _NAMESPACE.sub("", meant)
    near = next((each for each in (meant, bare) if each in offered), None)
    near = near or suggestions.closest(meant, offered)
    if near is not None:
        text += words.unknown_tool_meant.format(closest=near)
    return text + _tools(suggestions.by_fit(meant, offered), wording, _ABOUT_TOOLS - len(text))


def without_special_tokens(name: str) -> str:
    """The name before or behind a special token of the model:

    `bash<|channel|>x`, `<|tool|>bash`.
    """
    first = _FIRST_TOKENS.match(name)
    rest = name[first.end() :] if first else name
    token = _SPECIAL_TOKEN.search(rest)
    return (rest[: token.start()] if token else rest).strip() or name


def _tools(offered: Sequence[str], wording: Wording, room: int) -> str:
    """As many names as there is room for, and the number of the others."""
    words = wording.words
    if not offered:
        return words.no_tools
    for count in range(min(len(offered), wording.caps.names), 0, -1):
        text = words.tools.format(names=", ".join(offered[:count]))
        if count < len(offered):
            text += words.names_more.format(count=len(offered) - count)
        text += words.full_stop
        if len(text) <= room:
            break
    return text


def unsupported(kind: str, name: str, offered: Sequence[str], wording: Wording = PLAIN) -> str:
    """A call of a provider's built-in `kind` without a tool; `name` would serve it."""
    text = wording.words.unsupported.format(kind=kind, name=name)
    return text + _tools(offered, wording, _ABOUT_TOOLS - len(text))


def nameless(offered: Sequence[str], wording: Wording = PLAIN) -> str:
    """A call without a tool name, and the offered tools."""
    text = wording.words.nameless
    return text + _tools(offered, wording, _ABOUT_TOOLS - len(text))


def flawed(flaw: Flaw, wording: Wording = PLAIN) -> str:
    """A call that could not be read."""
    words = wording.words
    reason, _, why = flaw.reason.partition(".")
    blanks = {**flaw.blanks, "why": words.json_breaks[why]} if why else flaw.blanks
    templates = {
        Code.TRUNCATED: words.truncated,
        Code.TOO_LARGE: words.too_large,
        Code.DENIED: words.refused,
    }
    blanks = {key: escaped(str(value)) for key, value in blanks.items()}
    template = templates.get(flaw.code, words.unparseable)
    return template.format(error=words.flaws[reason].format(**blanks))


def made_up_id(id: str, wording: Wording = PLAIN) -> str:
    """A call without an id, or with one that cannot be sent back."""
    return wording.words.made_up_id.format(id=id)


def text_repaired(what: Sequence[str], wording: Wording = PLAIN) -> str:
    """Says how text that was not strict JSON was repaired."""
    words = wording.words
    told = words.listed.join(words.text_repairs[each] for each in what)
    return words.text_repaired.format(what=told)


def too_many_calls(cap: int, wording: Wording = PLAIN) -> str:
    """A call beyond the limit of one turn."""
    return wording.words.too_many_calls.format(cap=cap)


def no_response(reason: str, blanks: Mapping[str, str], wording: Wording = PLAIN) -> str:
    """A response without anything to answer."""
    words = wording.words
    return words.no_response.format(reason=words.unreadable[reason].format(**blanks))


def loop(name: str, seen: FailureHistory, wording: Wording = PLAIN) -> str:
    """A call that keeps failing in the same way."""
    template = wording.words.loop_in_turns if seen.alternates else wording.words.loop
    return template.format(name=name, count=seen.failures)


def again(seen: FailureHistory, wording: Wording = PLAIN) -> str:
    """The addition to a rejection that keeps recurring."""
    template = wording.words.again_in_turns if seen.alternates else wording.words.again
    return template.format(count=seen.failures)


def repaired(repairs: Sequence[Problem], wording: Wording = PLAIN) -> str:
    """The repairs of the arguments before the call."""
    words = wording.words
    told = [
        words.repairs[repair.kind].format(
            path=argument_paths.one(repair.path), type=repair.expected
        )
        for repair in repairs[: wording.caps.errors]
    ]
    if len(repairs) > len(told):
        told.append(words.more.format(count=len(repairs) - len(told)))
    return words.repaired.format(what="; ".join(told))


def cut(size: int, handle: str | None, wording: Wording = PLAIN) -> str:
    """An output that was cut in the middle."""
    words = wording.words
    how = words.cut_less if handle is None else words.cut_pages.format(handle=handle)
    return f"{words.cut.format(size=f'{size:,}')} {how}"


def still_running(handle: str | None, wording: Wording = PLAIN) -> str:
    """A call that goes on in the background; `handle` is None if task_result is not offered."""
    words = wording.words
    return words.still_running + (words.ask_for_result.format(handle=handle) if handle else "")


def awaits_approval(handle: str | None, wording: Wording = PLAIN) -> str:
    """A call that waits for a person's approval; `handle` is None if task_result is not offered."""
    words = wording.words
    ask = words.ask_for_result_later.format(handle=handle) if handle else ""
    return words.awaits_approval + ask


def denied_by(who: str, reason: str, wording: Wording = PLAIN) -> str:
    """Why a call that waited for approval is not run."""
    words = wording.words
    if not reason:
        return words.denied_by.format(who=who)
    return words.denied_by_because.format(who=who, reason=reason)


def rewritten(names: Sequence[str], note: str, wording: Wording = PLAIN) -> str:
    """The names of the arguments that a policy changed."""
    told = wording.words.rewritten.format(names=", ".join(sorted(names)))
    return f"{told} {note}" if note else told


def unseen_end(name: str, wording: Wording = PLAIN) -> str:
    """A call that ran although the write before it may still run."""
    return wording.words.unseen_end.format(name=name)


def shared(how: str, age: float, wording: Wording = PLAIN) -> str | None:
    """Says that a result is shared with an equal call, and its age; None if it is not shared."""
    if how == "cached":
        return wording.words.cached.format(seconds=f"{age:.1f}" if age < _SOON else f"{age:.0f}")
    return wording.words.shared if how else None


def no_such_handle(wording: Wording = PLAIN, *, lists_tasks: bool = True) -> str:
    """The one answer for an unknown, expired or foreign handle."""
    words = wording.words
    return words.no_such_handle + (words.list_tasks if lists_tasks else "")


def no_such_page(page: int, pages: int, wording: Wording = PLAIN) -> str:
    """A page beyond the end of a long output."""
    return wording.words.no_such_page.format(page=page, pages=pages)


def more_tasks(count: int, wording: Wording = PLAIN) -> str:
    """Says how many background calls a list leaves out."""
    return wording.words.more_tasks.format(count=count)


def tasks_of_no_session(wording: Wording = PLAIN) -> str:
    """Says why a call without a session lists nothing."""
    return wording.words.tasks_of_no_session


def _lacking(name: str, outcome: Outcome, words: Locale) -> str:
    """Says that a call lacks a secret, and what to do; empty if it failed otherwise."""
    credential = missing_secret_in(outcome.details)
    if credential is None or credential.lack is MissingReason.UNAVAILABLE:
        return ""
    not_run = f" {words.not_run}" if outcome.executed is Executed.NO else ""
    if credential.lack is MissingReason.MISSING:
        return words.no_credential.format(name=name, credential=credential.name, not_run=not_run)
    template = words.needs_sign_in_at if credential.url else words.needs_sign_in
    return template.format(name=name, url=credential.url, not_run=not_run)


def _raised(outcome: Outcome, words: Locale) -> str:
    """The class of a tool's exception, and its text or the id under which operators find it."""
    details = outcome.details or {}
    kind = str(details.get("exception", "")).rpartition(".")[2]
    if "error_id" in details:
        return words.masked.format(kind=kind or words.unnamed_error, id=details["error_id"])
    if not kind or kind == outcome.error:
        return outcome.error
    return words.raised_as.format(kind=kind, error=outcome.error)


_SOON = 10.0
"""Ages below this many seconds have a decimal."""
DENIALS = (outcomes.NOBODY_APPROVED, outcomes.CHANGED_SINCE, "not_approved")
"""The reasons of denials whose text comes from toolpool and not from a person."""


def failed(
    name: str,
    outcome: Outcome,
    *,
    timeout: float,
    rerunnable: bool = False,
    wording: Wording = PLAIN,
) -> str:
    """The failure of an accepted call.

    The model is asked to check for effects unless the tool is `rerunnable`, so that a second run is
    harmless.
    """
    code, error, words = outcome.code, outcome.error, wording.words
    if outcome.executed is Executed.NO:
        whether = words.not_run
    else:
        whether = "" if rerunnable else words.may_have_run
    if code is not None and code.error_type is ErrorType.VALIDATION:
        return _rejected(outcome, wording)
    if code is Code.REPORTED:
        return _lacking(name, outcome, words) or error
    if code is Code.BAD_RESULT and outcome.problems:
        return words.bad_result.format(name=name, problems=_listed_problems(outcome, wording))
    if code is Code.TIMEOUT and error == BLOCKED_LOOP:
        return words.blocked_loop.format(name=name, whether=whether)
    if code is Code.TIMEOUT and outcome.silence:
        silence = f"{outcome.silence:g}"
        return words.fell_silent.format(name=name, silence=silence, whether=whether).rstrip()
    if code is Code.TIMEOUT:
        stopped = words.and_was_stopped if outcome.worker else words.without_word
        end = words.but.format(error=error) if error else stopped
        end = words.but_goes_on if error == outcomes.OTHERS_WAIT else end
        limit = f"{timeout:g}"
        return words.timed_out.format(name=name, timeout=limit, end=end, whether=whether).rstrip()
    templates = {
        Code.RAISED: words.raised,
        Code.BAD_RESULT: words.raised,
        Code.CRASHED: words.crashed,
        Code.CANCELLED: words.cancelled,
        Code.DENIED: words.denied if outcome.executed is Executed.NO else words.no_result,
    }
    if code is Code.DENIED:
        error = _denial(outcome, words)
    elif code is Code.RAISED or "error_id" in (outcome.details or {}):
        error = _raised(outcome, words)
    elif code not in templates:
        plain = words.reasons.get((code or Code.INTERNAL).value, error or words.internal)
        error = _over_rate(error, words) or words.reasons.get(error, plain)
    template = templates.get(code or Code.INTERNAL, words.no_result)
    return template.format(name=name, error=error, whether=whether).rstrip()


def _rejected(outcome: Outcome, wording: Wording) -> str:
    """Why the arguments were rejected, by a worker or earlier by a dispatcher."""
    if outcome.problems:
        return invalid_arguments(outcome.problems, wording)
    if outcome.worker:
        return refused_by_check(outcome.error, wording)
    return outcome.error  # the dispatcher's whole text


def _denial(outcome: Outcome, words: Locale) -> str:
    """Why a call was denied, to follow "it was not run"."""
    if outcome.problems and outcome.error in (ARGUMENTS_DIFFER, NOT_COMPARABLE):
        fields = words.listed.join(
            argument_paths.several(problem.path for problem in outcome.problems)
        )
        is_known = outcome.error == ARGUMENTS_DIFFER
        template = words.arguments_differ if is_known else words.not_comparable
        return template.format(fields=argument_paths.cut_at(fields, _LONGEST_OF_A_RESULT))
    if outcome.error == NOT_JUDGED:
        return words.not_judged
    known = words.reasons if outcome.error in DENIALS else {}  # the rest are a person's own words
    return known.get(outcome.error, outcome.error).rstrip(" .。") or words.not_allowed


def _over_rate(reason: str, words: Locale) -> str | None:
    """The limit that a call exceeded; None for any other reason."""
    over, _, rest = reason.partition(" ")
    kind, _, rate = rest.partition(" ")
    most, _, unit = rate.partition("/")
    if over != outcomes.OVER_RATE or kind not in words.limited or unit not in words.windows:
        return None
    return words.limited[kind].format(most=most, window=words.windows[unit])


def _listed_problems(outcome: Outcome, wording: Wording) -> str:
    """The problems of a result, in one line."""
    lines = lines_of(outcome.problems, wording, are_shared=True)
    told = [line.within(_LONGEST_OF_A_RESULT) for line in lines[: wording.caps.errors]]
    more = sum(len(line.problems) for line in lines[len(told) :])
    return "; ".join([*told, wording.words.more.format(count=more)] if more else told)
