"""The ledger: one record a call, changed only by atomic steps (`contract/ledger/lua`).

Dispatchers `open` and `close` (expire, cancel); workers `claim` and `settle`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from toolpool.contract.ledger.steps import Step, Steps
from toolpool.contract.names import Names

Refusal = str
"""Why a claim was not won: absent, settled, attempt, claimed, expired or moved."""

_OUTPUT_SECONDS = 5.0
_OUTPUTS_SHARE = "0.75"
"""Of the memory that the server may use: beyond it no whole output is kept, and the oldest go."""

ATTEMPTS_AT_MOST = 3
RELEASES_AT_MOST = 3

NEW = b"new"
ATTACHED = b"open"
MISSING = b"missing"
SENT = b"sent"
MOVED = b"moved"
RAN = b"ran"
"""There is no record, and the call may have been run: nobody knows how it ended."""
UNCLAIMED = b"unclaimed"
"""There is no record any more, and nobody had claimed the call: it may be opened again."""
OTHERS = b"others"
"""Another living dispatcher waits for the call longer: it goes on, without the one that asked."""
_RUNNING = b"running "
_AGAIN = b"again "


def running_on(answer: bytes) -> str | None:
    """The worker in the answer `running <worker>`; None for any other answer."""
    return answer[len(_RUNNING) :].decode() if answer.startswith(_RUNNING) else None


def again_in(answer: bytes) -> int | None:
    """The attempt in the answer `again <attempt>`; None for any other answer."""
    return int(answer[len(_AGAIN) :]) if answer.startswith(_AGAIN) else None


class End(StrEnum):
    """Why a dispatcher closes calls."""

    UNSTARTED = "unstarted"  # the queue wait is over: what runs is left alone
    DEADLINE = "deadline"
    CANCEL = "cancel"
    REFUSED = "refused"  # by a dispatcher that will not send it: what others asked is left alone


@dataclass(frozen=True, slots=True)
class Opening:
    """A call to note. `wait` (to be claimed), `deadline` and `keep` are seconds from now.

    It was asked at `asked_at`, Unix time by the server's clock. `again`: it may have been asked
    before, so that without a record it is not run (`RAN`) unless it may run twice.
    """

    key: str
    attempt: int
    rerunnable: bool
    wait: float
    deadline: float
    keep: float
    asked_at: float = 0.0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A call that a worker has a free slot for."""

    key: str
    attempt: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A call that a worker claimed and runs."""

    key: str
    attempt: int
    claim_nonce: str
    rerunnable: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """An outcome to store for `keep` seconds; `reply` is told even if the record is gone."""

    key: str
    nonce: str
    keep: float
    reply: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Closing:
    """A call to end, with the signed outcome for each thing the record may say.

    `epoch` is the one it was opened in. Of an `unsent` call, which this dispatcher never opened, it
    is the one in which it was accepted; where it has no record, one is made that is settled. One
    that is refused may be asked again after `anew_after` seconds, or not while its record is kept.
    """

    key: str
    nonce: str
    epoch: str
    keep: float
    unclaimed: bytes
    claimed: bytes
    doubtful: bytes
    cancel: bytes
    unsent: bool = False
    anew_after: float | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """A call whose message, or whose `lost_worker`, is believed lost. Times are seconds.

    `message` is for the attempt it is believed to be in, `next_message` for the one after it.
    `had_time`: since the server's epoch changed, a worker that runs it could have said so.
    `epoch` is the one it was opened in.
    """

    key: str
    nonce: str
    lost_worker: str
    attempt: int
    wait: float
    message: bytes
    next_message: bytes
    keep: float
    lost: bytes
    had_time: bool = False
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """A claimed call that a worker gives back; `entered` says that its tool had started."""

    key: str
    claim_nonce: str
    notice: bytes
    keep: float
    too_often: bytes
    entered: bool


class DispatcherLedger(Protocol):
    """The steps of the asking side. All raise `ServerAway` past `give_up_at` (monotonic)."""

    async def open(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        reply: str,
        queue: str,
        message: bytes,
        give_up_at: float,
        tried_in: str | None = None,
    ) -> tuple[str, list[bytes]]:
        """Note calls and publish their message, if it is not empty.

        Answers the server's epoch, and for each call `NEW`, `ATTACHED` or `running_on` (somebody
        asked before), `MOVED`, `RAN`, or the signed outcome it already has.
        """
        ...

    async def close(
        self, closings: Sequence[Closing], *, reply: str, end: End, give_up_at: float
    ) -> list[bytes]:
        """End calls.

        Answers for each its outcome, `running_on` or `ATTACHED` (both: left alone), `OTHERS` or
        `MISSING`.
        """
        ...

    async def recover(
        self, recoveries: Sequence[Recovery], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """Start calls again that may be, and settle as lost those that may not.

        Answers for each call `SENT`, `again_in`, `running_on`, `MOVED`, `UNCLAIMED`, `MISSING` or
        its outcome.
        """
        ...


class WorkerLedger(Protocol):
    """The steps of the running side. All raise `ServerAway` past `give_up_at` (monotonic)."""

    async def claim(
        self, claims: Sequence[Claim], *, worker: str, give_up_at: float
    ) -> list[float | Refusal]:
        """Take calls. Answers for each the seconds left to its deadline, or why it was lost."""
        ...

    async def hold(self, holds: Sequence[Hold], *, worker: str, give_up_at: float) -> list[str]:
        """Say again what is claimed. Answers `held`, `settled`, `absent` or `lost` for each."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, give_up_at: float) -> list[str]:
        """Store outcomes. Answers `first`, `late` or `gone` for each."""
        ...

    async def release(
        self, releases: Sequence[Release], *, worker: str, give_up_at: float
    ) -> list[str]:
        """Give calls back. Answers `released` or `late` for each."""
        ...

    async def keep_output(self, handle: str, body: bytes, *, owner: str, keep: float) -> bool:
        """Store a whole output for `keep` seconds, within its owner's share; whether it was.

        Raises what the client does.
        """
        ...

    async def tell(self, reply: str, body: bytes) -> None:
        """Put a message on a reply stream; best effort, raises what the client does."""
        ...


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class RedisLedger:
    """Both sides' steps on a real server.

    What may not run twice is remembered for `remembered` seconds after it was claimed, its record
    or not. An owner keeps at most `outputs_bytes` of whole outputs.
    """

    def __init__(
        self,
        steps: Steps,
        names: Names,
        *,
        remembered: float = 86_400.0,
        outputs_bytes: int = 32 << 20,
    ) -> None:
        self._steps = steps
        self._names = names
        self._marks_ms = _ms(remembered)
        self._outputs_bytes = outputs_bytes

    async def open(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        reply: str,
        queue: str,
        message: bytes,
        give_up_at: float,
        tried_in: str | None = None,
    ) -> tuple[str, list[bytes]]:
        """See `DispatcherLedger.open`."""
        keys = [self._names.epoch, queue, *(self._names.call(o.key) for o in openings)]
        arguments: list[str | bytes | int] = [
            self._steps.epoch_candidate,
            nonce,
            reply,
            message,
            tried_in or "",
            self._names.ran_prefix,
            self._marks_ms,
        ]
        # One string for each: every number by itself would take longer than all the rest.
        arguments += (
            f"{opening.attempt} {opening.rerunnable:d} {_ms(opening.wait)} "
            f"{_ms(opening.deadline)} {_ms(opening.keep)} "
            f"{round(opening.asked_at * 1000)} {opening.again:d}"
            for opening in openings
        )
        epoch, *answers = await self._steps.run(Step.OPEN, keys, arguments, give_up_at=give_up_at)
        return epoch.decode(), answers

    async def close(
        self, closings: Sequence[Closing], *, reply: str, end: End, give_up_at: float
    ) -> list[bytes]:
        """See `DispatcherLedger.close`."""
        keys = [self._names.epoch, *(self._names.call(c.key) for c in closings)]
        arguments: list[str | bytes | int] = [
            self._steps.epoch_candidate,
            reply,
            self._names.cancel(""),
            self._names.ran_prefix,
            end.value,
        ]
        for closing in closings:
            arguments += (
                closing.nonce,
                closing.epoch,
                _ms(closing.keep),
                closing.unclaimed,
                closing.claimed,
                closing.doubtful,
                closing.cancel,
                int(closing.unsent),
                "" if closing.anew_after is None else _ms(closing.anew_after),
            )
        return await self._steps.run(Step.CLOSE, keys, arguments, give_up_at=give_up_at)

    async def recover(
        self, recoveries: Sequence[Recovery], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """See `DispatcherLedger.recover`."""
        keys = [self._names.epoch, queue, *(self._names.call(r.key) for r in recoveries)]
        arguments: list[str | bytes | int] = [
            self._steps.epoch_candidate,
            reply,
            ATTEMPTS_AT_MOST,
            self._names.ran_prefix,
        ]
        for recovery in recoveries:
            arguments += (
                recovery.nonce,
                recovery.lost_worker,
                recovery.attempt,
                _ms(recovery.wait),
                recovery.message,
                recovery.next_message,
                _ms(recovery.keep),
                recovery.lost,
                int(recovery.had_time),
                recovery.epoch,
            )
        return await self._steps.run(Step.RECOVER, keys, arguments, give_up_at=give_up_at)

    async def release(
        self, releases: Sequence[Release], *, worker: str, give_up_at: float
    ) -> list[str]:
        """See `WorkerLedger.release`."""
        keys = [self._names.call(r.key) for r in releases]
        arguments: list[str | bytes | int] = [worker, RELEASES_AT_MOST, self._names.ran_prefix]
        for release in releases:
            arguments += (
                release.claim_nonce,
                release.notice,
                _ms(release.keep),
                release.too_often,
                int(release.entered),
            )
        answers = await self._steps.run(Step.RELEASE, keys, arguments, give_up_at=give_up_at)
        return [answer.decode() for answer in answers]

    async def claim(
        self, claims: Sequence[Claim], *, worker: str, give_up_at: float
    ) -> list[float | Refusal]:
        """See `WorkerLedger.claim`."""
        keys = [self._names.epoch, *(self._names.call(c.key) for c in claims)]
        marks = (self._names.ran_prefix, self._marks_ms)
        arguments: list[str | bytes | int] = [self._steps.epoch_candidate, worker, *marks]
        for claim in claims:
            arguments += (claim.attempt, claim.nonce)
        answers = await self._steps.run(Step.CLAIM, keys, arguments, give_up_at=give_up_at)
        return [_verdict(answer) for answer in answers]

    async def hold(self, holds: Sequence[Hold], *, worker: str, give_up_at: float) -> list[str]:
        """See `WorkerLedger.hold`."""
        keys = [self._names.call(hold.key) for hold in holds]
        marks = (self._names.ran_prefix, self._marks_ms)
        arguments: list[str | bytes | int] = [worker, *marks]
        for hold in holds:
            arguments += (hold.attempt, hold.claim_nonce, int(hold.rerunnable))
        answers = await self._steps.run(Step.HOLD, keys, arguments, give_up_at=give_up_at)
        return [answer.decode() for answer in answers]

    async def settle(self, settlements: Sequence[Settlement], *, give_up_at: float) -> list[str]:
        """See `WorkerLedger.settle`."""
        keys = [self._names.call(s.key) for s in settlements]
        arguments: list[str | bytes | int] = []
        for settlement in settlements:
            arguments += (
                settlement.nonce,
                _ms(settlement.keep),
                settlement.reply,
                settlement.body,
            )
        answers = await self._steps.run(Step.SETTLE, keys, arguments, give_up_at=give_up_at)
        return [answer.decode() for answer in answers]

    async def keep_output(self, handle: str, body: bytes, *, owner: str, keep: float) -> bool:
        """See `WorkerLedger.keep_output`."""
        answer = await self._outputs(self._names.output(handle), owner, handle, body, keep)
        return answer == b"kept"

    async def make_room(self) -> None:
        """Drop the oldest whole outputs where the server is short of memory."""
        await self._outputs("", "", "", b"", 1.0)

    async def _outputs(self, key: str, owner: str, handle: str, body: bytes, keep: float) -> bytes:
        (answer,) = await self._steps.run(
            Step.OUTPUT,
            [key, self._names.outputs, self._names.outputs_of(owner)],
            [
                self._names.output(""),
                handle,
                body,
                _ms(keep),
                self._outputs_bytes,
                _OUTPUTS_SHARE,
            ],
            give_up_at=time.monotonic() + _OUTPUT_SECONDS,
        )
        return bytes(answer)

    async def tell(self, reply: str, body: bytes) -> None:
        """See `WorkerLedger.tell`."""
        await self._steps.tell(reply, body)


def _verdict(answer: bytes) -> float | Refusal:
    try:
        return int(float(answer)) / 1000
    except ValueError:
        return answer.decode()
