"""The results of one turn, in the order of its calls."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import msgspec

from toolpool.contract.result import State, ToolResult
from toolpool.dispatcher.formats import FORMATS, NotAResponse, named, response_wrappers
from toolpool.dispatcher.formats.sdk_objects import sendable
from toolpool.dispatcher.formats.stop_reasons import Handling, ending


class TurnResult(Sequence[ToolResult]):
    """A sequence of `ToolResult`.

    `format` is the provider's; `error` is set, and the sequence empty, if the response could not be
    read. `stop` is the provider's stop reason if the response's calls are not run because it was
    cut off, was refused or is to be continued.
    """

    def __init__(
        self,
        results: Sequence[ToolResult],
        *,
        format: str,
        error: str | None = None,
        stop: str | None = None,
        response: Any = None,
    ) -> None:
        self._results = tuple(results)
        self._response = response
        self.format = format
        self.error = error
        self.stop = stop

    def messages(self, format: str | None = None, *, choice: int = 0) -> list[Any]:
        """The messages to append to the conversation, in the provider's own form.

        Plain dicts, which fit the list types of the providers' SDKs. `format` is `anthropic`,
        `openai_chat` (or `openai`), `openai_responses`, `openai_realtime`, `openai_agents`,
        `anthropic_agents`, `gemini`, `gemini_interactions`, `gemini_live`, `bedrock`, `cohere`,
        `ollama`, `langchain`, `pydantic_ai`, `mcp` or `bare`; the response's own by default. If a
        response has several choices, the calls of the first are run and answered here; `choice`
        names another, whose calls were not run. Raises ValueError for another format.
        """
        name = named(format or self.format)
        if self.error is not None:
            return FORMATS[name].render_refusal(self.error)
        told = [result for result in self._results if _choice_of(result) == choice]
        if name != self.format:
            told = [msgspec.structs.replace(result, origin=None) for result in told]
        return FORMATS[name].render(told)

    def assistant(self) -> list[Any]:
        """The response as it goes back into the conversation, before `messages()`.

        It is in the provider's own form: content that its API does not accept back is removed,
        calls without an id get the id that their answers name, and content that the API requires
        unchanged (thoughts with signatures, callers, reasoning) is kept. Empty if the response is
        empty.
        """
        module = FORMATS[self.format]
        try:
            plain = response_wrappers.opened(sendable(self._response))
        except (response_wrappers.NoResponse, NotAResponse, RecursionError):
            return []
        if not isinstance(plain, dict) and not module.TAKES_LISTS:
            return []
        first = [result for result in self._results if _choice_of(result) == 0]
        ids = {index: result.call_id for index, result in enumerate(first) if _is_made_up(result)}
        return module.assistant_messages(plain, ids)

    @property
    def ok(self) -> bool:
        """Whether every call that was to run succeeded."""
        for result in self._results:
            if not result.ok and _choice_of(result) == 0:
                return False
        return self.error is None

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results, in the order of the calls."""
        return self._results

    @property
    def waiting(self) -> list[ToolResult]:
        """The calls that a person has to approve."""
        return [result for result in self._results if result.state is State.WAITING]

    @property
    def goes_on(self) -> bool:
        """Whether the response continues in a later one, which the host has to request."""
        return ending(self.format, self.stop).verdict is Handling.LEAVE

    @overload
    def __getitem__(self, index: int) -> ToolResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ToolResult]: ...

    def __getitem__(self, index: int | slice) -> ToolResult | Sequence[ToolResult]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[ToolResult]:
        return iter(self._results)

    def __repr__(self) -> str:
        return f"<TurnResult {self.format} {len(self)} calls, ok={self.ok}>"


def _choice_of(result: ToolResult) -> int:
    return 0 if result.origin is None else int(result.origin.get("choice", 0))


def _is_made_up(result: ToolResult) -> bool:
    """Whether the id was generated, because the provider sent none and its form needs one."""
    return not result.id_given and "function" not in (result.origin or {})
