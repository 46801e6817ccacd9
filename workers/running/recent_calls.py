"""Remembers early cancels and entered attempts of calls that a worker does not run."""

import time
from collections import OrderedDict

from toolpool.contract.envelope import CallMessage

_CANCELS_SECONDS = 30.0
_CANCELS_AT_MOST = 1_000
_ENTERED_AT_MOST = 50_000


class EarlyCancels:
    """Cancels of calls that do not run here; their claim may still be in flight."""

    def __init__(self) -> None:
        self._came_at: dict[str, float] = {}

    def note(self, key: str) -> None:
        """Record a cancel."""
        now = time.monotonic()
        self._came_at[key] = now
        for known, came_at in list(self._came_at.items()):  # oldest first
            if now - came_at < _CANCELS_SECONDS and len(self._came_at) <= _CANCELS_AT_MOST:
                break
            del self._came_at[known]

    def take(self, key: str) -> bool:
        """Whether a cancel came during the claim; an older one was for another run."""
        came_at = self._came_at.pop(key, None)
        return came_at is not None and time.monotonic() - came_at < _CANCELS_SECONDS


class Entered:
    """Attempts started here of calls that may not run twice, oldest first.

    They prevent a second start on this worker if a record is lost or forged.
    """

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[str, int], None] = OrderedDict()

    def again(self, call: CallMessage) -> bool:
        """Whether this attempt was started here before; records it as started."""
        if call.rerunnable:
            return False
        attempt = (call.key, call.attempt)
        if attempt in self._attempts:
            return True
        self._attempts[attempt] = None
        if len(self._attempts) > _ENTERED_AT_MOST:
            self._attempts.popitem(last=False)
        return False
