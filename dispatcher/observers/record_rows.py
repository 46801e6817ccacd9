"""The rows of a session record: two per call, each a line of JSON."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from toolpool.contract import encoding
from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.observer import Audit

VALUE_BYTES = 256 * 1024
"""Larger values are truncated: rows are read by people and `toolpool replay`."""
Redact = Callable[[str, str, Any], Any]
"""Takes a tool's name, `input` or `result`, and the value; returns the value to write."""


class Metadata(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True, gc=False
):
    """Metadata of a result. `duration` is in seconds; `fields` are the rejected arguments."""

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

    `call_id` is the provider's id of the call, as in the model's messages.
    """

    id: str
    parent_id: str | None
    timestamp: int
    type: str
    content: str
    call_id: str | msgspec.UnsetType = msgspec.UNSET
    metadata: Metadata | msgspec.UnsetType = msgspec.UNSET


class RecordSink(Protocol):
    """Where rows are written.

    Its methods are called on the record's thread, one at a time. Repeated errors of `write` are
    logged once. After an OSError, the rows are written again later.
    """

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        """Write complete lines of one session, in order, each with its line feed."""
        ...

    def close(self) -> None:
        """Close the sink; no more lines follow."""
        ...


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A row that is not encoded yet; `body` is its content as JSON."""

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
        """The row as a line of JSON, redacted and truncated."""
        body, metadata = self.body, self.metadata
        if redact is not None and self.kind != "audit":
            body = self._redacted(redact)
        if len(body) > VALUE_BYTES:
            body = self._truncated(body)
            if metadata is not None:
                metadata = msgspec.structs.replace(metadata, truncated=True)
        return encoding.encode(self.row(body, metadata)) + b"\n"

    def row(self, body: bytes, metadata: Metadata | None) -> Row:
        """A copy of the row with this content."""
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
        except Exception as error:  # noqa: BLE001 - the host's code; unredacted values are never written
            failed = {"redact_failed": type(error).__name__}
            return dumped({"name": self.tool, "input": failed} if what == "input" else failed)

    def _truncated(self, body: bytes) -> bytes:
        """The beginning of a value that is too large, as a value of the same form."""
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
    """The content of a call's row; `arguments` are as the model sent them, or None."""
    return dumped({"name": name, "input": arguments})


def dumped(value: Any) -> bytes:
    """Any value as JSON, with `repr` for what JSON cannot hold. Never raises."""
    try:
        return encoding.encode(value)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(value, default=repr, skipkeys=True).encode(errors="replace")
    except (TypeError, ValueError, RecursionError) as error:
        return encoding.encode({"unwritable": type(error).__name__})


def audit_body(audit: Audit) -> bytes:
    """The content of a decision's row: who decided what, and why."""
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
    """The metadata of a result: facts that the model does not read."""
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
