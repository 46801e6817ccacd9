"""Stop reasons, and what they mean for the calls in a response.

The calls of a response that ended normally are run. A response that was cut off, was refused or is
incomplete may contain half a call, or a call that its provider has retracted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from toolpool.contract import logs
from toolpool.contract.encoding import printable, word_of

log = logs.logger("formats")

_LONGEST_MESSAGE = 200


class Handling(Enum):
    """What happens to the calls in a response."""

    RUN = "run"
    CUT_OFF = "cut off"  # at a limit: the last call may be incomplete
    BROKEN_OFF = "broken off"  # cut off anywhere: no call is known to be complete
    MALFORMED = "malformed"  # the provider could not read the call: the model has to send it again
    REFUSE = "refuse"  # nothing is run
    LEAVE = "leave alone"  # continued in a later response: nothing is answered


_RUN, _CUT_OFF, _BROKEN_OFF = Handling.RUN, Handling.CUT_OFF, Handling.BROKEN_OFF
_MALFORMED, _REFUSE, _LEAVE = Handling.MALFORMED, Handling.REFUSE, Handling.LEAVE

_OF_PROVIDERS: Mapping[str, Mapping[str, Handling]] = {
    "anthropic": {
        "tool_use": _RUN,
        "end_turn": _RUN,
        "stop_sequence": _RUN,
        "max_tokens": _CUT_OFF,
        "model_context_window_exceeded": _CUT_OFF,
        "refusal": _REFUSE,
        "pause_turn": _LEAVE,
        "compaction": _LEAVE,
        "null": _BROKEN_OFF,
    },
    "bedrock": {
        "tool_use": _RUN,
        "end_turn": _RUN,
        "stop_sequence": _RUN,
        "max_tokens": _CUT_OFF,
        "model_context_window_exceeded": _CUT_OFF,
        "malformed_tool_use": _MALFORMED,
        "malformed_model_output": _MALFORMED,
        "guardrail_intervened": _REFUSE,
        "content_filtered": _REFUSE,
    },
    "openai_chat": {
        "tool_calls": _RUN,
        "function_call": _RUN,
        "stop": _RUN,
        "length": _CUT_OFF,
        "content_filter": _REFUSE,
        # for servers that speak this form
        "tool_use": _RUN,
        "end_turn": _RUN,
        "eos": _RUN,
        "eos_token": _RUN,
        "stop_sequence": _RUN,
        "max_tokens": _CUT_OFF,
        "model_length": _CUT_OFF,
        "abort": _BROKEN_OFF,
        "error": _BROKEN_OFF,
        "insufficient_system_resource": _BROKEN_OFF,
    },
    "openai_responses": {
        "completed": _RUN,
        "incomplete: max_output_tokens": _CUT_OFF,
        "incomplete": _BROKEN_OFF,
        "incomplete: max_messages": _REFUSE,
        "incomplete: content_filter": _REFUSE,
        "incomplete: steered": _REFUSE,
        "failed": _BROKEN_OFF,
        "cancelled": _REFUSE,
        "in_progress": _LEAVE,
        "queued": _LEAVE,
    },
    "gemini": {
        "STOP": _RUN,
        "MAX_TOKENS": _CUT_OFF,
        "MALFORMED_FUNCTION_CALL": _MALFORMED,
        "MALFORMED_RESPONSE": _MALFORMED,
        "UNEXPECTED_TOOL_CALL": _MALFORMED,
        "TOO_MANY_TOOL_CALLS": _MALFORMED,
        "MISSING_THOUGHT_SIGNATURE": _REFUSE,
        "SAFETY": _REFUSE,
        "RECITATION": _REFUSE,
        "LANGUAGE": _REFUSE,
        "BLOCKLIST": _REFUSE,
        "PROHIBITED_CONTENT": _REFUSE,
        "SPII": _REFUSE,
        "MODEL_ARMOR": _REFUSE,
        "JAILBREAK": _REFUSE,
        "IMAGE_SAFETY": _REFUSE,
        "IMAGE_PROHIBITED_CONTENT": _REFUSE,
        "IMAGE_RECITATION": _REFUSE,
        "IMAGE_OTHER": _REFUSE,
        "NO_IMAGE": _REFUSE,
        "ESCALATION": _REFUSE,
        "PUP_LIMITED_DISABLED": _REFUSE,
        "OTHER": _REFUSE,
        "CONTINUATION": _LEAVE,
        "broken off": _BROKEN_OFF,  # a chunk of a stream, whose last chunk has the reason
    },
    "gemini_interactions": {
        "completed": _RUN,
        "requires_action": _RUN,
        "incomplete": _CUT_OFF,
        "failed": _BROKEN_OFF,
        "cancelled": _REFUSE,
        "budget_exceeded": _REFUSE,
        "in_progress": _LEAVE,
        "queued": _LEAVE,
        "requires_continuation": _LEAVE,
    },
    "openai_realtime": {
        "completed": _RUN,
        "incomplete: max_output_tokens": _CUT_OFF,
        "incomplete: content_filter": _REFUSE,
        "incomplete": _BROKEN_OFF,
        "failed": _BROKEN_OFF,
        "cancelled": _REFUSE,
        "in_progress": _LEAVE,
    },
    "openai_agents": {
        "idle": _RUN,
        "requires_action": _RUN,
        "in_progress": _LEAVE,
        "budget_reached": _LEAVE,
        "failed": _REFUSE,
    },
    "ollama": {
        "stop": _RUN,
        "length": _CUT_OFF,
        "load": _LEAVE,
        "unload": _LEAVE,
        "not done": _LEAVE,
    },
    "pydantic_ai": {
        "stop": _RUN,
        "tool_call": _RUN,
        "length": _CUT_OFF,
        "content_filter": _REFUSE,
        "error": _BROKEN_OFF,
    },
    "cohere": {
        "COMPLETE": _RUN,
        "STOP_SEQUENCE": _RUN,
        "TOOL_CALL": _RUN,
        "MAX_TOKENS": _CUT_OFF,
        "ERROR": _BROKEN_OFF,
        "TIMEOUT": _BROKEN_OFF,
    },
}
STOPS: Mapping[str, Mapping[str, Handling]] = {
    **_OF_PROVIDERS,
    # LangChain passes on the stop reason of the provider behind it
    "langchain": {
        word: verdict for stops in _OF_PROVIDERS.values() for word, verdict in stops.items()
    },
}
"""By form and by the provider's stop reason, as each module's `stopped` returns it.

