"""Validates the calls of one response, asks the policy, runs them and returns their results."""

import asyncio
import time
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.event_loop import LoopTurn
from toolpool.contract.ledger.failure_memory import FailureHistory
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.admission.acceptance import Acceptance
from toolpool.dispatcher.admission.loop_guard import LoopGuard
from toolpool.dispatcher.admission.validate import Accepted
from toolpool.dispatcher.analytics import Analytics
from toolpool.dispatcher.calls.in_flight import InFlightCalls
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.refusals import RecordedRejection
from toolpool.dispatcher.formats import Response, response_reader
from toolpool.dispatcher.formats.call_blocks import NO_APPROVER
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.observers.session_record import Recorder
from toolpool.dispatcher.ordered_turns import Answered, OrderedTurns, Turn
from toolpool.dispatcher.policy.decision import Judgement, Policy
from toolpool.dispatcher.policy.verdict_types import Preview
from toolpool.dispatcher.provider_approvals import ProviderApprovals
from toolpool.dispatcher.results import Results
from toolpool.dispatcher.turn_options import TurnOptions


class TurnPipeline:
    """Runs the calls of responses, for `dispatch` and for `resume`."""

    def __init__(
        self,
        settings: Settings,
        wording: Wording,
        observers: Observers,
        *,
        acceptance: Acceptance,
        in_flight: InFlightCalls,
        turns: OrderedTurns,
        loops: LoopGuard,
        analytics: Analytics,
        recorder: Recorder | None,
        policy: Policy,
        results: Results,
        provider_approvals: ProviderApprovals,
    ) -> None:
        self._settings = settings
        self._wording = wording
        self._observers = observers
        self._acceptance = acceptance
        self._in_flight = in_flight
        self._turns = turns
        self._loops = loops
        self._analytics = analytics
        self._recorder = recorder
        self._policy = policy
        self._results = results
        self._provider_approvals = provider_approvals

    def read(self, response: Any, **named: str | None) -> Response:
        """The calls in a response. Raises `UnreadableResponse`."""
        cap = self._settings.max_argument_bytes
        return response_reader.read(response, max_bytes=cap, wording=self._wording, **named)

    async def preview(self, found: Response, options: TurnOptions) -> list[Preview]:
        """The preview of each call."""
        return [await self._preview(call, found.format, options) for call in found.calls]

    async def _preview(self, call: ToolCall, format: str, options: TurnOptions) -> Preview:
        verdict = self._acceptance.judge(call, options.only, format)
        if isinstance(verdict, ToolResult):
            return Preview(rejection=verdict, decision="deny")
        preview = await self._policy.preview(verdict, options)
        if preview.decision == "deny":
            return preview
        as_run = msgspec.structs.replace(verdict[0], arguments=preview.arguments)
        refusal = self._in_flight.available.refusal(as_run, is_sent=False)
        if refusal is None:
            return preview
        if refusal.code is Code.DENIED:
            return Preview(decision="deny", by="the kill switch", reason=refusal.error)
        return msgspec.structs.replace(preview, retry_after=refusal.retry_after)

    def run(
        self,
        found: Response,
        options: TurnOptions,
        since: float,
        *,
        cancelled: Collection[int] = (),
        refusal: Outcome | None = None,
        first_answered: int | None = None,
    ) -> Coroutine[Any, Any, list[ToolResult]]:
        """A result for each call, in order; also written to the session record, if any.

        The first calls' deadlines count from `since`, on the monotonic clock. `cancelled` are the
        indexes of calls that were cancelled before; `refusal` is why no call may be sent.
        `first_answered`: the index of the turn's first call whose answer the host has.
        """
        turn = Turn(found.calls, options, refusal, first_answered)
        if cancelled:
            turn.cancelled = dict.fromkeys(cancelled)
        if self._recorder is None:
            return self._run(turn, found, since)
        return self._run_recorded(self._recorder, turn, found, since)

    async def _run_recorded(
        self, recorder: Recorder, turn: Turn, found: Response, since: float
    ) -> list[ToolResult]:
        rows = recorder.asked(found, turn.options)
        try:
            results = await self._run(turn, found, since)
        except BaseException:
            rows.cancelled(turn.rejected, turn.sent, self._results)
            raise
        rows.answered(results, turn.sent, self._results)
        return results

    async def _run(self, turn: Turn, found: Response, since: float) -> list[ToolResult]:
        self._turns.running.add(turn)
        try:
            options, rejected = turn.options, turn.rejected
            accepted: list[Accepted] = []
            is_suspect = self._loops.suspects(options.session_key)
            looping = await self._looping(found, options) if is_suspect else {}
            decides = self._policy.asks_somebody
            undecided: list[ToolCall] = []
            loop_turn = LoopTurn() if len(found.calls) > 1 else None
            for call in found.calls:
                if loop_turn is not None:
                    await loop_turn.yield_if_long()
                if call.flaw is NO_APPROVER or (decides and call.flaw is not None):
                    undecided.append(call)
                    continue
                verdict = self._acceptance.judge(
                    call, options.only, found.format, looping.get(call.index)
                )
                if isinstance(verdict, ToolResult):
                    self._reject(call, verdict, turn, found.format)
                else:
                    accepted.append(verdict)
                    turn.accepted[call.index] = verdict
                    decides = decides or verdict[1].spec.approval is True
            if undecided:
                await self._decide_provider_requests(undecided, turn, found.format, since)
                since = time.monotonic()  # the others did not wait to be sent
            repeated = await self._record_rejections(found, turn) if rejected else ()
            judged: dict[int, Judgement] = {}
            if decides and accepted and not self._in_flight.available.is_closed:
                judged = await self._judge(accepted, turn)
            answered = await self._turns.run(turn, accepted, since, judged)
            if self._results.policy is not None:
                await self._show(answered, turn.sent)
            results: list[ToolResult] = []
            news: list[ToolResult | None] = []
            has_failure = False
            for call in found.calls:
                result, is_new_outcome = rejected.get(call.index), call.index not in repeated
                if result is None:
                    result, is_new_outcome = answered[call.index]
                if call.origin is not None:  # another dispatch may have had no origin
                    result = msgspec.structs.replace(result, origin=call.origin)
                results.append(result)
                news.append(result if is_new_outcome else None)
                has_failure |= is_new_outcome and not result.ok
            if options.session_key and (has_failure or self._loops.suspects(options.session_key)):
                await self._loops.note(found.calls, news, options.session_key)
            self._analytics.note(results, session=options.session, model=found.model)
            return results
        finally:
            self._turns.running.discard(turn)

    def _reject(self, call: ToolCall, result: ToolResult, turn: Turn, format: str) -> None:
        turn.passed.add(call.index)
        turn.rejected[call.index] = result
        is_known = self._acceptance.has(result.name)
        options = turn.options
        self._observers.rejected(result, options.session, options.id, format, is_known=is_known)

    async def _decide_provider_requests(
        self, calls: Sequence[ToolCall], turn: Turn, format: str, since: float
    ) -> None:
        """Answer requests that a provider makes for itself, and reject other flawed calls."""
        turn.passed.update([call.index for call in calls])  # `ProviderApprovals.cancel` ends them
        answers = await self._provider_approvals.decide(calls, turn.options, since)
        for call in calls:
            answer = answers.get(call.index)
            if answer is not None and answer.ok:
                turn.rejected[call.index] = answer
                continue
            verdict = answer or self._acceptance.judge(call, turn.options.only, format)
            assert isinstance(verdict, ToolResult)  # the call is flawed
            self._reject(call, verdict, turn, format)

    async def _judge(self, accepted: list[Accepted], turn: Turn) -> dict[int, Judgement]:
        """The policy's judgements; it may replace the arguments in `accepted`."""
        judged = await self._policy.judge(accepted, turn.options)
        for number, (call, offer) in enumerate(accepted):
            if call.index in judged:
                accepted[number] = judged[call.index].call, offer
        return judged

    async def _show(self, answered: dict[int, Answered], sent: dict[int, PendingCall]) -> None:
        """Pass every result through the host's policy before it is returned."""
        shown = await asyncio.gather(
            *(self._results.shown(result, sent[i]) for i, (result, _) in answered.items())
        )
        for (index, (_, is_new)), result in zip(list(answered.items()), shown, strict=True):
            answered[index] = result, is_new

    async def _looping(self, found: Response, options: TurnOptions) -> dict[int, FailureHistory]:
        """The calls that the loop guard refuses, by index, with their failure history."""
        looping = await self._loops.look(found.calls, options.session_key)
        if looping and options.session is not None:
            looping = await self._without_known(looping, found, options)
            looping = await self._loops.refused(found.calls, looping, options.session, options.id)
        return looping

    async def _without_known(
        self, looping: dict[int, FailureHistory], found: Response, options: TurnOptions
    ) -> dict[int, FailureHistory]:
        """The looping calls, except those dispatched before, which have their own results."""
        if not options.is_named:
            return looping
        judge, only = self._acceptance.judge, options.only
        verdicts = [judge(c, only, found.format) for c in found.calls if c.index in looping]
        calls = [verdict[0] for verdict in verdicts if not isinstance(verdict, ToolResult)]
        asked = await self._in_flight.were_dispatched(calls, options) if calls else []
        known = {call.index for call, known in zip(calls, asked, strict=True) if known is not False}
        return {index: seen for index, seen in looping.items() if index not in known}

    async def _record_rejections(self, found: Response, turn: Turn) -> set[int]:
        """Record rejections; returns the indexes of calls that were dispatched before.

        The rejection of such a call is corrected, because the call may have run, for example under
        an earlier release of its tool, or where other tools were allowed. A call that is too large
        has no arguments by which it could be found.
        """
        options, rejected = turn.options, turn.rejected
        if not options.is_named:
            return set()
        calls = [
            msgspec.structs.replace(call, name=rejected[call.index].name)
            for call in found.calls
            if call.index in rejected
            and not rejected[call.index].ok
            and (call.flaw is None or rejected[call.index].code is Code.UNKNOWN_TOOL)
        ]
        known: Sequence[RecordedRejection] = ()
        if calls:
            known = await self._in_flight.reject([(c, rejected[c.index]) for c in calls], options)
        for call, (executed, _) in zip(calls, known, strict=True):
            result = rejected[call.index]
            is_offered_elsewhere = result.code is Code.UNKNOWN_TOOL and (
                self._acceptance.shares(call.name)  # its equal calls have no records of their own
                or (executed is None and self._acceptance.has(result.name))
            )
            is_unknown = executed is Executed.UNKNOWN or (executed is None and options.again)
            if is_unknown or is_offered_elsewhere:
                rejected[call.index] = msgspec.structs.replace(result, executed=Executed.UNKNOWN)
        return {call.index for call, (_, is_new) in zip(calls, known, strict=True) if not is_new}
