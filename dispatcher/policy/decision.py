"""Decides about valid calls: by the rules of a file, a hook of the host, and the tool's
declaration.

The strictest verdict holds. A policy that fails denies.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.approval_messages import may_decide
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import PolicyVerdict
from toolpool.contract.event_loop import LoopTurn
from toolpool.contract.outcome import Code, Outcome
from toolpool.contract.settings import Settings
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.admission.catalog import Offer
from toolpool.dispatcher.admission.validate import Accepted
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.outcomes import not_queued
from toolpool.dispatcher.policy.equality import RuleFailed
from toolpool.dispatcher.policy.rule_file import RuleFile
from toolpool.dispatcher.policy.rules import DEFAULT, Rules
from toolpool.dispatcher.policy.verdict_types import (
    Allow,
    AskApproval,
    Deny,
    Preview,
    ProposedCall,
    Rewrite,
    Verdict,
    checked,
    copied,
)
from toolpool.dispatcher.turn_options import TurnOptions

_LONGEST_REASON = 1_000
_HEADER_BYTES = 1 << 12

HOOK = "before_call"
DECLARED = "the tool's declaration"


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """The decision about one call: at most one of `refusal` and `approval`, and by whom."""

    call: ToolCall
    refusal: Outcome | None = None
    approval: AskApproval | None = None
    by: str = ""
    is_rewritten: bool = False


_Said = tuple[Allow | Deny | AskApproval, str]
"""A verdict and its origin."""


class Policy:
    """The policy of one dispatcher."""

    def __init__(
        self,
        settings: Settings,
        wording: Wording,
        observers: Observers,
        *,
        rules: RuleFile | None,
        hook: Hook | None,
    ) -> None:
        self._settings = settings
        self._wording = wording
        self._observers = observers
        self._rules = rules
        self._hook = hook
        self._digest: tuple[Rules | None, str] = None, ""
        self._looked_at: Mapping[tuple[str, str, str], str] = {}
        self.asks_somebody = rules is not None or hook is not None

    @property
    def digest(self) -> str:
        """A digest of the current rules and the hook; empty if there is neither."""
        if self._rules is None and self._hook is None:
            return ""
        rules = self._rules.rules if self._rules is not None else None
        if not self._digest[1] or self._digest[0] is not rules:
            parts = [
                rules.digest if rules is not None else "",
                self._hook.path if self._hook else "",
            ]
            self._digest = rules, encoding.digest(parts)
        return self._digest[1]

    def look(self, specs: Iterable[ToolSpec]) -> None:
        """Log, once each, the tools to which a rule cannot be applied. Their calls are denied."""
        assert self._rules is not None
        rules = self._rules.rules
        found = {(rules.digest, s.name, s.digest): rules.misfit(s) for s in specs}
        for known, why in found.items():
            if why and known not in self._looked_at:
                self._observers.hook_failed("rule", why, tool=known[1])
        self._looked_at = found

    async def judge(
        self, accepted: Sequence[Accepted], options: TurnOptions
    ) -> dict[int, Judgement]:
        """The decisions about calls, by index; calls without a decision are left out.

        Never raises for a fault of a rule or a hook.
        """
        asked = [
            (call, offer)
            for call, offer in accepted
            if (self.asks_somebody or offer.spec.approval is True)
            and not task_tools.is_own(offer.spec)
        ]
        judged: list[Judgement] = []
        if len(asked) == 1 or self._hook is None:
            loop_turn = LoopTurn()
            for call, offer in asked:
                judged.append(await self._decide(call, offer, options))
                await loop_turn.yield_if_long()
        else:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for one in asked:
                    tasks.append(group.create_task(self._decide(*one, options)))
                    await asyncio.sleep(0)  # its rules are compared at once, each in an own turn
            judged = [task.result() for task in tasks]
        found = {judgement.call.index: judgement for judgement in judged}
        for judgement in judged:
            self._tell(judgement, options)
        return found

    async def judge_approved(self, accepted: Accepted, options: TurnOptions, by: str) -> Judgement:
        """The decision about a call whose arguments a person, `by`, has approved.

        It runs with exactly these arguments: a hook cannot change them. If it needs approval, the
        person must be authorized to give it.
        """
        call, offer = accepted
        judgement = await self._decide(call, offer, options, is_approved=True)
        approval = judgement.approval
        if approval is not None and not may_decide(by, approval.approvers or ()):
            denied = _denied(Deny(self._wording.words.no_approver))
            judgement = Judgement(call, denied, by=judgement.by)
        self._tell(judgement, options)
        return judgement

    async def preview(self, accepted: Accepted, options: TurnOptions) -> Preview:
        """The decision about a call, without reporting it or requesting approval."""
        call, offer = accepted
        if task_tools.is_own(offer.spec):
            return Preview(arguments=call.arguments)
        judgement = await self._decide(call, offer, options)
        if (refusal := judgement.refusal) is not None:
            return Preview(decision="deny", by=judgement.by, reason=refusal.error)
        approval = judgement.approval
        return Preview(
            decision="allow" if approval is None else "ask",
            by=judgement.by,
            reason=approval.reason if approval is not None else "",
            arguments=judgement.call.arguments,
        )

    async def judge_provider_request(
        self, call: ToolCall, options: TurnOptions
    ) -> tuple[Allow | Deny | AskApproval, str]:
        """The verdict on a call that its provider runs, and its origin.

        It is allowed only if a rule or the hook allows it; else it needs approval.
        """
        asked = proposed(call, None, options, self._settings.tenant)
        failed = Deny(self._wording.words.policy_failed)
        said: list[_Said] = []
        if self._hook is not None:
            try:
                answer = await self._hook.ask(asked)
                verdict = _verdict(answer)
            except HookFailed as error:
                self._tell_failure(call, HOOK, error.kind, error.__cause__)
                return failed, f"{HOOK}, which failed"
            if isinstance(verdict, Rewrite):
                self._tell_failure(call, HOOK, "it rewrote a call that the provider runs")
                return failed, HOOK
            said += [(verdict, HOOK)] if answer is not None else []
        if self._rules is not None:
            try:
                decided, rule = self._rules.rules.decide(asked)
            except RuleFailed as error:
                self._tell_failure(call, "rule", str(error))
                return failed, "a rule, which failed"
            if rule != DEFAULT or not isinstance(decided, Allow):
                said.append((decided, rule))
        return self._strictest(said) if said else (AskApproval(), "the provider")

    async def _decide(
        self, call: ToolCall, offer: Offer, options: TurnOptions, *, is_approved: bool = False
    ) -> Judgement:
        """Decide by the rules, then by the hook, and again by the rules after the hook's answer."""
        accepted = call
        try:
            if not encoding.is_json(call.arguments or {}):  # a message would turn keys into text
                raise ValueError("its arguments are not JSON")
            call = _with_arguments(call, offer.canonical(call.arguments or {}))
        except ValueError as error:
            self._tell_failure(call, "rule", str(error))
            return self._failed(call, "a rule")
        judgement = self._judge(call, offer, options, None)
        if judgement.refusal is not None:
            return judgement
        held_to = judgement.call.verdict
        if self._hook is None and held_to and not held_to.paths and not held_to.is_whole:
            unread = msgspec.structs.replace(accepted, verdict=held_to)
            return msgspec.structs.replace(judgement, call=unread)  # its arguments are not compared
        if call is not accepted and self._is_too_large(call, options):
            self._tell_failure(call, "rule", "its arguments and their defaults are too large")
            return self._failed(call, "a rule")
        if self._hook is None:
            return judgement
        try:
            answer = await self._hook.ask(self._proposed(call, offer, options))
            verdict = _verdict(answer)
        except HookFailed as error:
            self._tell_failure(call, HOOK, error.kind, error.__cause__)
            return self._failed(call, HOOK)
        if isinstance(verdict, Allow) or (is_approved and isinstance(verdict, Rewrite)):
            return judgement
        return self._judge(call, offer, options, verdict)

    def _is_too_large(self, call: ToolCall, options: TurnOptions) -> bool:
        """Whether no message can carry the arguments."""
        settings = self._settings
        size = len(encoding.encode(call.arguments)) + options.context_bytes
        most = max(settings.max_message_bytes - _HEADER_BYTES, settings.max_argument_bytes)
        return size > most

    def _judge(
        self, call: ToolCall, offer: Offer, options: TurnOptions, verdict: Verdict | None
    ) -> Judgement:
        """Decide by the rules and the declaration, after the hook's answer."""
        said: list[_Said] = []
        is_rewritten = isinstance(verdict, Rewrite)
        if isinstance(verdict, Rewrite):
            rewritten = self._rewritten(call, offer, verdict)
            if rewritten is not None and self._is_too_large(rewritten, options):
                self._tell_failure(call, HOOK, "its arguments and their defaults are too large")
                rewritten = None
            if rewritten is None:
                return self._failed(call, HOOK)
            call = rewritten
        elif verdict is not None:
            said.append((verdict, HOOK))
        if self._rules is not None:
            try:
                decided = self._rules.rules.decide(self._proposed(call, offer, options), offer.spec)
                said.append((decided.verdict, decided.rule))
            except RuleFailed as error:
                self._tell_failure(call, "rule", str(error))
                return self._failed(call, "a rule")
        if offer.spec.approval is True and not any(isinstance(v, AskApproval) for v, _ in said):
            said.append((AskApproval(), DECLARED))
        strictest, by = self._strictest(said or [(Allow(), HOOK if self._hook else "")])
        if isinstance(strictest, Deny):
            return Judgement(call, _denied(strictest), by=by)
        approval = strictest if isinstance(strictest, AskApproval) else None
        call = self._with_verdict(call, offer, by, approval)
        if approval is None:
            by = HOOK if is_rewritten else ""
        return Judgement(call, approval=approval, by=by, is_rewritten=is_rewritten)

    def _strictest(self, said: Sequence[_Said]) -> _Said:
        """The strictest of several verdicts; requests for approval are combined.

        An approver must be named by each request; the shortest time limit holds.
        """
        for each in said:
            if isinstance(each[0], Deny):
                return each
        asked = [(verdict, by) for verdict, by in said if isinstance(verdict, AskApproval)]
        if len(asked) < 2:
            return asked[0] if asked else said[0]
        by = " and ".join(by for _, by in asked)
        named = [verdict.approvers for verdict, _ in asked if verdict.approvers]
        common = tuple(n for n in (named or [()])[0] if all(n in names for names in named))
        if named and not common:
            return Deny(self._wording.words.no_approver), by
        good = min(v.expires or self._settings.approval_expires for v, _ in asked)
        reasons = dict.fromkeys(v.reason for v, _ in asked if v.reason)
        return AskApproval(" ".join(reasons), common or msgspec.UNSET, good), by

    def _with_verdict(
        self, call: ToolCall, offer: Offer, by: str, approval: AskApproval | None
    ) -> ToolCall:
        """The call with the verdict for its worker, which binds the tool to what was judged."""
        paths = self._rules.rules.paths(call.name) if self._rules is not None else ()
        is_whole = self._hook is not None or approval is not None
        verdict = PolicyVerdict(
            policy=self.digest, by=by, tool=offer.bound, paths=paths, is_whole=is_whole
        )
        return msgspec.structs.replace(call, verdict=verdict)

    def _rewritten(self, call: ToolCall, offer: Offer, verdict: Rewrite) -> ToolCall | None:
        """The call with its new arguments; None if they are unusable."""
        arguments: Any = verdict.arguments
        before = call.arguments or {}
        problem = ""
        size = encoding.size_of(arguments)
        if not isinstance(arguments, dict) or size is None:
            problem = "they are not JSON"
        elif size > self._settings.max_argument_bytes:
            problem = "they are larger than one call's arguments may be"
        else:
            arguments = encoding.decode(encoding.encode(arguments))  # a copy of plain types
            validator = offer.validator
            if validator is not None and (wrong := validator.problems(arguments)):
                problem = f"they break the tool's schema ({wrong[0].kind})"
            else:
                try:
                    arguments = offer.canonical(arguments)
                except ValueError as error:
                    problem = str(error)
        if problem:
            self._tell_failure(call, HOOK, f"its arguments cannot be used: {problem}")
            return None
        changed = [
            name
            for name in {**before, **arguments}
            if name not in before or name not in arguments or before[name] != arguments[name]
        ]
        told = texts.rewritten(changed, verdict.note, self._wording) if changed else verdict.note
        return msgspec.structs.replace(_with_arguments(call, arguments), policy_note=told or None)

    def _failed(self, call: ToolCall, by: str) -> Judgement:
        """The denial of a call whose policy failed."""
        text = self._wording.words.policy_failed
        return Judgement(call, not_queued(Code.DENIED, text), by=f"{by}, which failed")

    def _tell_failure(
        self, call: ToolCall, hook: str, why: str, error: BaseException | None = None
    ) -> None:
        self._observers.hook_failed(hook, why, error, tool=call.name, call_id=call.id)

    def _proposed(self, call: ToolCall, offer: Offer, options: TurnOptions) -> ProposedCall:
        return proposed(call, offer.spec.effects, options, self._settings.tenant)

    def _tell(self, judgement: Judgement, options: TurnOptions) -> None:
        call, what, why = judgement.call, "", ""
        if judgement.refusal is not None:
            what, why = "denied", judgement.refusal.error
        elif judgement.approval is None and judgement.is_rewritten:
            what = "rewritten"
        if what:
            self._observers.audited(
                what,
                tool=call.name,
                call_id=call.id,
                session=options.session,
                by=judgement.by,
                reason=why,
            )