`null` is a message without a reason yet. An unlisted reason runs nothing.
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ended. `stop` is the provider's stop reason; None if it gives none.

    `message` is the provider's message about it.
    """

    verdict: Handling = Handling.RUN
    stop: str | None = None
    message: str = ""

    @property
    def why(self) -> str:
        """The provider's stop reason, and its message about it."""
        return f"{self.stop}: {self.message}" if self.message else self.stop or ""


WHOLE = Ending()
"""For a response without a stop reason: each call is judged by its own completeness."""


_KNOWN = {
    (format, word): Ending(verdict, word)
    for format, stops in STOPS.items()
    for word, verdict in stops.items()
}


def ending(format: str, stop: Any, message: Any = None) -> Ending:
    """The meaning of `stop` in this form; an unknown reason runs nothing, and is logged."""
    if stop is None or stop == "":
        return WHOLE
    if message is None and stop.__class__ is str and (known := _KNOWN.get((format, stop))):
        return known
    word = word_of(stop)
    verdict = STOPS.get(format, {}).get(word)
    if verdict is None:
        log.warning("unknown_stop_reason format=%s stop=%r: its calls are not run", format, word)
        verdict = Handling.REFUSE
    said = printable(message)[:_LONGEST_MESSAGE] if isinstance(message, str) else ""
    return Ending(verdict, word, said)
