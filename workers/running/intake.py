"""Counts and logs messages that are dropped: a few lines a minute, however many there are."""

import logging
import time

log = logging.getLogger("toolpool.executor")

_WINDOW_SECONDS = 60.0
_LINES = 50


class Rejections:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self.count = 0
        self._window_ends = 0.0
        self._in_window = 0

    def note(self, reason: str, why: str) -> None:
        """One more, for `reason`; `why` in words, without its content."""
        self.count += 1
        now = time.monotonic()
        if now >= self._window_ends:
            self._say_rest()
            self._window_ends, self._in_window = now + _WINDOW_SECONDS, 0
        self._in_window += 1
        if self._in_window <= _LINES:
            log.warning("message_rejected reason=%s: %s", reason, why)
        if self._in_window == _LINES:
            log.warning("message_rejected: more within a minute are only counted")

    def _say_rest(self) -> None:
        if self._in_window > _LINES:
            log.warning("messages_rejected more=%d", self._in_window - _LINES)
