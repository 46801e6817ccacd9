"""Creates open calls: newly accepted, answered here, or taken over from other dispatchers."""

import time
from collections.abc import Sequence

import msgspec

from toolpool.contract import encoding
from toolpool.contract.approval_messages import ApprovalRequest
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import BackgroundCall, CallMessage
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.contract.redis_keys import retry_key, retry_of, root_of
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.calls.call_identity import idempotency_of
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.turn_options import TurnOptions

ANSWER_MARGIN_SECONDS = 1.0
"""Time between the end of the tool's timeout and the call's deadline, for the reply to arrive."""


def accepted(
    key: str,
    call: ToolCall,
    spec: ToolSpec,
    turn: TurnOptions,
    *,
    since: float,
    settings: Settings,
    queue: str,
    epoch: str,
) -> PendingCall:
    """Return a call accepted in this server epoch; its deadlines count from `since`."""
    assert call.arguments is not None
    timeout, rerunnable = timeout_of(spec, turn), spec.rerunnable
    message = CallMessage(
        key=key,
        id=call.id,
        tool=call.name,
        digest=spec.digest,
        arguments=call.arguments,
        index=call.index,
        session=turn.session,
        turn=turn.id,
        context=turn.context,
        timeout=timeout,
        rerunnable=rerunnable,
        retries=spec.retries if rerunnable else 0,
        verdict=call.verdict,
        idempotency=idempotency_of(call, turn, settings) if spec.injected else "",
    )
    return PendingCall(
        root=key,
        call=call,
        spec=spec,
        message=message,
        queue=queue,
        flow=turn.flow,
        size=len(encoding.encode(message.arguments)) + turn.context_bytes,
        start_by=since + settings.queue_timeout,
        deadline=since + settings.queue_timeout + timeout + ANSWER_MARGIN_SECONDS,
        keep=settings.result_ttl,
        began=since,
        turn_began=turn.began,
        again=turn.again,
        accepted_in=epoch,
        provider=turn.provider,
    )


def shared_by(askers: Sequence[PendingCall], key: str, *, keep: float) -> PendingCall:
    """The shared run of equal calls, which may last as long as any of them waits.

    The first call stands for all: it is queued in that call's session, and the worker and the
    observers see that call. A tool without a `ToolContext` sees neither the session nor any host
    context.
    """
    first, retries = askers[0], retry_of(key)
    spec, message = first.spec, first.message
    return PendingCall(
        root=root_of(key),
        call=first.call,
        spec=spec,
        message=msgspec.structs.replace(
            message,
            key=key,
            timeout=max(asker.message.timeout for asker in askers),
            context=message.context if spec.injected else None,
            keep=keep,
            retries=max(0, spec.retries - retries),
            idempotency="",
        ),
        queue=first.queue,
        flow=first.flow,
        size=first.size,
        start_by=max(asker.start_by for asker in askers),
        deadline=max(asker.deadline for asker in askers),
        keep=keep,
        began=first.began,
        accepted_in=first.accepted_in,
        provider=first.provider,
        retries=retries,
        reported_as=first.root,
        is_run=True,
    )


def timeout_of(spec: ToolSpec, turn: TurnOptions) -> float:
    """How long a tool may run for this turn, in seconds."""
    return turn.timeout if turn.timeout is not None else spec.timeout


def deadline_of(spec: ToolSpec, turn: TurnOptions, *, since: float, queue_timeout: float) -> float:
    """The latest time to answer a call accepted at `since`, on the monotonic clock."""
    return since + queue_timeout + timeout_of(spec, turn) + ANSWER_MARGIN_SECONDS


def answered_here(call: ToolCall, spec: ToolSpec, session: str | None) -> PendingCall:
    """A call that this dispatcher answers itself: it is on no queue and has no deadline."""
    now = time.monotonic()
    message = CallMessage(
        key=new_nonce(),
        id=call.id,
        tool=call.name,
        digest=spec.digest,
        arguments={},
        session=session,
    )
    return PendingCall(
        root=message.key,
        call=call,
        spec=spec,
        message=message,
        queue="",
        flow="",
        size=0,
        start_by=now,
        deadline=now,
        keep=0.0,
        began=now,
    )


def _call_of(message: CallMessage, kept: ApprovalRequest | BackgroundCall) -> ToolCall:
    """The call as another dispatcher had it, rebuilt from the stored message."""
    return ToolCall(
        index=message.index,
        id=message.id,
        name=message.tool,
        arguments=message.arguments,
        origin=kept.origin,
        long_id=kept.long_id,
        id_given=kept.id_given,
    )


def taken_over(
    request: ApprovalRequest,
    spec: ToolSpec,
    *,
    left: float,
    queue: str,
    settings: Settings,
    server_now: float,
) -> PendingCall:
    """A call for which another dispatcher requested approval, with `left` seconds to approve it."""
    message, now = request.message, time.monotonic()
    return PendingCall(
        root=root_of(message.key),
        call=_call_of(message, request),
        spec=spec,
        message=msgspec.structs.replace(message, keep=settings.background_result_ttl),
        queue=queue,
        flow=message.session or message.key,
        size=len(encoding.encode(message.arguments)),
        start_by=now + left,
        deadline=now + left + message.timeout + ANSWER_MARGIN_SECONDS,
        keep=settings.background_result_ttl,
        in_background=True,
        began=now - max(0.0, server_now - request.asked_at),
        provider=request.provider,
    )


def turn_of(request: ApprovalRequest) -> TurnOptions:
    """What an approval request says about the call's turn."""
    message = request.message
    return TurnOptions(
        id=message.turn,
        session=message.session,
        flow=message.session or message.key,
        context=message.context,
        provider=request.provider,
    )


def record_keys(found: BackgroundCall) -> list[str]:
    """The possible record keys of a call with a handle: its own and those of its retries.

    There is one for each retry that the tool declared when the call was dispatched.
    """
    message = found.message
    retries = retry_of(message.key) + message.retries
    return [retry_key(root_of(message.key), number) for number in range(retries + 1)]


def adopted(
    found: BackgroundCall,
    spec: ToolSpec,
    states: Sequence[str | None],
    *,
    queue: str,
    settings: Settings,
    server_now: float,
) -> PendingCall:
    """Another dispatcher's call, at its last attempt; `states` are those of its records.

    If there is no record, the dispatcher that returned the handle may not have sent the call, so it
    may still be started.
    """
    now = time.monotonic()
    deadline = now + max(0.0, found.deadline - server_now)
    last = max((n for n, state in enumerate(states) if state is not None), default=0)
    keys = record_keys(found)
    retries = len(keys) - 1 - last
    message = msgspec.structs.replace(found.message, key=keys[last], retries=retries)
    start_by = now + found.started_at + settings.queue_timeout - server_now
    may_still_start = states[last] is None and start_by > now
    return PendingCall(
        root=root_of(message.key),
        call=_call_of(message, found),
        spec=spec,
        message=message,
        queue=queue,
        flow=message.session or message.key,
        size=0,
        start_by=start_by if may_still_start else deadline,
        deadline=deadline,
        keep=settings.background_result_ttl,
        in_background=True,
        is_attached=True,
        began=now - max(0.0, server_now - found.started_at),
        published_at=now,
        accepted_in=found.epoch,
        retries=last,
        ran_before=failure(Code.EXPIRED, "", Executed.UNKNOWN) if last else None,
        is_new_outcome=states[last] not in (None, "settled"),
    )
