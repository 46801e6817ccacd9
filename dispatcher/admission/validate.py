"""Decides whether a call is accepted, before anything is queued."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.ledger.failure_memory import FailureHistory
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.schema import suggestions
from toolpool.contract.schema.problem import Problem
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.admission.catalog import Offer
from toolpool.dispatcher.admission.repair import repair
from toolpool.dispatcher.analytics import fields_of
from toolpool.dispatcher.classifier import rejected
from toolpool.dispatcher.formats import offered_name
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Wording

log = logs.logger("validate")

Accepted = tuple[ToolCall, Offer]
"""The call to queue, and its tool."""

_NO_ALIASES: Mapping[str, str] = {}


def validate(
    call: ToolCall,
    offers: Mapping[str, Offer],
    allowed: Collection[str] | None,
    wording: Wording,
    *,
    aliases: Mapping[str, str] = _NO_ALIASES,
    format: str = "bare",
    repairs: bool = True,
    seen: FailureHistory | None = None,
) -> Accepted | ToolResult:
    """The call to queue, or the result that tells the model what to correct.

    `allowed` are the tool names offered to this caller; None for all. `aliases` map the names that
    a provider of this `format` was offered to the tools' own. Without `repairs` no arguments are
    repaired, even if the tools allow it. `seen` is the failure history of a call that the
    loop guard refuses. If the call is invalid as well, the answer names its errors.
    """
    if call.flaw is not None and call.flaw.code is not Code.UNPARSEABLE:
        return _unusable(call, call.flaw.code, texts.flawed(call.flaw, wording), wording, seen)
    name = aliases.get(call.name) if call.name not in offers else None
    if name is not None and (allowed is None or name in allowed):
        call = msgspec.structs.replace(call, name=name)
    offer = offers.get(call.name) if allowed is None or call.name in allowed else None
    if offer is None and (call.name or call.flaw is None or call.flaw.reason == "no_name"):
        names = _shown(call.name, offers, allowed, format)
        if call.name:
            text = _not_offered(call, names, wording)
            return _unusable(call, Code.UNKNOWN_TOOL, text, wording, seen)
        return _unusable(call, Code.UNPARSEABLE, texts.nameless(names, wording), wording, seen)
    if call.flaw is not None or offer is None:
        assert call.flaw is not None
        return _unusable(call, call.flaw.code, texts.flawed(call.flaw, wording), wording, seen)
    if call.text is not None:
        if offer.spec.text_input is None:
            flaw = Flaw(Code.UNPARSEABLE, "free_text", {"name": call.name})
            return _unusable(call, flaw.code, texts.flawed(flaw, wording), wording, seen)
        call = msgspec.structs.replace(call, arguments={offer.spec.text_input: call.text})
    if seen is not None:
        return rejected(call, Code.LOOP, texts.loop(call.name, seen, wording), wording)
    try:
        problems = () if offer.validator is None else offer.validator.problems(call.arguments)
        if not problems:
            return call, offer
        return _repaired_or_rejected(call, offer, problems, wording, repairs=repairs)
    except Exception:  # noqa: BLE001 - it is logged, and never raised for what a model sent
        return _unchecked(call, wording)


def _not_offered(call: ToolCall, names: Sequence[str], wording: Wording) -> str:
    """The rejection of an unknown tool, or of an unsupported built-in of the provider."""
    kind = (call.origin or {}).get("built_in")
    if isinstance(kind, str):
        return texts.unsupported(kind, call.name, names, wording)
    return texts.unknown_tool(call.name, names, wording)


def _shown(
    wanted: str, offers: Mapping[str, Offer], allowed: Collection[str] | None, format: str
) -> list[str]:
    """The names of the tools as the caller was offered them.

    The pool's own are left out unless one of them may be what was `wanted`.
    """
    shown = [name for name in offers if allowed is None or name in allowed]
    if suggestions.closest(wanted, tuple(task_tools.SPECS)) is None:
        shown = [name for name in shown if not task_tools.is_own(offers[name].spec)]
    return sorted(offered_name(name, format) for name in shown)


def _unchecked(call: ToolCall, wording: Wording) -> ToolResult:
    """The rejection of a call whose check failed with an exception."""
    if not encoding.is_json(call.arguments):  # keys of mixed types, from a host
        flaw = Flaw(Code.UNPARSEABLE, "no_json_value")
        return rejected(call, flaw.code, texts.flawed(flaw, wording), wording)
    log.exception("arguments_not_checked tool=%s call=%s", call.name, call.id)
    return rejected(call, Code.INTERNAL, wording.words.not_checked, wording)


def _unusable(
    call: ToolCall, code: Code, text: str, wording: Wording, seen: FailureHistory | None
) -> ToolResult:
    """The rejection of a call that cannot run, with a stop notice if the call keeps recurring."""
    if seen is None:
        return rejected(call, code, text, wording)
    return rejected(call, Code.LOOP, text + texts.again(seen, wording), wording)


def _repaired_or_rejected(
    call: ToolCall,
    offer: Offer,
    problems: Sequence[Problem],
    wording: Wording,
    *,
    repairs: bool,
) -> Accepted | ToolResult:
    """Repair or reject a call whose arguments break the schema.

    Arguments that the host injects are not mentioned: the model cannot correct them.
    """
    assert call.arguments is not None and offer.validator is not None
    if repairs and offer.spec.repair:
        repaired = repair(call.arguments, problems, offer.validator)
        if repaired is not None:
            arguments, done = repaired
            note = texts.repaired(done, wording)
            note = f"{call.note} {note}" if call.note else note
            sent = call.arguments
            return msgspec.structs.replace(
                call, arguments=arguments, as_asked=sent, note=note
            ), offer
    injected = offer.spec.injected
    told = [_hiding(injected, p) for p in problems if not (p.path and p.path[0] in injected)]
    if injected and not told:
        return call, offer
    validator = offer.validator
    explained = call.arguments if validator.explains_all(call.arguments) else None
    text = texts.invalid_arguments(told, wording, validator.shapes, injected, explained)
    result = rejected(call, Code.INVALID_ARGUMENTS, text, wording)
    return msgspec.structs.replace(result, details={"fields": fields_of(told)})


def _hiding(injected: Collection[str], problem: Problem) -> Problem:
    """A problem that does not list the injected arguments among the tool's fields."""
    if not injected or problem.kind != "additionalProperties" or len(problem.path) != 1:
        return problem
    return msgspec.structs.replace(
        problem,
        allowed=tuple(name for name in problem.allowed if name not in injected),
        closest=None if problem.closest in injected else problem.closest,
    )
