"""The rows of a session record: two a call, each a line of JSON."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from toolpool.contract import encoding
from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.observer import Audit

VALUE_BYTES = 256 * 1024
"""A larger value is cut: a row is for people and `toolpool record`."""
Redact = Callable[[str, str, Any], Any]
"""Given a tool's name, `input` or `result`, and what would be written; gives what is."""


class Metadata(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True, gc=False
):
    """Of a result. `duration` is in seconds; `fields` are what arguments were rejected for."""

    error: bool
    error_type: ErrorType | None = None
    code: Code | None = None
    executed: Executed
    retryable: bool | None = None
    duration: float
    attempts: int
    session: str | None = None
    turn: str | None = None
    model: str | None = None
    handle: str | None = None
    fields: Any = None
    truncated: bool = False


class Row(msgspec.Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    """One line. `timestamp` is Unix time in milliseconds, `content` JSON as text.

    `call_id` is the provider's id of the call, of which the model's own messages speak.
    """

    id: str
    parent_id: str | None
    timestamp: int
    type: str
    content: str
    call_id: str | msgspec.UnsetType = msgspec.UNSET
    metadata: Metadata | msgspec.UnsetType = msgspec.UNSET


class RecordSink(Protocol):
    """Where rows are written. Its methods are called on the record's own thread, one at a time.

    What `write` raises is told once; an OSError is taken to pass, and the rows come again.
    """

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        """Write whole lines of one session, in order, each with its line feed."""
        ...

    def close(self) -> None:
        """Nothing more is written."""
        ...


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A row that is still to be made: `body` is JSON as it was when the row was noted."""

    session: str | None
    row_id: str
    parent: str | None
    at: int
    kind: str
    tool: str
    body: bytes
    metadata: Metadata | None
    call_id: str = ""

    def line(self, redact: Redact | None) -> bytes:
        """The row as it is written."""
        body, metadata = self.body, self.metadata
        if redact is not None and self.kind != "audit":
            body = self._redacted(redact)
        if len(body) > VALUE_BYTES:
            body = self._cut(body)
            if metadata is not None:
                metadata = msgspec.structs.replace(metadata, truncated=True)
        return encoding.encode(self.row(body, metadata)) + b"\n"

    def row(self, body: bytes, metadata: Metadata | None) -> Row:
        """The row with this content."""
        return Row(
            id=self.row_id,
            parent_id=self.parent,
            timestamp=self.at,
            type=self.kind,
            content=body.decode("utf-8", "replace"),
            call_id=self.call_id or msgspec.UNSET,
            metadata=metadata if metadata is not None else msgspec.UNSET,
        )

    def _redacted(self, redact: Redact) -> bytes:
        what = "input" if self.kind == "tool_call" else "result"
        content = encoding.decode(self.body)
        try:
            if what == "input":
                content["input"] = redact(self.tool, what, content["input"])
            else:
                content = redact(self.tool, what, content)
            return dumped(content)
        except Exception as error:  # noqa: BLE001 - a host's: nothing it did not see is written
            failed = {"redact_failed": type(error).__name__}
            return dumped({"name": self.tool, "input": failed} if what == "input" else failed)

    def _cut(self, body: bytes) -> bytes:
        """What is kept of a value that is too large, in the same form."""
        start = body[: VALUE_BYTES // 2].decode(errors="ignore")
        if self.kind == "tool_call":
            return dumped({"name": self.tool, "input": None, "truncated": start})
        try:
            content = encoding.decode(body)
        except (ValueError, RecursionError):
            content = None
        rest = content if isinstance(content, dict) else {}
        small = {k: v for k, v in rest.items() if k not in ("data", "error")}
        if rest.get("ok") is False:
            cut = small | {"error": str(rest.get("error"))[: VALUE_BYTES // 8]}
        else:
            cut = small | {"data": start}
        found = dumped(cut)
        return (
            found
            if len(found) <= VALUE_BYTES
            else dumped({"ok": rest.get("ok"), "truncated": True})
        )


def call_body(name: str, arguments: Any) -> bytes:
    """What a call asked for, as the model sent it; None where that could not be read."""
    return dumped({"name": name, "input": arguments})


def dumped(value: Any) -> bytes:
    """JSON of whatever a host or a model put together."""
    try:
        return encoding.encode(value)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(value, default=repr, skipkeys=True).encode(errors="replace")
    except (TypeError, ValueError, RecursionError) as error:
        return encoding.encode({"unwritable": type(error).__name__})


def audit_body(audit: Audit) -> bytes:
    """Who decided what, and why."""
    return dumped({key: value for key, value in msgspec.structs.asdict(audit).items() if value})


def dropped_line(row_id: str, at: int, count: int) -> bytes:
    """The row that says how many rows are missing here."""
    row = Row(
        id=row_id,
        parent_id=None,
        timestamp=at,
        type="dropped",
        content=encoding.encode({"rows": count}).decode(),
    )
    return encoding.encode(row) + b"\n"


def metadata_of(
    result: ToolResult, *, session: str | None, turn: str | None, model: str | None, fields: Any
) -> Metadata:
    """What is known of a result beside what the model was told."""
    code = result.code
    return Metadata(
        error=not result.ok,
        error_type=code.error_type if code is not None else None,
        code=code,
        executed=result.executed,
        retryable=result.retryable,
        duration=encoding.rounded(result.duration),
        attempts=result.attempts,
        session=session,
        turn=turn,
        model=model,
        handle=result.handle,
        fields=fields,
    )
