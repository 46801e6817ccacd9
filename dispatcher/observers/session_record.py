"""The session record: what models called and what they were told, in rows of JSON.

A row is drafted where a turn is asked for or answered, and written in order by a thread of its own.
No call waits for it: if too many rows wait, further ones are dropped, and a row says how many.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolpool.contract import logs
from toolpool.contract.call import ToolCall
from toolpool.contract.errors import Misconfigured
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.formats import Response
from toolpool.dispatcher.observer import Audit, Observer
from toolpool.dispatcher.observers.record_file import RecordFiles
from toolpool.dispatcher.observers.record_rows import (
    Draft,
    RecordSink,
    Redact,
    audit_body,
    call_body,
    dumped,
    metadata_of,
)
from toolpool.dispatcher.observers.record_writer import Writer
from toolpool.dispatcher.results import Results
from toolpool.dispatcher.turn_context import TurnContext

log = logs.logger("record")


class SessionRecord:
    """What a host names as its record: a path, or a sink of its own.

    `redact` is given a tool's name, `input` or `result`, and what would be written, and gives what
    is written in its place. It runs on the record's own thread, on a copy.
    """

    def __init__(self, target: "str | Path | RecordSink", *, redact: Redact | None = None) -> None:
        self.target = target
        self.redact = redact


def recorder_of(
    record: "SessionRecord | RecordSink | str | Path | None", settings: Settings
) -> "Recorder | None":
    """What keeps the record that a host or the settings name. Raises `Misconfigured`."""
    if record is None:
        record = settings.record or None
    if record is None:
        return None
    redact = record.redact if isinstance(record, SessionRecord) else None
    target = record.target if isinstance(record, SessionRecord) else record
    if target == "":
        raise Misconfigured("the session record has an empty path: name a folder, or a .jsonl file")
    if isinstance(target, (str, Path)):
        target = RecordFiles(
            Path(target),
            sync=settings.record_sync,
            size=settings.record_file_bytes,
            files=settings.record_backup_count,
            kept=settings.record_ttl,
            total=settings.record_folder_bytes,
        )
    elif not callable(getattr(target, "write", None)) or not callable(
        getattr(target, "close", None)
    ):
        raise Misconfigured(
            f"{target!r} is no session record: name a path, or an object with "
            "write(session, lines) and close()"
        )
    return Recorder(target, redact=redact)


class Recorder:
    """The record of one dispatcher. All but `close` is called on its event loop."""

    def __init__(self, sink: RecordSink, *, redact: Redact | None) -> None:
        self._sink = sink
        self._writer = Writer(sink, redact=redact)
        self.add = self._writer.add
        """Writes a row."""
        self._follows = True
        self._asking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Write from now on. Raises `Misconfigured`."""
        if isinstance(self._sink, RecordFiles):
            self._sink.check()
        self._writer.start()

    def follow_no_more(self) -> None:
        """What background calls are answered from now on is not their result."""
        self._follows = False

    def close(self) -> None:
        """Write what waits, for a few seconds at most. Blocks."""
        self._writer.close()

    def asked(self, found: Response, shared: TurnContext) -> "TurnRows":
        """Note the calls of a turn."""
        rows = TurnRows(self, found, shared, new_nonce())
        try:
            rows.add_calls()
        except Exception:
            log.exception("row_not_noted")
        return rows

    def audit(self, audit: Audit) -> None:
        """Note what somebody decided, among the rows of its session."""
        body, tool, call_id = audit_body(audit), audit.tool, audit.call_id
        row = new_nonce()
        self.add(Draft(audit.session, row, None, _now(), "audit", tool, body, None, call_id))

    def note_final(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Note the result of a background call, off the road that brought it."""
        if self._follows:
            task = asyncio.ensure_future(write())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def settle(self) -> None:
        """Wait until what was noted last may be written, as far as a policy lets it be."""
        if self._asking:
            await asyncio.wait(self._asking)


class AuditRows(Observer):
    """Notes in the record what somebody decided."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def audited(self, audit: Audit) -> None:
        """See `Observer.audited`."""
        self._recorder.audit(audit)


class TurnRows(msgspec.Struct, frozen=True, gc=False):
    """The rows of one turn. `name` is what the names of its calls' rows begin with."""

    recorder: Recorder
    found: Response
    shared: TurnContext
    name: str

    def add_calls(self) -> None:
        """Add a row for each of the calls."""
        session, turn, at = self.shared.session, self.shared.id, _now()
        for number, call in enumerate(self.found.calls):
            row = self.row(number)
            asked = call.text if call.text is not None else call.arguments
            body = call_body(call.name, asked)
            kind, id_ = "tool_call", call.provider_id
            draft = Draft(session, row, turn, at, kind, call.name, body, None, id_)
            self.recorder.add(draft)

    def row(self, number: int) -> str:
        """The id of the row of a call."""
        return f"{self.name}.{number}"

    def answered(
        self, results: Sequence[ToolResult], sent: Mapping[int, Pending], told: Results
    ) -> None:
        """Note the results; of calls that go on in the background the last one as well."""
        try:
            for number, result in enumerate(results):
                self.note(number, result)
                if result.is_running:
                    pending = sent.get(self.found.calls[number].index)
                    if pending is not None:
                        self._follow(_Final(self, number, pending, told), pending)
        except Exception:
            log.exception("row_not_noted")

    def _follow(self, final: "_Final", pending: Pending) -> None:
        if pending.is_open:
            pending.latches.append(final)
        else:
            final.release()

    def broken_off(
        self,
        rejected: Mapping[int, ToolResult],
        sent: Mapping[int, Pending],
        told: Results,
    ) -> None:
        """Note what is known of the calls of a dispatch that was cancelled."""
        try:
            for number, call in enumerate(self.found.calls):
                result = rejected.get(call.index)
                pending = sent.get(call.index)
                if result is None and pending is not None and not pending.is_open:
                    result = told.at_once(pending)
                self.note(number, result or _cancelled(call, was_sent=pending is not None))
        except Exception:
            log.exception("row_not_noted")

    def note(self, number: int, result: ToolResult) -> None:
        """Note the result of a call, as it is now."""
        found, session, turn = self.found, self.shared.session, self.shared.id
        body, details = dumped(result.payload()), result.details
        fields = details.get("fields") if details is not None else None
        metadata = metadata_of(result, session=session, turn=turn, model=found.model, fields=fields)
        parent, kind, name = self.row(number), "tool_result", found.calls[number].name
        row, id_ = new_nonce(), result.call_id
        self.recorder.add(Draft(session, row, parent, _now(), kind, name, body, metadata, id_))

    def note_final(self, number: int, pending: Pending, told: Results) -> None:
        """Note the last result of a call that went on in the background."""

        async def write() -> None:
            try:
                self.note(number, await told.of(pending))
            except Exception:
                log.exception("row_not_noted")

        self.recorder.note_final(write)


class _Final:
    """Waits for the end of a background call, and writes its last row."""

    def __init__(self, rows: TurnRows, number: int, pending: Pending, told: Results) -> None:
        self._rows = rows
        self._number = number
        self._pending = pending
        self._told = told

    def release(self) -> None:
        """The call was answered."""
        try:
            self._rows.note_final(self._number, self._pending, self._told)
        except Exception:
            log.exception("row_not_noted")


def _cancelled(call: ToolCall, *, was_sent: bool) -> ToolResult:
    """A call whose dispatch was cancelled before it was sent, or that goes on for others."""
    return ToolResult(
        call_id=call.provider_id,
        name=call.name,
        ok=False,
        error="the dispatch was cancelled",
        code=Code.CANCELLED,
        retryable=False,
        executed=Executed.UNKNOWN if was_sent else Executed.NO,
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


__all__ = ["RecordSink", "Recorder", "SessionRecord", "recorder_of"]
