"""The session record: the calls of models and the results they were given, in rows of JSON.

Rows are drafted when a turn is dispatched or answered, and written in order by a background thread.
No call waits for it: if too many rows wait, further ones are dropped, and a row says how many.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from toolpool.contract import logs
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.call import ToolCall
from toolpool.contract.errors import Misconfigured
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.pending import PendingCall
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
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("record")


class SessionRecord:
    """A host's session record: a path, or its own sink.

    `redact` takes a tool's name, `input` or `result`, and a copy of the value, and returns the
    value to write instead. It runs on the record's thread.
    """

    def __init__(self, target: "str | Path | RecordSink", *, redact: Redact | None = None) -> None:
        self.target = target
        self.redact = redact


def recorder_of(
    record: "SessionRecord | RecordSink | str | Path | None", settings: Settings
) -> "Recorder | None":
    """The recorder for the record that a host or the settings name. Raises `Misconfigured`."""
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
            ttl=settings.record_ttl,
            total=settings.record_folder_bytes,
        )
    elif not callable(getattr(target, "write", None)) or not callable(
        getattr(target, "close", None)
    ):
        raise Misconfigured(
            f"{target!r} is not a session record: name a path, or an object with "
            "write(session, lines) and close()"
        )
    return Recorder(target, redact=redact, hook_seconds=settings.hook_timeout)


class Recorder:
    """Writes the session record of a dispatcher. All but `close` runs on its event loop."""

    def __init__(
        self, sink: RecordSink, *, redact: Redact | None, hook_seconds: float = 5.0
    ) -> None:
        self._sink = sink
        self._hook_seconds = hook_seconds
        self._writer = Writer(sink, redact=redact)
        self.add = self._writer.add
        """Queues a row."""
        self._follows = True
        self._asking = BackgroundTasks()
        self._unanswered: set[str] = set()
        """The turns without result rows, by the names of their rows."""
        self._turn_ended = asyncio.Event()

    def start(self) -> None:
        """Start writing. Raises `Misconfigured`."""
        if isinstance(self._sink, RecordFiles):
            self._sink.check()
        self._writer.start()

    def stop_following(self) -> None:
        """Ignore answers of background calls from now on: they are not final results."""
        self._follows = False

    def close(self) -> None:
        """Write the waiting rows, for five seconds at most. Blocks."""
        self._writer.close()

    def asked(self, found: Response, options: TurnOptions) -> "TurnRows":
        """Record the calls of a turn."""
        rows = TurnRows(self, found, options, new_nonce())
        self._unanswered.add(rows.name)
        try:
            rows.add_calls()
        except Exception:
            log.exception("row_not_recorded")
        return rows

    def turn_ended(self, rows: "TurnRows") -> None:
        """Record that a turn has its result rows."""
        self._unanswered.discard(rows.name)
        self._turn_ended.set()

    def audit(self, audit: Audit) -> None:
        """Add a decision to the rows of its session."""
        body, tool, call_id = audit_body(audit), audit.tool, audit.call_id
        row = new_nonce()
        self.add(Draft(audit.session, row, None, _now(), "audit", tool, body, None, call_id))

    def note_final(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Record the result of a background call, in a task of its own."""
        if self._follows:
            self._asking.start(write())

    async def settle(self) -> None:
        """Wait until the results of background calls, and of turns that still run, are recorded.

        A turn may wait for a hook, which has its time limit.
        """
        await self._asking.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._hook_seconds + 1.0):
                while self._unanswered:
                    self._turn_ended.clear()
                    await self._turn_ended.wait()


class AuditRows(Observer):
    """Records decisions about calls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def audited(self, audit: Audit) -> None:
        """A person or a policy decided about calls."""
        self._recorder.audit(audit)


class TurnRows(msgspec.Struct, frozen=True, gc=False):
    """The rows of one turn. The ids of its calls' rows begin with `name`."""

    recorder: Recorder
    found: Response
    options: TurnOptions
    name: str

    def add_calls(self) -> None:
        """Add a row for each of the calls."""
        session, turn, at = self.options.session, self.options.id, _now()
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
        self, results: Sequence[ToolResult], sent: Mapping[int, PendingCall], given: Results
    ) -> None:
        """Record the results, and for background calls later also the final one."""
        try:
            for number, result in enumerate(results):
                self.note(number, result)
                if result.is_running:
                    pending = sent.get(self.found.calls[number].index)
                    if pending is not None:
                        self._follow(_Final(self, number, pending, given), pending)
        except Exception:
            log.exception("row_not_recorded")
        finally:
            self.recorder.turn_ended(self)

    def _follow(self, final: "_Final", pending: PendingCall) -> None:
        if pending.is_open:
            pending.latches.append(final)
        else:
            final.release()

    def cancelled(
        self,
        rejected: Mapping[int, ToolResult],
        sent: Mapping[int, PendingCall],
        given: Results,
    ) -> None:
        """Record the results so far of a dispatch that was cancelled."""
        try:
            for number, call in enumerate(self.found.calls):
                result = rejected.get(call.index)
                pending = sent.get(call.index)
                if result is None and pending is not None and not pending.is_open:
                    result = given.at_once(pending)
                may_run = pending is not None or self.options.is_named
                self.note(number, result or _cancelled(call, may_run=may_run))
        except Exception:
            log.exception("row_not_recorded")
        finally:
            self.recorder.turn_ended(self)

    def note(self, number: int, result: ToolResult) -> None:
        """Record the current result of a call."""
        found, session, turn = self.found, self.options.session, self.options.id
        body, details = dumped(result.payload()), result.details
        fields = details.get("fields") if details is not None else None
        metadata = metadata_of(result, session=session, turn=turn, model=found.model, fields=fields)
        parent, kind, name = self.row(number), "tool_result", found.calls[number].name
        row, id_ = new_nonce(), result.call_id
        self.recorder.add(Draft(session, row, parent, _now(), kind, name, body, metadata, id_))

    def note_final(self, number: int, pending: PendingCall, given: Results) -> None:
        """Record the final result of a background call."""

        async def write() -> None:
            try:
                self.note(number, await given.of(pending))
            except Exception:
                log.exception("row_not_recorded")

        self.recorder.note_final(write)


class _Final:
    """Waits for the end of a background call, and records its final result."""

    def __init__(self, rows: TurnRows, number: int, pending: PendingCall, given: Results) -> None:
        self._rows = rows
        self._number = number
        self._pending = pending
        self._given = given

    def release(self) -> None:
        """The call was answered."""
        try:
            self._rows.note_final(self._number, self._pending, self._given)
        except Exception:
            log.exception("row_not_recorded")


def _cancelled(call: ToolCall, *, may_run: bool) -> ToolResult:
    """The result of a call whose dispatch was cancelled.

    Other dispatchers may go on with the call.
    """
    return ToolResult(
        call_id=call.provider_id,
        name=call.name,
        ok=False,
        error="the dispatch was cancelled",
        code=Code.CANCELLED,
        retryable=False,
        executed=Executed.UNKNOWN if may_run else Executed.NO,
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


__all__ = ["RecordSink", "Recorder", "SessionRecord", "recorder_of"]
