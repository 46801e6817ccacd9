"""The one thread that writes the session record: in order, off the event loop, bounded."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from toolpool.contract import logs
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.dispatcher.observers.record_rows import Draft, RecordSink, Redact, dropped_line

log = logs.logger("record")

_ROWS_AT_MOST = 50_000
_BYTES_AT_MOST = 64 << 20
_TOGETHER_AT_MOST = 1_000
_GATHER_SECONDS = 0.1
"""Half as long costs more of each call at full load; four times as long, no less."""
_AGAIN_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
_ROW_BYTES = 400
"""What a row takes beside its content."""
_Page = Mapping[str | None, Sequence[bytes]]
"""Lines by session."""


class Writer:
    """Writes rows from a thread of its own, so that no call waits for a disk.

    The rows that wait are bounded; further ones are dropped and counted, and a row of the record
    says how many. `add` is called on one thread at a time, and returns at once.
    """

    def __init__(self, sink: RecordSink, *, redact: Redact | None) -> None:
        self._sink = sink
        self._is_one_file = getattr(sink, "is_one_file", False)
        self._redact = redact
        self._waiting: deque[Draft] = deque()
        self._bytes_added = 0
        self._bytes_taken = 0
        """By the thread, which alone changes it."""
        self._lock = threading.Lock()
        self._dropped: Counter[str | None] = Counter()
        self._back: defaultdict[str | None, list[bytes]] = defaultdict(list)
        """Lines that could not be written yet, by session."""
        self._back_bytes = 0
        self._in_hand: tuple[_Page, ...] = ()
        """What is being handed to the sink."""
        self._wake = threading.Event()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False
        self._has_said_full = False
        self.lost = 0
        """How many rows were dropped since the start."""

    def start(self) -> None:
        """Write from now on."""
        self._thread = threading.Thread(target=self._run, name="toolpool-record", daemon=True)
        self._thread.start()

    def add(self, draft: Draft) -> None:
        """Write a row soon, in its session's order; if too many wait, drop it."""
        size = _size_of(draft)
        waiting_bytes = self._bytes_added - self._bytes_taken
        if len(self._waiting) >= _ROWS_AT_MOST or waiting_bytes + size > _BYTES_AT_MOST:
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
        if not self._has_said_full:
            self._has_said_full = True
            log.warning(
                "record_too_slow: %d rows wait and the next ones are dropped and counted; calls go "
                "on: put the record on a faster disk, or set TOOLPOOL_RECORD_SYNC=flush",
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
        """Write what waits, for a few seconds at most. Blocks."""
        if self._thread is None:
            return
        self._ends.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        left = len(self._waiting) + _rows_in(self._back, *self._in_hand)
        if left:
            log.warning(
                "record_rows_lost_at_the_end count=%d: what the record is written to did not take "
                "them in time; tool calls are not affected: look at its disk",
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
            if not self._ends.wait(_GATHER_SECONDS):  # what comes meanwhile is written together
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
        for _ in range(min(len(self._waiting), _TOGETHER_AT_MOST)):
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
            missing = [_told(dropped[session])] if dropped[session] else []
            written: int | None = 0
            if not getattr(reason, "concerns_all", False):
                try:
                    self._sink.write(session, lines + missing)
                    continue
                except OSError as error:
                    reason, written = error, getattr(error, "written", 0)
                except Exception as error:  # noqa: BLE001 - a host's own sink may raise anything
                    reason, written = error, None
            if written is None:
                self._drop(session, written := len(lines))
            self._keep(session, lines[written:])
            if written <= len(lines):
                with self._lock:
                    self._dropped[session] += dropped[session]
        self._in_hand = ()
        self._tell(reason)

    def _keep(self, session: str | None, lines: list[bytes]) -> None:
        """Hold lines until they can be written, as far as there is room."""
        kept = 0
        for line in lines:
            if self._back_bytes + len(line) > _BYTES_AT_MOST // 4:
                break
            self._back_bytes += len(line)
            kept += 1
        if kept:
            self._back[session] += lines[:kept]
        if kept < len(lines):
            self._drop(session, len(lines) - kept)

    def _tell(self, reason: Exception | None) -> None:
        if reason is not None and not self._is_failing:
            self._is_failing = True
            log.warning(
                "record_not_written: %s: %s; calls go on, rows wait and are dropped where too many "
                "do: make room on the disk, make its folder again, or let this user write there",
                type(reason).__name__, reason,
            )  # fmt: skip
        elif reason is None and self._is_failing:
            self._is_failing = False
            log.warning("record_written_again dropped=%d", self.lost)


def _rows_in(*pages: _Page) -> int:
    return sum(len(lines) for page in pages for lines in [*page.values()])


def _size_of(draft: Draft) -> int:
    """About how many bytes its row will take."""
    return len(draft.body) + _ROW_BYTES


def _told(count: int) -> bytes:
    return dropped_line(new_nonce(), int(time.time() * 1000), count)
