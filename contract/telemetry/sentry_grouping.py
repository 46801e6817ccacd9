"""Groups failures into Sentry issues."""

from collections.abc import Sequence
from pathlib import Path

from toolpool.contract.exception_report import ExceptionReport, own_frame
from toolpool.contract.outcome import Code

_OF_THE_POOL = frozenset({Code.WORKER_LOST, Code.QUEUE_UNREACHABLE, Code.EXPIRED, Code.OVERLOADED})
"""Codes that one outage causes for calls of every tool: one issue per code, for all tools."""


def fingerprint_of(
    tool: str, code: str, cause: str, faults: Sequence[ExceptionReport]
) -> tuple[str, ...]:
    """The strings that group issues: the text of the line that raised, not its number."""
    frame = own_frame(faults)
    is_of_the_pool = code in _OF_THE_POOL or (code == Code.INTERNAL and frame is not None)
    name = faults[-1].name if faults else cause
    where = f"{Path(frame.file).name}:{frame.function}" if frame is not None else ""
    line = frame.code if frame is not None else ""
    return ("toolpool", "" if is_of_the_pool else tool, code, name, where, line)
