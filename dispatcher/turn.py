"""The results of one turn, in the order of its calls."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import msgspec

from toolpool.contract.result import State, ToolResult
from toolpool.dispatcher.formats import FORMATS, NotAResponse, named, response_wrappers
from toolpool.dispatcher.formats.sdk_objects import sendable
from toolpool.dispatcher.formats.stop_reasons import Verdict, ending


class TurnResult(Sequence[ToolResult]):
    """A sequence of `ToolResult`.

    `format` is the provider's; `error` is set, and the sequence empty, for a response that was no
    response. `stop` is the provider's word for why the response ended, where it is not one whose
    calls are run: cut off, refused, or to be continued.
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
        """What to append to the conversation, in the provider's own form.

        Plain dicts, which fit the list types of the providers' SDKs. `format` is `anthropic`,
        `openai_chat` (or `openai`), `openai_responses`, `openai_realtime`, `openai_agents`,
        `anthropic_agents`, `gemini`, `gemini_interactions`, `gemini_live`, `bedrock`,
        `cohere`, `ollama`, `langchain`, `mcp` or `bare`; the response's own by default. Of a
        response with several choices those of the first are run, and answered here; `choice` names
        another, whose calls were not. Raises ValueError for another format.
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

        In the provider's own form: what its API does not take back is left out, calls that came
        without an id have the one that their answers name, and what the API wants back unchanged
        (thoughts with signatures, callers, reasoning) is there. Empty where nothing was said.
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
        return module.said(plain, ids)

    @property
    def ok(self) -> bool:
        """Whether every call that was to run succeeded."""
        told = (result for result in self._results if _choice_of(result) == 0)
        return self.error is None and all(result.ok for result in told)

    @property
    def waiting(self) -> list[ToolResult]:
        """The calls that a person has to approve."""
        return [result for result in self._results if result.state is State.WAITING]

    @property
    def goes_on(self) -> bool:
        """Whether the response goes on in a later one, for which the model is to be asked again."""
        return ending(self.format, self.stop).verdict is Verdict.LEAVE

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
    """Whether the provider sent no id, and its form needs one."""
    return not result.id_given and "function" not in (result.origin or {})
