"""The server's clock, as a process follows it: hosts' own clocks may be hours apart."""

import time

_TOLERANCE_SECONDS = 1.0


class ServerClock:
    """Unix time as the server has it. Before the first reading it is this host's."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._last: tuple[float, float, float] | None = None
        self.jumped_by = 0.0
        """Seconds by which the last reading is ahead of the one before it."""

    def read(self, server_time: float, asked_at: float, answered_at: float) -> bool:
        """Take a reading, with when it was asked for and came (monotonic).

        Whether the clock has jumped since the reading before: it has gone on by more or less than
        can have passed here between the two.
        """
        last, self._last = self._last, (server_time, asked_at, answered_at)
        self._offset = server_time - (asked_at + answered_at) / 2
        if last is None:
            return False
        went_on = server_time - last[0]
        least, most = asked_at - last[2], answered_at - last[1]
        self.jumped_by = went_on - (least + most) / 2
        return not least - _TOLERANCE_SECONDS <= went_on <= most + _TOLERANCE_SECONDS

    def time(self) -> float:
        """Now, on the server's clock; Unix time in seconds."""
        return self._offset + time.monotonic()
