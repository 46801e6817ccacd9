"""Background calls.

When the wait budget of a call ends, it gets a handle; its result is returned later on request.
Models get three tools for handles; hosts get the same as methods. The final result is never a
second `tool_result` for the first call's id.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from toolpool.contract import encoding, logs
from toolpool.contract.call import ToolCall
from toolpool.contract.encoding import printable
from toolpool.contract.envelope import BackgroundCall, Settled, StoredOutput
from toolpool.contract.errors import MessageRejected, ServerError
from toolpool.contract.ledger.lua_scripts import growing_pauses
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.result import State, ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.task_tools import (
    LISTED_AT_MOST,
    LONGEST_WAIT_SECONDS,
    SPECS,
)
from toolpool.dispatcher.approval_waits import ApprovalWaits
from toolpool.dispatcher.calls import pending_factory
from toolpool.dispatcher.calls.in_flight import InFlightCalls
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.classifier import classified
from toolpool.dispatcher.completed_handles import CompletedHandles, Notice
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.outcomes import not_cancelled, unreachable
from toolpool.dispatcher.results import Results
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("background")

_KEEP_HANDLE_SECONDS = 0.25
"""How long past its wait budget a call may be answered, to store its handle first."""
_LONGEST_PAUSE_SECONDS = 2.0
_OWN_KEPT = 1_000
_LOOKED_AT = 16


NO_SUCH_HANDLE = (
    "no such handle: it is unknown, has expired, or belongs to another session; use output() for "
    "the handle of a long output, and task_result() for that of a background call"
)


class NoSuchPage(ValueError):
    """Raised for a page number that an output does not have."""

    def __init__(self, page: int, pages: int) -> None:
        super().__init__(f"there is no page {page}: the output has {pages}, counted from 1")
        self.page = page
        self.pages = pages


class Background:
    """The handles of one dispatcher's tenant.

    Any dispatcher can adopt a handle of a dead dispatcher.
    """

    def __init__(
        self,
        services: Services,
        in_flight: InFlightCalls,
        catalog: Catalog,
        results: Results,
        wording: Wording,
        approval_waits: ApprovalWaits,
    ) -> None:
        self._approval_waits = approval_waits
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = services.settings
        self._observers = services.observers
        self._in_flight = in_flight
        self._catalog = catalog
        self._results = results
        self._wording = wording
        self._completed = CompletedHandles()
        self._cancelling: set[str] = set()
        """The handles to cancel once the server answers."""
        self._own: dict[str, BackgroundCall] = {}
        """The calls whose handles were returned here, by handle.

        The server may lack or lose them.
        """

    async def move_to_background(self, pending: PendingCall, *, asks: bool) -> ToolResult | None:
        """The interim answer of a call that still runs; None if it has ended meanwhile.

        It names `task_result` if the model was offered that tool and can call it (`asks`). While
        the server is away, only this dispatcher knows the handle.
        """
        session, now = pending.message.session, time.monotonic()
        server_now = self._transport.server_time()
        left = max(0.0, pending.deadline - now)
        call = BackgroundCall(
            handle=secrets.token_hex(16),
            tenant=self._settings.tenant,
            session=session,
            queue=pending.queue,
            message=pending.message,
            started_at=server_now - (now - pending.began),
            deadline=server_now + left,
            origin=pending.call.origin,
            long_id=pending.call.long_id,
            id_given=pending.call.id_given,
            approval=pending.approval if pending.awaits_approval else "",
            epoch=pending.epoch or pending.accepted_in,
        )
        kept = self._settings.background_result_ttl
        self._in_flight.move_to_background(pending, kept)
        self._remember(call)
        keeping = self._in_flight.in_background(self._keep(call, left + kept))
        if pending.is_unsent:
            self._in_flight.in_background(self._keep_outcome(pending, call, kept))
        await asyncio.wait({keeping}, timeout=_KEEP_HANDLE_SECONDS)
        if not pending.is_open:
            return None
        is_waiting = pending.awaits_approval
        say = texts.awaits_approval if is_waiting else texts.still_running
        said = say(call.handle if asks else None, self._wording)
        self._notify(pending, call)
        return ToolResult(
            call_id=pending.call.provider_id,
            name=pending.call.name,
            ok=True,
            data=_state_of(pending, call.handle),
            executed=Executed.UNKNOWN,
            note=" ".join(filter(None, (pending.call.note, pending.call.policy_note, said))),
            handle=call.handle,
            duration=now - pending.began,
            id_given=pending.call.id_given,
            origin=pending.call.origin,
        )

    async def _keep_outcome(
        self, pending: PendingCall, call: BackgroundCall, seconds: float
    ) -> None:
        """Keep the outcome of a call, which had no record yet, as long as its handle.

        Another dispatcher may write the outcome without knowing that the call has a handle.
        """
        while pending.is_open:
            await pending.wait(max(1.0, pending.deadline - time.monotonic()))
        await self._keep(call, seconds)

    async def _keep(self, call: BackgroundCall, seconds: float) -> None:
        """Try to store a call until the server confirms it."""
        pauses = growing_pauses(_LONGEST_PAUSE_SECONDS)
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            try:
                await self._transport.keep_handle(
                    call.handle,
                    self._envelope.encode(call),
                    owner=self._owner(call.session) if call.session is not None else None,
                    call=call.message.key,
                    keep=seconds,
                    outcome_kept=self._settings.background_result_ttl,
                )
            except Exception as error:  # noqa: BLE001 - whatever it was, it may pass
                log.warning("handle_not_kept call=%s: %s", call.message.id, error)
                await asyncio.sleep(next(pauses))
            else:
                break

    def _remember(self, call: BackgroundCall) -> None:
        self._own[call.handle] = call
        if len(self._own) > _OWN_KEPT:  # the oldest ended call
            oldest = list(islice(self._own.values(), _LOOKED_AT))
            ended = (each.handle for each in oldest if not self._is_open(each))
            self._own.pop(next(ended, ""), None)

    def handed_out(self, handle: str | None) -> str | None:
        """The key of the record of a handle's call; None if the handle was not returned here."""
        call = self._own.get(handle or "")
        return call.message.key if call is not None else None

    def _is_open(self, call: BackgroundCall) -> bool:
        return self._in_flight.root(call.message.key) is not None

    def _is_kept(self, call: BackgroundCall) -> bool:
        """Whether the result is still kept, by the latest time at which the call must have
        ended.
        """
        kept_until = call.deadline + self._settings.background_result_ttl
        return kept_until > self._transport.server_time()

    def close(self) -> None:
        """End the streams of completed handles."""
        self._completed.close()

    async def answer(self, call: ToolCall, options: TurnOptions) -> Outcome:
        """Run one of the three tools here; never raises."""
        arguments, session = call.arguments or {}, options.session
        try:
            if call.name == "task_list":
                return await self._list(session)
            handle = arguments["handle"]
            found = await self._find(handle, session)
            if found is None and call.name == "task_result":
                page = await self.page(handle, session, int(arguments.get("page", 1)))
                if page is not None:
                    return Outcome(ok=True, data=page)
            if found is None:
                told = texts.no_such_handle(self._wording, lists_tasks=options.offers("task_list"))
                return failure(Code.REPORTED, told, Executed.YES)
            if call.name == "task_cancel":
                pending = await self._cancel(found, "the model")
                if pending.is_open:
                    return not_cancelled()
                return Outcome(ok=True, data=await self._result(found, pending, 0.0))
            wait = min(float(arguments.get("wait", 10.0)), LONGEST_WAIT_SECONDS)
            pending = await self._pending(found)
            return Outcome(ok=True, data=await self._result(found, pending, wait))
        except NoSuchPage as error:
            told = texts.no_such_page(error.page, error.pages, self._wording)
            return failure(Code.REPORTED, told, Executed.YES)
        except ServerError as error:
            log.warning("background_call_not_reached tool=%s: %s", call.name, error)
            if call.name == "task_cancel":
                self._cancel_later(arguments["handle"], session, "the model")
                return not_cancelled()
            return unreachable(Executed.UNKNOWN, is_full=self._transport.is_full)
        except Exception as error:  # noqa: BLE001 - an answer, whatever happens
            return failure(Code.INTERNAL, type(error).__name__, Executed.UNKNOWN)

    async def result(self, handle: str, session: str | None, wait: float) -> ToolResult | None:
        """The final result of a background call; None while it runs.

        Raises KeyError for a handle that is unknown, expired or of another session.
        """
        found = await self._find(handle, session)
        if found is None:
            raise KeyError(NO_SUCH_HANDLE)
        pending = await self._pending(found)
        await pending.wait(wait)
        return None if pending.is_open else await self._results.of(pending)

    async def cancel(self, handle: str, session: str | None) -> ToolResult:
        """Stop a background call and return its final result. Raises KeyError as `result` does.

        The result is `exception.queue_unreachable` if the server did not confirm the cancel: the
        call then goes on.
        """
        started = time.monotonic()
        try:
            found = await self._find(handle, session)
            if found is None:
                raise KeyError(NO_SUCH_HANDLE)
            pending = await self._cancel(found, "the host")
            if not pending.is_open:
                return await self._results.of(pending)
        except ServerError as error:
            log.warning("background_call_not_reached tool=task_cancel: %s", error)
            self._cancel_later(handle, session, "the host")
        return classified(
            ToolCall(index=0, id=handle, name="task_cancel", arguments={}),
            SPECS["task_cancel"],
            not_cancelled(),
            timeout=0.0,
            duration=time.monotonic() - started,
            wording=self._wording,
        )

    async def page(self, handle: Any, session: str | None, number: int) -> dict[str, Any] | None:
        """One page of a full output, counted from 1; None for an invalid handle.

        Raises `NoSuchPage`.
        """
        body = await self._transport.output(handle) if _is_handle(handle) else None
        if body is None:
            return None
        try:
            output = self._envelope.decode(StoredOutput, body)
        except MessageRejected:
            return None
        owner = (handle, session, self._settings.tenant)
        if (output.handle, output.session, output.tenant) != owner:
            return None
        size = self._settings.output_page_characters
        pages = max(1, -(-len(output.text) // size))
        if not 1 <= number <= pages:
            raise NoSuchPage(number, pages)
        start = (number - 1) * size
        found = {
            "handle": handle,
            "tool": output.tool,
            "page": number,
            "pages": pages,
            "text": output.text[start : start + size],
        }
        return await self._results.page(found, session)

    async def _list(self, session: str | None) -> Outcome:
        """The list for a model: only the calls of its session, limited in number."""
        if session is None:
            return Outcome(ok=True, data=[], note=texts.tasks_of_no_session(self._wording))
        handed, older = await self._handed_out(session, LISTED_AT_MOST)
        note = texts.more_tasks(older, self._wording) if older else None
        return Outcome(ok=True, data=self._shown(handed), note=note)

    async def listed(self, session: str | None) -> list[dict[str, Any]]:
        """The session's background calls, newest last; without a session, this dispatcher's own."""
        handed, _ = await self._handed_out(session)
        return self._shown(handed)

    def _shown(self, handed: "list[tuple[BackgroundCall, str | None]]") -> list[dict[str, Any]]:
        now = self._transport.server_time()
        return [
            {
                "handle": call.handle,
                "tool": call.message.tool,
                "state": self._state(call, state),
                "seconds": round(max(0.0, now - call.started_at), 1),
            }
            for call, state in handed
        ]

    async def _handed_out(
        self, session: str | None, newest: int | None = None
    ) -> tuple[list[tuple[BackgroundCall, str | None]], int]:
        """Background calls with their record states, the newest last; and how many older ones
        exist. Without a session, only calls whose handles were returned here: anyone who has a
        handle may use it, but other handles are not disclosed.
        """
        transport, older = self._transport, 0
        own = [call for call in self._own.values() if call.session == session]
        if session is None:
            calls = [call for call in own if self._is_kept(call)]
        else:
            bodies, older = await transport.handles(self._owner(session), newest)
            tenant = self._settings.tenant  # the list itself is not signed
            calls = [
                call
                for call in map(self._read, bodies)
                if call is not None and (call.session, call.tenant) == (session, tenant)
            ]
            listed = {call.handle for call in calls}
            lost = [c for c in own if c.handle not in listed and self._is_open(c)]
            if lost and not older:
                calls = sorted(calls + lost, key=lambda call: call.started_at)
                older = max(0, len(calls) - (newest or len(calls)))
                calls = calls[older:]
        return list(zip(calls, await self._recorded(calls), strict=True)), older

    async def _recorded(self, calls: Sequence[BackgroundCall]) -> list[str | None]:
        """The state of each call, by the record of its last retry; `ok` if it succeeded."""
        keys = list(map(pending_factory.record_keys, calls))
        found = iter(await self._transport.states([key for tries in keys for key in tries]))
        last: list[tuple[str, str | None]] = []
        for tries in keys:
            states = {key: next(found) for key in tries}
            has_record = [key for key in tries if states[key] is not None] or tries[:1]
            last.append((has_record[-1], states[has_record[-1]]))
        ended = [key for key, state in last if state == "settled"]
        outcomes = await self._transport.outcomes(ended) if ended else []
        succeeded = {key for key, body in zip(ended, outcomes, strict=True) if self._is_ok(body)}
        return ["ok" if key in succeeded else state for key, state in last]

    def _is_ok(self, body: bytes | None) -> bool:
        with suppress(MessageRejected):
            reply = self._envelope.decode_reply(body or b"")
            return isinstance(reply, Settled) and reply.outcome.ok
        return False

    def _state(self, call: BackgroundCall, recorded: str | None) -> str:
        pending = self._in_flight.root(call.message.key)
        if pending is not None:  # it may be in a retry, which has another record
            return State.RUNNING.value if pending.retries else pending.state.value
        if recorded is None and call.approval and call.deadline > self._transport.server_time():
            return State.WAITING.value  # its dispatcher writes the record again
        if recorded is None and self._may_be_unsent(call):
            return State.PENDING.value
        return State.COMPLETED.value if recorded == "ok" else _STATES.get(recorded, "EXPIRED")

    def _may_be_unsent(self, call: BackgroundCall) -> bool:
        """Whether a call without a record may wait at its dispatcher, as at a rate limit."""
        return call.started_at + self._settings.queue_timeout > self._transport.server_time()

    async def completed(self, session: str | None) -> AsyncIterator[str]:
        """Yield the handles of a session's background calls as they end, until closed.

        Calls whose handles another dispatcher returned are adopted, as that dispatcher may be dead.
        """
        inbox = self._completed.follow(session)
        try:
            await self._adopt_all(session)
            while handle := await inbox.get():
                yield handle
            self._completed.add("", session)  # another stream may follow the same session
        finally:
            self._completed.unfollow(session)

    async def _adopt_all(self, session: str | None) -> None:
        handed, _ = await self._handed_out(session)
        for call, state in handed:
            is_unsent = state is None and self._may_be_unsent(call)
            if is_unsent or state in ("waiting", "approved", "open", "claimed"):
                await self._pending(call)

    async def _result(
        self, found: BackgroundCall, pending: PendingCall, wait: float
    ) -> dict[str, Any]:
        await pending.wait(wait)
        answer: dict[str, Any] = {"handle": found.handle, "tool": found.message.tool}
        if pending.is_open:
            return answer | _state_of(pending, found.handle)
        result = await self._results.of(pending)
        if result.ok:
            done = answer | {"state": State.COMPLETED.value, "result": result.data}
            return done | ({"note": result.note} if result.note else {})
        return answer | {"state": State.FAILED.value, **result.payload()}

    async def _cancel(self, found: BackgroundCall, by: str) -> PendingCall:
        """Cancel the call. It is still open only if the server did not confirm the cancel."""
        pending = await self._pending(found, is_wanted=False)
        if pending.is_open:
            self._audit(found, by)
            await self._in_flight.cancel([pending])
        return pending

    def _cancel_later(self, handle: str, session: str | None, by: str) -> None:
        """Cancel the call of a handle once the server answers; `_cancel` then ensures its end."""
        if handle not in self._cancelling and len(self._cancelling) < _OWN_KEPT:
            self._cancelling.add(handle)
            self._in_flight.in_background(self._cancel_when_found(handle, session, by))

    async def _cancel_when_found(self, handle: str, session: str | None, by: str) -> None:
        try:
            for pause in growing_pauses(_LONGEST_PAUSE_SECONDS):
                await asyncio.sleep(pause)
                with suppress(ServerError):
                    found = await self._find(handle, session)
                    if found is not None:
                        await self._cancel(found, by)
                    return
        finally:
            self._cancelling.discard(handle)

    def _audit(self, found: BackgroundCall, by: str) -> None:
        message = found.message
        self._observers.audited(
            "cancelled",
            tool=message.tool,
            call_id=message.id,
            session=message.session,
            by=by,
        )

    async def _pending(self, found: BackgroundCall, *, is_wanted: bool = True) -> PendingCall:
        known = self._in_flight.root(found.message.key)
        if known is None:
            adopted: BackgroundCall | PendingCall = found
            if found.approval:
                adopted = await self._approval_waits.adopt(found, is_wanted=is_wanted)
            if isinstance(adopted, BackgroundCall):
                spec = self._spec(found.message.tool)
                adopted = await self._in_flight.adopt(adopted, spec, is_wanted=is_wanted)
            known = adopted
        self._notify(known, found)
        return known

    def _notify(self, pending: PendingCall, call: BackgroundCall) -> None:
        notice = Notice(call.handle, call.session, self._completed)
        if pending.is_open and notice not in pending.latches:
            pending.latches.append(notice)

    async def _find(self, handle: Any, session: str | None) -> BackgroundCall | None:
        """Find a handle; unknown, expired and foreign ones are not distinguished."""
        if not _is_handle(handle):
            return None
        call = self._own.get(handle)
        if call is None or not self._is_kept(call):
            body = await self._transport.handle(handle)
            call = self._read(body) if body is not None else None
        if call is None or call.handle != handle or call.session != session:
            return None
        return call if call.tenant == self._settings.tenant else None

    def _read(self, body: bytes) -> BackgroundCall | None:
        try:
            return self._envelope.decode(BackgroundCall, body)
        except MessageRejected:
            return None

    def _spec(self, tool: str) -> ToolSpec:
        return self._catalog.spec_of(tool) or ToolSpec(name=tool)

    def _owner(self, session: str) -> str:
        return encoding.digest([self._settings.tenant, session])


_STATES: Mapping[str | None, str] = {
    "waiting": State.WAITING.value,
    "approved": State.PENDING.value,
    "open": State.QUEUED.value,
    "claimed": State.RUNNING.value,
    "settled": State.FAILED.value,  # if the call succeeded, its outcome says so
}


def _state_of(pending: PendingCall, handle: str) -> dict[str, Any]:
    """The state of a call that has not ended."""
    return {"handle": handle, "state": pending.state.value}


def _is_handle(value: Any) -> bool:
    return isinstance(value, str) and printable(value) == value
