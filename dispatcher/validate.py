"""The one place that decides whether a call is accepted, before anything is queued (R19)."""

from collections.abc import Collection, Mapping

from contract.call import ToolCall
from contract.outcome import Code
from contract.result import ToolResult
from dispatcher import feedback
from dispatcher.catalog import Offer
from dispatcher.classify import Wording, rejected


def validate(
    call: ToolCall,
    offers: Mapping[str, Offer],
    allowed: Collection[str] | None,
    wording: Wording,
) -> Offer | ToolResult:
    """The tool to queue the call for, or the result that tells the model what to mend.

    `allowed` are the tool names offered to this caller; None is all. A validator that itself fails
    is a fault of ours, not of the model (R10).
    """
    if call.flaw is not None and call.flaw.code is not Code.UNPARSEABLE:
        return rejected(call, call.flaw.code, feedback.flawed(call.flaw, wording), wording)
    offer = offers.get(call.name)
    known = offer is not None and (allowed is None or call.name in allowed)
    if not known and call.name:
        names = sorted(name for name in offers if allowed is None or name in allowed)
        text = feedback.unknown_tool(call.name, names, wording)
        return rejected(call, Code.UNKNOWN_TOOL, text, wording)
    if call.flaw is not None:
        return rejected(call, call.flaw.code, feedback.flawed(call.flaw, wording), wording)
    assert offer is not None
    if offer.validator is None:
        return offer
    try:
        problems = offer.validator.problems(call.arguments)
    except Exception as error:  # noqa: BLE001 - R10: the call is answered all the same
        return rejected(
            call, Code.INTERNAL, f"The arguments could not be checked: {type(error).__name__}.",
            wording,
        )  # fmt: skip
    if problems:
        text = feedback.invalid_arguments(problems, wording)
        return rejected(call, Code.INVALID_ARGUMENTS, text, wording)
    return offer
