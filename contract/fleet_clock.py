"""Fleet time: the server's clock without its jumps, shared by all processes of the fleet.

The server keeps an offset to its clock (`contract/ledger/lua/preamble.lua`). A process that sees
fleet time drift from its own monotonic clock corrects the offset and signs it. The hosts' wall
clocks are not used: they may be hours apart.
"""

import math
import re
import secrets
import time
from typing import NamedTuple

import redis

from toolpool.contract.errors import MessageRejected
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server.connection import keyring
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring

_TOLERANCE_SECONDS = 1.0
_CORRECTED_FROM_SECONDS = 2.0
_TRIES = 3
_BETWEEN_SECONDS = 0.25
"""Another process must have confirmed the time at least this many seconds after the jump."""
_AGREED_WITHIN_SECONDS = 4.0
_PATIENCE_SECONDS = 3.0
"""Longer than the interval at which the processes of a fleet read the server's clock."""
_DRIFT = 0.001
"""How far the clocks of two hosts may drift apart, in seconds per second."""
DOUBT_SECONDS = 0.2
"""How long to wait before the next reading if a reading is doubtful."""
_PURPOSE = "clock"
_MILLISECONDS = re.compile(r"-?\d{1,15}")

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """A monotonic clock in seconds that includes the time in which the machine is suspended."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


def fleet_time(client: "redis.Redis", settings: Settings) -> float:
    """Read fleet time from the server, in seconds since 1970. Raises RedisError.

    An offset that none of our keys signed counts as 0.
    """
    pipeline = client.pipeline(transaction=True)
    pipeline.time()
    pipeline.get(RedisKeys(settings.key_prefix).epoch)
    (seconds, micros), state = pipeline.execute()
    known = _State.parse(state.encode() if isinstance(state, str) else state or b"")
    is_signed = known.is_signed(keyring(settings), settings.key_prefix)
    return float(seconds + micros / 1e6 + (known.offset_ms / 1000 if is_signed else 0.0))


class _State(NamedTuple):
    """The value of the epoch key.

    `agreed`: the fleet time at which a process last confirmed the offset.
    """

    random: str
    offset_ms: int = 0
    agreed: float = float("-inf")
    signature: str = ""

    @classmethod
    def parse(cls, raw: bytes) -> "_State":
        """Parse the value; an unknown format counts as no offset."""
        words = raw.decode(errors="replace").split(" ")
        random, offset, agreed, _, signature = (*words, *[""] * 5)[:5]
        if not _MILLISECONDS.fullmatch(offset):
            return cls(random)
        agreed_ms = int(agreed) if _MILLISECONDS.fullmatch(agreed) else 0
        return cls(random, int(offset), agreed_ms / 1000 or float("-inf"), signature)

    def is_signed(self, keyring: Keyring, prefix: str) -> bool:
        """Whether a process with the signing key confirmed this offset at `agreed`."""
        agreed_ms = round(self.agreed * 1000) if self.agreed > 0 else 0
        body = _body(prefix, self.random, self.offset_ms, agreed_ms)
        try:
            return bool(keyring.verify(_PURPOSE, self.signature.encode() + b"." + body))
        except MessageRejected:
            return False


def _body(prefix: str, random: str, offset_ms: int, agreed_ms: int) -> bytes:
    return f"{prefix} {random} {offset_ms} {agreed_ms}".encode()


class _Dispute(NamedTuple):
    """A rejected reading: its raw value, the right offset, and the rejections in a row."""

    seen: str
    right_ms: int
    tries: int


class _Reading(NamedTuple):
    time: float
    asked_at: float
    answered_at: float


class FleetClock:
    """Fleet time in seconds since 1970; this host's time before the first reading.

    An offset counts if one of the keys of `keyring` signed it for the deployment `prefix`.
    `forgets_after`: a forward jump by more seconds makes the server lose data (its keys expire).
    """

    def __init__(
        self, keyring: Keyring, prefix: str = "", *, forgets_after: float = float("inf")
    ) -> None:
        self._keyring = keyring
        self._prefix = prefix
        self._forgets_after = forgets_after
        self._offset = time.time() - elapsed()
        self._error, self._set_at = math.inf, 0.0
        """The largest possible error of `_offset` in seconds, and the time at which it was set."""
        self._last: _Reading | None = None
        self._random = ""
        self._offset_ms = 0
        self._dispute: _Dispute | None = None
        self._doubted_since: float | None = None
        self._read_since = math.inf
        """When the first reading was accepted, by `elapsed`."""

    @property
    def _is_new(self) -> bool:
        """Whether a clock jump that others have yet to correct may precede the first reading."""
        return elapsed() - self._read_since < _PATIENCE_SECONDS

    @property
    def is_doubtful(self) -> bool:
        """Whether no reading was accepted yet.

        Other processes may be about to correct fleet time.
        """
        return self._last is None

    @property
    def is_disputed(self) -> bool:
        """Whether the last reading was rejected: the next request corrects the offset."""
        return self._dispute is not None

    def agreement(self) -> tuple[str, str, str]:
        """The arguments of `agree_on_time` in Lua."""
        if self._last is None or (self._is_new and self._dispute is None):
            return "", "", ""
        seen, right_ms, _ = self._dispute or _Dispute("", self._offset_ms, 0)
        expected = round(self.time() * 1000)
        body = _body(self._prefix, self._random, right_ms, expected)
        signature = self._keyring.sign(_PURPOSE, body)[: -len(body) - 1].decode()
        return str(expected), seen, f"{self._random} {right_ms} {signature}"

    def read(
        self, server_time: float, state: str | bytes, asked_at: float, answered_at: float
    ) -> bool:
        """Apply a reading of the server's clock and the epoch key.

        Returns whether the clock jumped. `asked_at` and `answered_at` are the times of request and
        reply by `elapsed`. This process notices a jump itself, or by another process's correction
        of the offset.
        """
        raw = state.encode() if isinstance(state, str) else state
        known, last = _State.parse(raw), self._last
        self._random = known.random
        if not (is_signed := known.is_signed(self._keyring, self._prefix)):
            known = known._replace(agreed=float("-inf"))
        # An offset that was written or restored without the key counts as unchanged.
        is_trusted = self._is_trusted(known, server_time, is_signed=is_signed)
        offset_ms = known.offset_ms if is_trusted else self._offset_ms
        fleet_time = server_time + offset_ms / 1000
        if last is None and is_trusted and self._is_in_doubt(fleet_time - known.agreed):
            return False
        was_corrected = last is not None and offset_ms != self._offset_ms
        ahead = 0.0
        if last is not None:
            went_on = fleet_time - last.time
            least, most = asked_at - last.answered_at, answered_at - last.asked_at
            ahead = min(0.0, went_on - least) or max(0.0, went_on - most)
            follows = was_corrected and self._is_new
            if not follows and self._is_wrong(ahead, fleet_time - known.agreed):
                self._start_dispute(raw, offset_ms, went_on - (least + most) / 2)
                return True
        self._read_since = min(self._read_since, elapsed())
        self._last = _Reading(fleet_time, asked_at, answered_at)
        self._offset_ms = offset_ms
        self._set_offset(fleet_time - (asked_at + answered_at) / 2, asked_at, answered_at)
        if not is_trusted and self._tries < _TRIES:
            self._start_dispute(raw, offset_ms, 0.0)
        else:
            self._dispute = None
        return was_corrected or abs(ahead) > _TOLERANCE_SECONDS

    def _set_offset(self, offset: float, asked_at: float, answered_at: float) -> None:
        """Adopt the offset if it is at least as precise as the kept one, or contradicts it."""
        error = (answered_at - asked_at) / 2
        known_error = self._error + _DRIFT * (answered_at - self._set_at)
        if error <= known_error or abs(offset - self._offset) > error + known_error:
            self._offset, self._error, self._set_at = offset, error, answered_at

    def _is_trusted(self, known: _State, server_time: float, *, is_signed: bool) -> bool:
        """Whether a process with the key set this offset; a changed offset must be recent."""
        if self._last is None:
            return is_signed or not known.offset_ms  # every server begins with the offset 0
        agreed_ago = server_time + known.offset_ms / 1000 - known.agreed
        return known.offset_ms == self._offset_ms or abs(agreed_ago) <= _AGREED_WITHIN_SECONDS

    def _is_in_doubt(self, agreed_ago: float) -> bool:
        """Whether to reject a first reading because no running process confirmed fleet time
        recently. Either there is no such process, or the server's clock jumped and no process has
        read it since.
        """
        if agreed_ago == float("inf") or abs(agreed_ago) <= _AGREED_WITHIN_SECONDS:
            return False
        if self._doubted_since is None:
            self._doubted_since = elapsed()
        return elapsed() - self._doubted_since < _PATIENCE_SECONDS

    def _is_wrong(self, ahead: float, agreed_ago: float) -> bool:
        """Whether fleet time is wrong, rather than this process's clock.

        A monotonic clock may stop with its virtual machine but never runs fast. So fleet time that
        is behind is wrong, and fleet time that is ahead is right if other processes confirmed it
        meanwhile.
        """
        if abs(ahead) <= _CORRECTED_FROM_SECONDS or self._tries >= _TRIES:
            return False
        return ahead < 0 or not -_TOLERANCE_SECONDS <= agreed_ago < ahead - _BETWEEN_SECONDS

    def _start_dispute(self, raw: bytes, offset_ms: int, jumped_by: float) -> None:
        if jumped_by > self._forgets_after:
            self._random = secrets.token_hex(8)
        right_ms = offset_ms - round(jumped_by * 1000)
        self._dispute = _Dispute(raw.decode(errors="replace"), right_ms, self._tries + 1)

    @property
    def _tries(self) -> int:
        return self._dispute.tries if self._dispute is not None else 0

    def time(self) -> float:
        """The current fleet time as Unix time in seconds."""
        return self._offset + elapsed()
