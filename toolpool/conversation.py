"""The tool-calling loop: call the model, run its tool calls, give it the results, repeat.

    conversation = await converse(
        anthropic_model(client, model="…", max_tokens=1024),
        dispatcher,
        [{"role": "user", "content": "…"}],
    )

A rejected call goes back with the corrections to make, and the model sends the call again. Three
model calls in a row with rejections end it: then the schema or the model is at fault, and more
calls would only add cost.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolpool.contract.errors import ToolpoolError
from toolpool.contract.outcome import ErrorType
from toolpool.dispatcher.dispatch import Dispatcher
from toolpool.dispatcher.turn_result import TurnResult

Message = dict[str, Any]
Model = Callable[[list[Message], list[dict[str, Any]]], Awaitable[Any]]
"""Calls a model: takes the messages so far and the offered tools, returns its response."""


class CorrectionFailed(ToolpoolError):
    """Raised when a model's calls were rejected too often in a row, or it never finished.

    `messages` are the whole conversation, with the last rejections at its end.
    """

    def __init__(self, message: str, messages: list[Message]) -> None:
        super().__init__(message)
        self.messages = messages


@dataclass(frozen=True, slots=True)
class Conversation:
    """An ended conversation: every message, the last response, and the results of each turn."""

    messages: list[Message]
    response: Any
    turns: list[TurnResult]


class ModelClient(Protocol):
    """A model with the format of its messages, as the adapters return it."""

    @property
    def format(self) -> str:
        """The provider's format."""
        ...

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]]) -> Any:
        """The model's response."""
        ...


async def converse(
    model: Model | ModelClient,
    dispatcher: Dispatcher,
    messages: Sequence[Message],
    *,
    format: str | None = None,
    session: str | None = None,
    only: Sequence[str] | None = None,
    context: Mapping[str, Any] | None = None,
    attempts: int = 3,
    model_calls: int = 50,
) -> Conversation:
    """Run the conversation until the model answers without tool calls.

    `model` comes from an adapter, or is any async callable. The tools are offered in `format` (by
    default the adapter's format, else `anthropic`). `only` narrows what is offered and allowed,
    `context` is for the tools and the policy. Raises `CorrectionFailed` after `attempts` model
    calls in a row with a rejected call, or after `model_calls` model calls in total.
    """
    offered_as = format or getattr(model, "format", None) or "anthropic"
    offer = dispatcher.tools(offered_as, only=only)
    said = list(messages)
    turns: list[TurnResult] = []
    failed_in_a_row = 0
    for _ in range(model_calls):
        response = await model(said, offer)
        turn = await dispatcher.dispatch(
            response, session=session, turn=_turn_id(session, said), only=only, context=context
        )
        said += turn.assistant()
        said += turn.messages()
        if turn.goes_on:
            continue
        if not len(turn) and turn.error is None:
            return Conversation(said, response, turns)
        turns.append(turn)
        failed_in_a_row = failed_in_a_row + 1 if _was_rejected(turn) else 0
        if failed_in_a_row >= attempts:
            raise CorrectionFailed(f"Failed after {attempts} attempts", said)
    raise CorrectionFailed(f"No end after {model_calls} model calls", said)


def _turn_id(session: str | None, said: list[Message]) -> str | None:
    """The position in the conversation, so that two equal responses are two turns."""
    return f"message-{len(said)}" if session is not None else None


def _was_rejected(turn: TurnResult) -> bool:
    return turn.error is not None or any(
        result.error_type is ErrorType.VALIDATION for result in turn
    )


@dataclass(frozen=True)
class _SdkModel:
    """Calls an SDK's method, of its blocking or its async client."""

    format: str
    create: Callable[..., Any]
    messages_as: str
    options: dict[str, Any]

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]]) -> Any:
        request = {
            **self.options,
            self.messages_as: messages,
            **({"tools": tools} if tools else {}),
        }
        if inspect.iscoroutinefunction(self.create):
            return await self.create(**request)
        response = await asyncio.to_thread(self.create, **request)
        return await response if inspect.isawaitable(response) else response


def anthropic_model(client: Any, **options: Any) -> ModelClient:
    """A client for `anthropic.Anthropic` or `AsyncAnthropic`; options as in `messages.create`."""
    return _SdkModel("anthropic", client.messages.create, "messages", options)


def openai_model(client: Any, **options: Any) -> ModelClient:
    """A client for `openai.OpenAI` or `AsyncOpenAI`; options as in `chat.completions.create`."""
    return _SdkModel("openai_chat", client.chat.completions.create, "messages", options)


def openai_responses_model(client: Any, **options: Any) -> ModelClient:
    """A client for `openai.OpenAI` or `AsyncOpenAI`; options as in `responses.create`."""
    return _SdkModel("openai_responses", client.responses.create, "input", options)
