"""Writes the session record in one background thread, in order, from a bounded queue."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from toolpool.contract import logs
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.dispatcher.observers.record_rows import Draft, RecordSink, Redact, dropped_line

log = logs.logger("record")

_MAX_ROWS = 50_000
_MAX_BYTES = 64 << 20
_MAX_BATCH = 1_000
_GATHER_SECONDS = 0.1
"""The interval between writes in seconds.

At full load, half of it costs more CPU time per call; four times as much saves nothing.
"""
_AGAIN_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
_ROW_BYTES = 400
"""The approximate size of a row without its content."""
_Page = Mapping[str | None, Sequence[bytes]]
"""Lines of the record by session."""


class Writer:
    """Writes rows in its own thread, so that no call waits for a disk.

    The number of waiting rows is limited; further ones are dropped and counted, and a row of the
    record says how many. `add` is called on one thread at a time, and returns at once.
    """

    def __init__(self, sink: RecordSink, *, redact: Redact | None) -> None:
        self._sink = sink
        self._is_one_file = getattr(sink, "is_one_file", False)
        self._redact = redact
        self._waiting: deque[Draft] = deque()
        self._bytes_added = 0
        self._bytes_taken = 0
        """How many bytes of rows were taken from the queue. Changed only by the writer thread."""
        self._lock = threading.Lock()
        self._dropped: Counter[str | None] = Counter()
        self._back: defaultdict[str | None, list[bytes]] = defaultdict(list)
        """Lines that could not be written yet, by session."""
        self._back_bytes = 0
        self._in_hand: tuple[_Page, ...] = ()
        """The lines that the sink is writing now."""
        self._wake = threading.Event()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False
        self._has_warned = False
        self.lost = 0
        """How many rows were dropped since the start."""

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="toolpool-record", daemon=True)
        self._thread.start()

    def add(self, draft: Draft) -> None:
        """Queue a row, in its session's order; if too many wait, drop it."""
        size = _size_of(draft)
        waiting_bytes = self._bytes_added - self._bytes_taken
        if len(self._waiting) >= _MAX_ROWS or waiting_bytes + size > _MAX_BYTES:
            self._refuse(draft)
            return
        self._waiting.append(draft)
        self._bytes_added += size
        if not self._wake.is_set():
            self._wake.set()

    def _session_of(self, draft: Draft) -> str | None:
        return None if self._is_one_file else draft.session

    def _refuse(self, draft: Draft) -> None:
        self._drop(self._session_of(draft), 1)
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "record_too_slow: %d rows wait, and further rows are dropped and counted; tool "
                "calls are not affected: put the record on a faster disk, or set "
                "TOOLPOOL_RECORD_SYNC=flush",
                len(self._waiting),
            )

    def _give_up(self, draft: Draft) -> None:
        log.exception("row_not_written tool=%s", draft.tool[:80])
        self._drop(self._session_of(draft), 1)

    def _drop(self, session: str | None, count: int) -> None:
        with self._lock:
            self._dropped[session] += count
            self.lost += count

    def close(self) -> None:
        """Write the waiting rows, for five seconds at most. Blocks."""
        if self._thread is None:
            return
        self._ends.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        left = len(self._waiting) + _rows_in(self._back, *self._in_hand)
        if left:
            log.warning(
                "record_rows_lost_at_close count=%d: they could not be written in time; tool calls "
                "are not affected: check the disk",
                left,
            )

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception:
            log.exception("record_ended: nothing more is written")
        finally:
            self._sink.close()

    def _write_all(self) -> None:
        give_up_at = 0.0
        while True:
            self._wake.wait(_AGAIN_SECONDS if self._back else None)
            if not self._ends.wait(_GATHER_SECONDS):  # batches what is added meanwhile
                self._wake.clear()
            elif not give_up_at:
                give_up_at = time.monotonic() + _CLOSE_SECONDS / 2
            is_again = bool(self._back)
            while self._waiting:
                self._write(self._page())
                is_again = False
            if is_again:
                self._write({})
            if self._ends.is_set():
                if not self._waiting and (not self._back or time.monotonic() > give_up_at):
                    break
                if self._back:
                    time.sleep(_GATHER_SECONDS)
        if self._dropped:
            self._write({})

    def _page(self) -> dict[str | None, list[bytes]]:
        """The next rows as lines, by session, in their order."""
        lines: defaultdict[str | None, list[bytes]] = defaultdict(list)
        for _ in range(min(len(self._waiting), _MAX_BATCH)):
            draft = self._waiting.popleft()
            self._bytes_taken += _size_of(draft)
            try:
                lines[self._session_of(draft)].append(draft.line(self._redact))
            except Exception:  # noqa: BLE001 - one row must not cost the others
                self._give_up(draft)
        return lines

    def _write(self, new: dict[str | None, list[bytes]]) -> None:
        back, self._back = self._back, defaultdict(list)
        self._in_hand = back, new
        self._back_bytes = 0
        with self._lock:
            dropped, self._dropped = self._dropped, Counter()
        reason: Exception | None = None
        for session in {**back, **new, **dropped}:
            lines = back.get(session, []) + new.get(session, [])
            missing = [_dropped_row(dropped[session])] if dropped[session] else []
            written: int | None = 0
            if not getattr(reason, "concerns_all", False):
                try:
                    self._sink.write(session, lines + missing)
                    continue
                except OSError as error:
                    reason, written = error, getattr(error, "written", 0)
                except Exception as error:  # noqa: BLE001 - a host's sink may raise any exception
                    reason, written = error, None
            if written is None:
                self._drop(session, written := len(lines))
            self._keep(session, lines[written:])
            if written <= len(lines):
                with self._lock:
                    self._dropped[session] += dropped[session]
        self._in_hand = ()
        self._report(reason)

    def _keep(self, session: str | None, lines: list[bytes]) -> None:
        """Keep lines so that they are written again, as far as there is room."""
        kept = 0
        for line in lines:
            if self._back_bytes + len(line) > _MAX_BYTES // 4:
                break
            self._back_bytes += len(line)
            kept += 1
        if kept:
            self._back[session] += lines[:kept]
        if kept < len(lines):
            self._drop(session, len(lines) - kept)

    def _report(self, reason: Exception | None) -> None:
        if reason is not None and not self._is_failing:
            self._is_failing = True
            log.warning(
                "record_not_written: %s: %s; tool calls are not affected. Rows wait, and are "
                "dropped if too many do: make room on the disk, create its folder again, or let "
                "this user write",
                type(reason).__name__, reason,
            )  # fmt: skip
        elif reason is None and self._is_failing:
            self._is_failing = False
            log.warning("record_written_again dropped=%d", self.lost)


def _rows_in(*pages: _Page) -> int:
    return sum(len(lines) for page in pages for lines in [*page.values()])


def _size_of(draft: Draft) -> int:
    """The approximate size of its row in bytes."""
    return len(draft.body) + _ROW_BYTES


def _dropped_row(count: int) -> bytes:
    return dropped_line(new_nonce(), int(time.time() * 1000), count)
