"""Timeouts and heartbeats of a run."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from toolpool.contract import logs
from toolpool.contract.outcome import Code, Executed, Outcome, failure

log = logs.logger("heartbeat")

_SECOND_LOOK_SECONDS = 0.1
"""How many seconds a delayed loop may read pending heartbeats before a run counts as silent."""


def interval(heartbeat: float) -> float:
    """The interval at which heartbeats are forwarded, in seconds."""
    return min(heartbeat / 4, 0.25)


class BeatThrottle:
    """Forwards at most one heartbeat per `interval`. Never raises."""

    def __init__(self, send: Callable[[], None], heartbeat: float | None) -> None:
        self._send = send
        self._interval = interval(heartbeat) if heartbeat is not None else float("inf")
        self._open_at = 0.0 if heartbeat is not None else float("inf")

    def __call__(self) -> None:
        """Forward the heartbeat, or drop it."""
        now = time.monotonic()
        if now < self._open_at:
            return
        self._open_at = now + self._interval
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 - a heartbeat never fails a tool
            log.info("heartbeat_not_sent: %s", error)


class RunTimeout:
    """Ends the body of its `async with` by TimeoutError: at its timeout, or when it falls silent.

    `seconds` bound the run; it is silent after `heartbeat` seconds without a `beat`, which may come
    from any thread. `on_silence` is called when it is ended for silence.
    """

    def __init__(
        self,
        seconds: float,
        heartbeat: float | None,
        on_silence: Callable[[], None] = lambda: None,
        *,
        slack: float = 0.0,
    ) -> None:
        self.fell_silent = False
        self._scope = asyncio.timeout(seconds)
        self._heartbeat = heartbeat
        self._slack = slack
        self._on_silence = on_silence
        self._heard_at = 0.0
        self._suspected = False
        self._timer: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        """Record a heartbeat."""
        self._heard_at = time.monotonic()

    def outcome(self, why: str = "", *, still_running: bool = False) -> Outcome:
        """The outcome of a run that was ended; `why` is appended to its message."""
        silence = self._heartbeat if self.fell_silent and self._heartbeat is not None else 0.0
        return failure(
            Code.TIMEOUT, why, Executed.UNKNOWN, still_running=still_running, silence=silence
        )

    async def __aenter__(self) -> "RunTimeout":
        await self._scope.__aenter__()
        self.beat()
        if self._heartbeat is not None:
            self._look(self._heartbeat + self._slack)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def _look(self, patience: float) -> None:
        if self._scope.expired():
            return  # its timeout already ends it
        loop = asyncio.get_running_loop()
        left = self._heard_at + patience - time.monotonic()
        if left > 0:
            self._suspected = False
        elif self._suspected:
            self.fell_silent = True
            self._scope.reschedule(loop.time())
            self._on_silence()
            return
        else:
            self._suspected, left = True, _SECOND_LOOK_SECONDS
        self._timer = loop.call_later(left, self._look, patience)