def _with_arguments(call: ToolCall, arguments: dict[str, Any]) -> ToolCall:
    """The call with other arguments, which do not change its key: see `ToolCall.as_asked`."""
    if arguments is call.arguments:
        return call
    sent = call.as_asked if call.as_asked is not None else call.arguments
    return msgspec.structs.replace(call, arguments=arguments, as_asked=sent)


def _denied(verdict: Deny) -> Outcome:
    return not_queued(Code.DENIED, verdict.reason[:_LONGEST_REASON])


def proposed(
    call: ToolCall, effects: Effects | None, options: TurnOptions, tenant: str
) -> ProposedCall:
    """A call as a policy sees it; a provider's own tool has unknown effects."""
    context: Mapping[str, Any] | None = options.context
    return ProposedCall(
        tool=call.name,
        arguments=copied(call.arguments or {}),
        call_id=call.provider_id,
        session=options.session,
        turn=options.id,
        tenant=tenant,
        context=copied(context) if context is not None else None,
        effects=effects,
        provider=options.provider,
    )


def _verdict(answer: Any) -> Verdict:
    """The hook's answer. Raises `HookFailed` if it is not a verdict."""
    if answer is None:
        return Allow()
    if answer is False:
        return Deny()
    if not isinstance(answer, (Allow, Deny, Rewrite, AskApproval)):
        raise HookFailed(HOOK, f"it answered a {type(answer).__name__}, and no verdict")
    try:
        return checked(answer)
    except ValueError as error:
        raise HookFailed(HOOK, str(error)) from None
