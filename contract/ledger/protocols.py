"""What both sides ask of the ledger, and what it answers."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from toolpool.contract.rates import Limit

Refusal = str
"""Why a claim was not won: absent, settled, waiting, approved, attempt, claimed, expired, moved,
`STALE`, `LIMITED` or `STARTED_OR_ENDED`."""
LIMITED = "limited"
"""Why a claim was not won: a limit has no place for it."""
STARTED_OR_ENDED = "ran"
"""The call was claimed before and may not run twice, or it ended: its record was put back."""
STALE = "stale"
"""A switch has changed since the worker read them: it reads them, and claims what they allow."""

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
WAITING = b"waiting"
"""A person has to approve the call: it was not sent."""
APPROVED = b"approved"
"""A person has approved the call, and nobody has sent it yet."""
LAPSED = b"lapsed"
"""The call was approved, and nobody sent it while it was."""
OTHERS = b"others"
"""Another living dispatcher waits for the call longer: it goes on, without the one that asked."""
_RUNNING = b"running "
_AGAIN = b"again "


def running(worker: str) -> bytes:
    """The answer for a call that a worker has."""
    return _RUNNING + worker.encode()


def running_on(answer: bytes) -> str | None:
    """The worker in the answer `running <worker>`; None for any other answer."""
    return answer[len(_RUNNING) :].decode(errors="replace") if answer.startswith(_RUNNING) else None


def again(attempt: int) -> bytes:
    """The answer for a call that is in a later attempt."""
    return _AGAIN + b"%d" % attempt


def again_in(answer: bytes) -> int | None:
    """The attempt in the answer `again <attempt>`; None for any other answer."""
    attempt = answer[len(_AGAIN) :]
    is_number = attempt.isdigit() and len(attempt) < 10
    return int(attempt) if answer.startswith(_AGAIN) and is_number else None


class CloseReason(StrEnum):
    """Why a dispatcher closes calls."""

    UNSTARTED = "unstarted"  # the queue wait is over: what runs is left alone
    DEADLINE = "deadline"
    CANCEL = "cancel"  # somebody said so: it ends for every dispatcher
    LEAVE = "leave"  # the caller waits no longer: it goes on while another dispatcher waits
    REFUSED = "refused"  # by a dispatcher that will not send it: what others asked is left alone
    UNAPPROVED = "unapproved"  # nobody approved it in time, or sent it while it was approved
    USED = "used"  # what its provider runs was approved: that is said once
    DENIED = "denied"  # it was sent, and may not be started any more: what runs is left alone


class Opening(msgspec.Struct, frozen=True, gc=False):
    """A call to note. `wait` (to be claimed), `deadline` and `keep` are seconds from now.

    It was asked at `asked_at`, Unix time by the server's clock. `again`: it may have been asked
    before, so that without a record it is not run (`RAN`) unless it may run twice. `approved`: the
    caller has the decision of a person who may; without a record it is not run either.
    """

    key: str
    attempt: int
    rerunnable: bool
    wait: float
    deadline: float
    keep: float
    asked_at: float = 0.0
    again: bool = False
    approved: bool = False


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A call that a worker has a free slot for, and the limits that it is under.

    It may run twice only if it is `rerunnable`, as its signed message says, and its record says so.
    `approved`: its message has the decision of a person.
    """

    key: str
    attempt: int
    nonce: str
    limits: tuple[Limit, ...] = ()
    rerunnable: bool = True
    approved: bool = False


class Hold(msgspec.Struct, frozen=True, gc=False):
    """A call that a worker claimed and runs."""

    key: str
    attempt: int
    claim_nonce: str
    rerunnable: bool = False


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """An outcome to store for `keep` seconds; `reply` is told even if the record is gone."""

    key: str
    nonce: str
    keep: float
    reply: str
    body: bytes


class Closing(msgspec.Struct, frozen=True, gc=False):
    """A call to end, with the signed outcome for each thing the record may say.

    `epoch` is the one it was opened in. Of an `unsent` call, which this dispatcher never opened, it
    is the one in which it was accepted; where it has no record, one is made that is settled. One
    that is refused may be asked again after `anew_after` seconds, or not while its record is kept.
    `leaves_mark`: it is not started after its end although somebody puts its record back.
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
    leaves_mark: bool = True


class Recovery(msgspec.Struct, frozen=True, gc=False):
    """A call whose message, or whose `lost_worker`, is believed lost. Times are seconds.

    `message` is for the attempt it is believed to be in, `next_message` for the one after it; if
    that is empty, a call whose worker is lost is not started again.
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


class SwitchChange(msgspec.Struct, frozen=True, gc=False):
    """A switch's new signed state, to be set in place of the one `before` (empty: none)."""

    field: str
    before: bytes
    after: bytes


class Release(msgspec.Struct, frozen=True, gc=False):
    """A claimed call that a worker gives back; `entered` says that its tool had started."""

    key: str
    claim_nonce: str
    notice: bytes
    keep: float
    too_often: bytes
    entered: bool


class DispatcherLedger(Protocol):
    """The steps of the asking side. All raise `ServerUnavailable` past `give_up_at` (monotonic)."""

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
        asked before), `MOVED`, `RAN`, `WAITING` or `APPROVED` (a person has to approve it, or
        has, and the opening does not say so), `LAPSED`, or the signed outcome it already has.
        """
        ...

    async def close(
        self, closings: Sequence[Closing], *, reply: str, end: CloseReason, give_up_at: float
    ) -> list[bytes]:
        """End calls.

        Answers for each its outcome, `running_on`, `ATTACHED`, `WAITING` or `APPROVED` (all: left
        alone), `OTHERS` or `MISSING`.
        """
        ...

    async def recover(
        self, recoveries: Sequence[Recovery], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """Start calls again that may be, and settle as lost those that may not.

        Answers for each call `SENT`, `again_in`, `running_on`, `MOVED`, `UNCLAIMED`, `MISSING`,
        `WAITING`, `APPROVED` or its outcome.
        """
        ...


class WorkerLedger(Protocol):
    """The steps of workers. All raise `ServerUnavailable` past `give_up_at` (monotonic)."""

    async def claim(
        self,
        claims: Sequence[Claim],
        *,
        worker: str,
        give_up_at: float,
        switches: str | None = None,
        now: float = 0.0,
    ) -> list[float | Refusal]:
        """Take calls. Answers for each the seconds left to its deadline, or why it was lost.

        `switches` is their version that the worker knows; with None they are not looked at. `now`
        is the server's time, by which calls under limits are counted.
        """
        ...

    async def switches(self, change: SwitchChange | None = None) -> tuple[str, dict[str, bytes]]:
        """See `SwitchLedger.switches`."""
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

    async def note_ended(self, keys: Sequence[str], *, keep: float) -> None:
        """Note that tools ended whose calls had been answered; best effort, raises as `tell`.

        It is kept for `keep` seconds.
        """
        ...
