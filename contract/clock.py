"""Fleet time: the server's clock without its jumps, as every process of the fleet follows it.

The server keeps an offset to its clock (`contract/ledger/lua/preamble.lua`). A process that sees
fleet time go on by more or less than its own clock corrects the offset. Hosts' wall clocks are not
used: they may be hours apart.
"""

import secrets
import time
from typing import NamedTuple

import redis

from toolpool.contract.names import Names

_TOLERANCE_SECONDS = 1.0
_CORRECTED_FROM_SECONDS = 2.0
_TRIES = 3
_BETWEEN_SECONDS = 0.25
"""How long after the jump another process must have agreed at least: readings are not exact."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """A monotonic clock, in seconds, that counts the time in which the machine is suspended."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


def fleet_time(client: "redis.Redis", names: Names) -> float:
    """Fleet time as the server has it, in seconds since 1970. Raises RedisError."""
    pipeline = client.pipeline(transaction=True)
    pipeline.time()
    pipeline.get(names.epoch)
    (seconds, micros), state = pipeline.execute()
    raw = state.encode() if isinstance(state, str) else state or b""
    return float(seconds + micros / 1e6 + _State.parse(raw).offset_ms / 1000)


class _State(NamedTuple):
    """The value of the epoch key. `agreed`: when a process last agreed, by fleet time."""

    random: str
    offset_ms: int = 0
    agreed: float = float("-inf")

    @classmethod
    def parse(cls, raw: bytes) -> "_State":
        """A value of another form has no offset."""
        random, *numbers = raw.decode(errors="replace").split(" ")
        try:
            offset, agreed = map(int, numbers[:2])
        except ValueError:
            return cls(random)
        return cls(random, offset, agreed / 1000)


class _Reading(NamedTuple):
    time: float
    asked_at: float
    answered_at: float


class ServerClock:
    """Fleet time in seconds since 1970. Before the first reading it is this host's time.

    `forgets_after`: a jump forward by more seconds makes the server lose data (its keys expire).
    """

    def __init__(self, *, forgets_after: float = float("inf")) -> None:
        self._forgets_after = forgets_after
        self._offset = time.time() - elapsed()
        self._last: _Reading | None = None
        self._offset_ms = 0
        self._correction = ("", "")
        self._tries = 0

    @property
    def is_disputed(self) -> bool:
        """Whether the last reading was not taken: the next ask corrects the offset."""
        return bool(self._tries)

    def agreement(self) -> tuple[str, str, str]:
        """What the server's script is asked to agree with: see `agree_on_time` in Lua."""
        expected = str(round(self.time() * 1000)) if self._last is not None else ""
        return expected, *self._correction

    def read(
        self, server_time: float, state: str | bytes, asked_at: float, answered_at: float
    ) -> bool:
        """Take a reading of fleet time and of the epoch key's value.

        It was asked for and came at these times of `elapsed`.
        Whether the server's clock jumped since the reading before, by what is seen here or by what
        another process has corrected.
        """
        raw = state.encode() if isinstance(state, str) else state
        known, last = _State.parse(raw), self._last
        was_corrected = last is not None and known.offset_ms != self._offset_ms
        ahead = 0.0
        if last is not None:
            went_on = server_time - last.time
            least, most = asked_at - last.answered_at, answered_at - last.asked_at
            ahead = min(0.0, went_on - least) or max(0.0, went_on - most)
            if self._is_wrong(ahead, server_time - known.agreed):
                self._dispute(raw, known, went_on - (least + most) / 2)
                return True
        self._tries, self._correction = 0, ("", "")
        self._last = _Reading(server_time, asked_at, answered_at)
        self._offset_ms = known.offset_ms
        self._offset = server_time - (asked_at + answered_at) / 2
        return was_corrected or abs(ahead) > _TOLERANCE_SECONDS

    def _is_wrong(self, ahead: float, agreed_ago: float) -> bool:
        """Whether fleet time is to be corrected, and not this process.

        A monotonic clock may stand still with its virtual machine, but is never fast. So where
        fleet time is behind, it is wrong. Where it is ahead, others may have agreed meanwhile.
        """
        if abs(ahead) <= _CORRECTED_FROM_SECONDS or self._tries >= _TRIES:
            return False
        return ahead < 0 or not 0 <= agreed_ago < ahead - _BETWEEN_SECONDS

    def _dispute(self, raw: bytes, known: _State, jumped_by: float) -> None:
        self._tries += 1
        lost = jumped_by > self._forgets_after
        random = secrets.token_hex(8) if lost else known.random
        offset_ms = known.offset_ms - round(jumped_by * 1000)
        self._correction = (raw.decode(errors="replace"), f"{random} {offset_ms}")

    def time(self) -> float:
        """Now; Unix time in seconds."""
        return self._offset + elapsed()
