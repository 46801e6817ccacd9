"""The results of one turn, in the order of its calls."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import FORMATS, named


class TurnResult(Sequence[ToolResult]):
    """A sequence of `ToolResult`.

    `format` is the provider's; `error` is set, and the sequence empty, for a response that was no
    response.
    """

    def __init__(
        self, results: Sequence[ToolResult], *, format: str, error: str | None = None
    ) -> None:
        self._results = tuple(results)
        self.format = format
        self.error = error

    def messages(self, format: str | None = None) -> list[Any]:
        """What to append to the conversation, in the provider's own form.

        Plain dicts, which fit the list types of the providers' SDKs. `format` is `anthropic`,
        `openai_chat` (or `openai`), `openai_responses`, `gemini`, `bedrock`, `mcp` or `bare`; the
        response's own by default. Raises ValueError for another.
        """
        module = FORMATS[named(format or self.format)]
        if self.error is not None:
            return module.render_refusal(self.error)
        return module.render(list(self._results))

    @property
    def ok(self) -> bool:
        """Whether every call succeeded."""
        return self.error is None and all(result.ok for result in self._results)

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
