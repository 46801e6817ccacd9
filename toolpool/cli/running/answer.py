"""Answers one line of `toolpool run`: a model response in, its answer out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolpool.cli.running.lines import LONGEST_LINE, Line
from toolpool.contract import encoding
from toolpool.contract.result import ToolResult

if TYPE_CHECKING:
    from toolpool.dispatcher.dispatch import Dispatcher


@dataclass(frozen=True, slots=True)
class AnsweredLine:
    """The answer to one line. `text` is a JSON array of the provider's messages, with its newline.

    `broken` says why the line was not a model response; its only message then asks for a valid
    response.
    """

    line: Line
    text: bytes
    results: Sequence[ToolResult]
    broken: str | None = None


async def answer_line(
    dispatcher: "Dispatcher",
    line: Line,
    *,
    format: str | None = None,
    session: str | None = None,
    timeout: float | None = None,
) -> AnsweredLine:
    """Run the calls in one model response, or bare call, and answer them in its provider's form.

    Never raises for a line's content: a call that cannot be accepted has its own result, and a line
    that is not a response is `broken`. If `format` is None, it is detected. With a `session`, the
    line's number names the turn, so that a second run in the session attaches to the calls of the
    same line and runs nothing twice.
    """
    turn = await dispatcher.dispatch(
        line.text,
        session=session,
        turn=f"line-{line.number}" if session is not None else None,
        format=format,
        timeout=timeout,
    )
    broken = None
    if turn.error is not None:
        size = LONGEST_LINE // 2**20
        broken = f"it is longer than {size} MiB" if line.too_long else f"answer: {turn.error}"
    return AnsweredLine(
        line=line, text=_encode(turn.messages()), results=tuple(turn), broken=broken
    )


def _encode(messages: list[dict[str, Any]]) -> bytes:
    try:
        return encoding.encode(messages) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can hold
        return json.dumps(messages, separators=(",", ":")).encode() + b"\n"
