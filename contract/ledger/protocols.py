"""The steps that dispatchers and workers request from the ledger, and its answers."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from toolpool.contract.rates import Limit

Refusal = str
"""Why a claim was refused: absent, settled, waiting, approved, attempt, claimed, expired, moved,
`STALE`, `LIMITED` or `STARTED_OR_ENDED`."""
LIMITED = "limited"
"""A claim was refused: a rate limit is exhausted."""
STARTED_OR_ENDED = "ran"
"""A claim was refused: the call was claimed before and may not run twice, or it ended."""
STALE = "stale"
"""A claim was refused: the switches changed since the worker read them.

The worker reads them and retries.
"""

ATTEMPTS_AT_MOST = 3
RELEASES_AT_MOST = 3

NEW = b"new"
ATTACHED = b"open"
MISSING = b"missing"
SENT = b"sent"
MOVED = b"moved"
RAN = b"ran"
"""There is no record, and the call may have run: its outcome is unknown."""
UNCLAIMED = b"unclaimed"
"""The record is gone, and the call was never claimed: it may be opened again."""
WAITING = b"waiting"
"""The call waits for approval: it was not sent."""
APPROVED = b"approved"
"""The call is approved, and it was not sent yet."""
LAPSED = b"lapsed"
"""The call was approved, but not sent before the approval expired."""
OTHERS = b"others"
"""The call continues without the caller: another living dispatcher waits for it longer."""
_RUNNING = b"running "
_AGAIN = b"again "


def running(worker: str) -> bytes:
    """The answer for a call that a worker runs."""
    return _RUNNING + worker.encode()


def again(attempt: int) -> bytes:
    """The answer for a call that is in a later attempt."""
    return _AGAIN + b"%d" % attempt


class CloseReason(StrEnum):
    """Why a dispatcher closes calls."""

    UNSTARTED = "unstarted"  # queue timeout: running calls are not affected
    DEADLINE = "deadline"
    CANCEL = "cancel"  # cancelled: it ends for every dispatcher
    LEAVE = "leave"  # the caller stops waiting: it continues while another dispatcher waits
    REJECTED = "rejected"  # invalid: others' calls are not affected, and the caller does not wait
    REFUSED = "refused"  # this dispatcher will not send it: sent calls are not affected
    UNAPPROVED = "unapproved"  # not approved in time, or not sent before the approval expired
    USED = "used"  # the approval of a provider-run call was used: it is valid once
    DENIED = "denied"  # sent, but must no longer be started: running calls are not affected
    RESTORED = "restored"  # ended or sent before the server lost it: sent calls are not affected


class Opening(msgspec.Struct, frozen=True, gc=False):
    """A call to open. `wait` (to be claimed), `deadline` and `keep` are seconds from now.

    It was dispatched at `asked_at`, Unix time by the server's clock. `again`: it may have been
    opened before, so that without a record it is not run (`RAN`) unless it may run twice.
    `approved`: the caller has a signed approval; without a record the call is not run either.
    `exclusive`: two attempts of it never run at the same time.
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
    exclusive: bool = False


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A call, with its limits, for which a worker has a free slot.

    It may run twice only if both its signed message (`rerunnable`) and its record say so.
    `approved`: its message has a signed approval.
    """

    key: str
    attempt: int
    nonce: str
    limits: tuple[Limit, ...] = ()
    rerunnable: bool = True
    approved: bool = False


class ClaimRenewal(msgspec.Struct, frozen=True, gc=False):
    """A call that a worker claimed and runs."""

    key: str
    attempt: int
    claim_nonce: str
    rerunnable: bool = False


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """An outcome to store for `keep` seconds; `reply` is notified even if the record is gone."""

    key: str
    nonce: str
    keep: float
    reply: str
    body: bytes


class Closing(msgspec.Struct, frozen=True, gc=False):
    """A call to end, with a signed outcome for each possible state of its record.

    `epoch` is the one it was opened in. If it is `unsent` (never opened by this dispatcher), it is
    the epoch in which the call was accepted; without a record, a settled one is created. A refused
    call may be dispatched again after `anew_after` seconds; None: not while its record is kept.
    `leaves_mark`: it cannot be started after its end even if its record is restored.
    """

    key: str
    nonce: str
    epoch: str
    keep: float
    unclaimed: bytes
    claimed: bytes
    doubtful: bytes
    cancel: bytes = b""
    unsent: bool = False
    anew_after: float | None = None
    leaves_mark: bool = True


class RecoveryRequest(msgspec.Struct, frozen=True, gc=False):
    """A call whose message or worker (`lost_worker`) is believed lost. Times are seconds.

    `message` is for the presumed attempt, `next_message` for the one after it; if the latter is
    empty, a call with a lost worker is not started again. `had_time`: a worker that runs it has had
    time to report it in the current epoch. `epoch` is the one it was opened in.
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
    """A switch's new signed state.

    It replaces the state `before`, which is empty if there was none.
    """

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
        """Claim calls. Answers the seconds left to the deadline of each, or a `Refusal`.

        `switches` is the version of the switches that the worker knows; None skips the check. `now`
        is the server's time, by which calls under limits are counted.
        """
        ...

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """The version and states of all switches, after a change."""
        ...

    async def renew(
        self, renewals: Sequence[ClaimRenewal], *, worker: str, give_up_at: float
    ) -> list[str]:
        """Renew the claims of running calls: `renewed`, `settled`, `absent` or `lost` for each."""
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
        """Store a whole output for `keep` seconds, within its owner's share.

        Returns whether it was stored. Raises what the client raises.
        """
        ...

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Put a message on a reply stream; best effort. Raises what the client raises."""
        ...

    async def note_ended(self, keys: Sequence[str], *, keep: float) -> None:
        """Record for `keep` seconds that the tools of answered calls have ended.

        Best effort. Raises what the client raises.
        """
        ...
