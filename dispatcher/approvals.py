"""Lists and decides the approvals of calls that wait for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from toolpool.contract.approval_messages import (
    ApprovalDecision,
    ApprovalReader,
    ApprovalRequest,
    ApprovalState,
    may_decide,
)
from toolpool.contract.encoding import printable
from toolpool.contract.envelope import Decided, Envelope
from toolpool.contract.errors import ApprovalRefused, MessageRejected
from toolpool.contract.ledger.approval_steps import ApprovalRecord, DecisionStep
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import wording_of
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.policy.approval_view import Approval, approval_of
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.dispatcher.turn_options import require_name, require_text

_LONGEST_REASON = 1_000
_LISTED_AT_MOST = 10_000
_EXPIRED = "expired: the call was answered, and is not run"


class Approvals:
    """The approvals of one tenant, of all dispatchers.

    Every method raises `ServerUnavailable` if Redis does not answer.
    """

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, redis_url: str | None = None, *, settings: Settings | None = None
    ) -> AsyncIterator[Self]:
        """Connect to a fleet's approvals, for a program that only decides.

        Raises `Misconfigured`.
        """
        settings = settings or Settings()
        if redis_url is not None:
            settings = settings.model_copy(update={"redis_url": redis_url})
        transport = RedisTransport(settings)
        envelope = Envelope(connection.keyring(settings), max_bytes=settings.max_message_bytes)
        try:
            await transport.open()
            await transport.survey([])  # to learn the server's clock
            yield cls(Services(transport, envelope, settings, Observers()))
        finally:
            await transport.close()
            await transport.events.close()

    def __init__(self, services: Services) -> None:
        self._ledger = services.transport.approvals
        self._transport = services.transport
        self._envelope = services.envelope
        settings = services.settings
        self._reader = ApprovalReader(services.envelope, settings.tenant, settings.key_prefix)
        self._wording = wording_of(services.settings)

    async def waiting(self, *, session: str | None = None) -> list[Approval]:
        """The pending approvals of one session, or of all, ordered by expiry.

        Raises ValueError for an invalid session.
        """
        require_name("session", session)
        found: list[Approval] = []
        now = self._transport.server_time()
        records = await self._ledger.waiting(_LISTED_AT_MOST, now=now)
        for record in records:
            request = self._request(record)
            if request is not None and session in (None, request.message.session):
                found.append(approval_of(request))
        return found

    async def get(self, id: str) -> Approval:
        """An approval in any state. Raises KeyError if no approval has this id."""
        record, request = await self._find(id)
        return self._shown(record, request)

    async def approve(
        self, id: str, *, by: str, digest: str | None = None, reason: str = ""
    ) -> Approval:
        """Let a call run once, with exactly the arguments in its approval request.

        `by` names the approver: the caller is responsible for authenticating them. `digest` is the
        digest of the arguments that the approver saw. Raises KeyError for an unknown id;
        `ApprovalRefused` if the approval is decided, expired or cancelled, if `by` is not
        authorized, or if the digest differs; ValueError for a `by` or a `reason` that is not text.
        """
        return await self._decide(id, ApprovalState.APPROVED, by, digest, reason)

    async def deny(
        self, id: str, *, by: str, digest: str | None = None, reason: str = ""
    ) -> Approval:
        """Have a call answered `aborted.denied`; the model reads `reason`.

        Raises as `approve` does.
        """
        return await self._decide(id, ApprovalState.DENIED, by, digest, reason)

    async def _decide(
        self, id: str, state: ApprovalState, by: Any, digest: str | None, reason: Any
    ) -> Approval:
        require_text("by", by)
        if reason != "":
            require_text("reason", reason, _LONGEST_REASON)
        record, request = await self._find(id)
        if record.shown is not ApprovalState.WAITING:
            raise self._decided(record, request)
        if digest is not None and digest != request.digest:
            raise ApprovalRefused(
                "other_arguments",
                f"approval {id} is for other arguments than those with the digest {digest}: look "
                "at it again",
            )
        if not may_decide(by, request.approvers):
            raise ApprovalRefused(
                "not_allowed",
                f"{by} may not decide about approval {id}: {', '.join(request.approvers)} may",
            )
        now = self._transport.server_time()
        if now >= request.expires_at:  # even if its unsigned record says otherwise
            raise ApprovalRefused("decided", f"approval {id} is {_EXPIRED}")
        decision = ApprovalDecision(
            key=id,
            tenant=request.tenant,
            prefix=request.prefix,
            digest=request.digest,
            approved=state is ApprovalState.APPROVED,
            by=by,
            at=now,
            ends_at=request.expires_at + request.start_within,
            reason=reason,
        )
        refused = await self._ledger.decide(self._deciding(decision), now=now)
        if refused == ApprovalState.EXPIRED:
            raise ApprovalRefused("decided", f"approval {id} is {_EXPIRED}")
        if refused:  # another decision came first
            raise self._decided(*await self._find(id))
        return approval_of(request, state, decision)

    def _deciding(self, decision: ApprovalDecision) -> DecisionStep:
        body = self._envelope.encode(decision)
        said = texts.denied_by(decision.by, decision.reason, self._wording)
        no, doubtful = (
            self._envelope.encode_settled(decision.key, failure(Code.DENIED, said, executed))
            for executed in (Executed.NO, Executed.UNKNOWN)
        )
        return DecisionStep(
            key=decision.key,
            nonce=new_nonce(),
            decision=body,
            notice=self._envelope.encode_reply(Decided(key=decision.key, decision=body)),
            approved=decision.approved,
            ends_at=decision.ends_at,
            no=no,
            doubtful=doubtful,
        )

    def _decided(self, record: ApprovalRecord, request: ApprovalRequest) -> ApprovalRefused:
        shown = self._shown(record, request)
        if shown.state is ApprovalState.EXPIRED:
            told = _EXPIRED
        elif shown.state is ApprovalState.CANCELLED:
            told = "cancelled with its call"
        elif shown.state is ApprovalState.DENIED:
            told = f"denied by {shown.decided_by}: the call is not run"
        else:
            told = f"approved by {shown.decided_by}: a dispatcher sends the call, or has sent it"
        return ApprovalRefused("decided", f"approval {request.id} is {told}")

    async def _find(self, id: Any) -> tuple[ApprovalRecord, ApprovalRequest]:
        if isinstance(id, str) and id and printable(id) == id and ":" not in id:
            record = await self._ledger.read(id, now=self._transport.server_time())
            request = self._request(record)
            if request is not None:
                return record, request
        raise KeyError(f"there is no approval {str(id)[:40]!r}: it is unknown or expired")

    def _request(self, record: ApprovalRecord) -> ApprovalRequest | None:
        return self._reader.trusted_request(record.key, record.request)

    def _shown(self, record: ApprovalRecord, request: ApprovalRequest) -> Approval:
        decision = None
        if record.decision:
            try:
                decision = self._reader.decision(request.id, record.decision, request.digest)
            except MessageRejected:
                decision = None
        return approval_of(request, record.shown or ApprovalState.SENT, decision)
