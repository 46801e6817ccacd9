"""Decides about valid calls: the rules of a file, a hook of the host, and what a tool asks for.

The strictest of them holds. A policy that fails denies, unless the settings say otherwise.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code, Outcome
from toolpool.contract.settings import Settings
from toolpool.contract.spec import Effects
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.admission.catalog import Offer
from toolpool.dispatcher.admission.validate import Accepted
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.observe import Observers
from toolpool.dispatcher.policy.conditions import RuleFailed
from toolpool.dispatcher.policy.rule_file import RuleFile
from toolpool.dispatcher.policy.rules import DEFAULT
from toolpool.dispatcher.policy.verdicts import (
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
from toolpool.dispatcher.turn_context import TurnContext
from toolpool.dispatcher.words import feedback
from toolpool.dispatcher.words.classify import not_queued
from toolpool.dispatcher.words.wording import Wording

_LONGEST_REASON = 1_000

HOOK = "before_call"
DECLARED = "the tool's declaration"


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """What was decided about one call: at most one of `refusal` and `approval`, and by whom."""

    call: ToolCall
    refusal: Outcome | None = None
    approval: AskApproval | None = None
    by: str = ""


class Policy:
    """One dispatcher's."""

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
        self.asks_somebody = rules is not None or hook is not None

    async def judge(
        self, accepted: Sequence[Accepted], shared: TurnContext
    ) -> dict[int, Judgement]:
        """What is decided about calls, by index; those that may simply run are left out.

        Never raises for what a rule or a hook does.
        """
        asked = [
            (call, offer)
            for call, offer in accepted
            if (self.asks_somebody or offer.spec.approval is True)
            and not task_tools.is_own(offer.spec)
        ]
        if not asked:
            return {}
        if self._hook is None:
            judged = [self._judge(call, offer, shared, None) for call, offer in asked]
        elif len(asked) == 1:
            judged = [await self._ask_hook(*asked[0], shared)]
        else:
            judged = list(await asyncio.gather(*(self._ask_hook(*one, shared) for one in asked)))
        found = {j.call.index: j for j in judged if j is not None}
        for judgement in found.values():
            self._tell(judgement, shared)
        return found

    async def preview(self, accepted: Accepted, shared: TurnContext) -> Preview:
        """What would be decided about a call; nobody is told, and no person is asked."""
        call, offer = accepted
        judgement = None
        if not task_tools.is_own(offer.spec):
            ask = self._ask_hook if self._hook is not None else self._ask_nobody
            judgement = await ask(call, offer, shared)
        if judgement is None:
            return Preview(arguments=call.arguments)
        if (refusal := judgement.refusal) is not None:
            return Preview(decision="deny", by=judgement.by, reason=refusal.error)
        approval = judgement.approval
        return Preview(
            decision="allow" if approval is None else "ask",
            by=judgement.by,
            reason=approval.reason if approval is not None else "",
            arguments=judgement.call.arguments,
        )

    async def _ask_nobody(
        self, call: ToolCall, offer: Offer, shared: TurnContext
    ) -> Judgement | None:
        return self._judge(call, offer, shared, None)

    async def judge_foreign(
        self, call: ToolCall, shared: TurnContext
    ) -> tuple[Allow | Deny | AskApproval, str]:
        """The verdict on a call that its provider runs, and whose it is.

        It is allowed only where a rule or the hook says so: else a person is asked.
        """
        asked = proposed(call, None, shared, self._settings.tenant)
        failed = Deny(self._wording.words.policy_failed)
        said: list[tuple[Allow | Deny | AskApproval, str]] = []
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
        for kind in (Deny, AskApproval, Allow):  # the strictest holds
            for verdict_by in said:
                if isinstance(verdict_by[0], kind):
                    return verdict_by
        return AskApproval(), "the provider"

    async def _ask_hook(
        self, call: ToolCall, offer: Offer, shared: TurnContext
    ) -> Judgement | None:
        assert self._hook is not None
        refused = None
        if self._rules is not None or offer.spec.approval is True:
            refused = self._judge(call, offer, shared, None)
            if refused is not None and refused.refusal is not None:
                return refused  # by a rule: there is nothing left to decide
        try:
            answer = await self._hook.ask(self._proposed(call, offer, shared))
            if answer is None:
                return refused
            verdict = _verdict(answer)
        except HookFailed as error:
            self._tell_failure(call, HOOK, error.kind, error.__cause__)
            verdict = None
        if verdict is None:
            return self._failed(call, HOOK) or refused
        if isinstance(verdict, Allow):
            return refused
        return self._judge(call, offer, shared, verdict)

    def _judge(
        self, call: ToolCall, offer: Offer, shared: TurnContext, verdict: Verdict | None
    ) -> Judgement | None:
        """By the rules and the declaration, after what a hook has answered."""
        by = HOOK
        if isinstance(verdict, Deny):
            return Judgement(call, _denied(verdict), by=by)
        rewritten = None
        if isinstance(verdict, Rewrite):
            rewritten = self._rewritten(call, offer, verdict)
            if rewritten is None:
                return self._failed(call, HOOK)
            call = rewritten
        approval = verdict if isinstance(verdict, AskApproval) else None
        if self._rules is not None:
            try:
                decided = self._rules.rules.decide(self._proposed(call, offer, shared))
            except RuleFailed as error:
                self._tell_failure(call, "rule", str(error))
                failed = self._failed(call, "a rule")
                if failed is not None:
                    return failed
            else:
                if isinstance(decided.verdict, Deny):
                    return Judgement(call, _denied(decided.verdict), by=decided.rule)
                if approval is None and isinstance(decided.verdict, AskApproval):
                    approval, by = decided.verdict, decided.rule
        if approval is None and offer.spec.approval is True:
            approval, by = AskApproval(), DECLARED
        if approval is None and rewritten is None:
            return None
        return Judgement(call, approval=approval, by=by)

    def _rewritten(self, call: ToolCall, offer: Offer, verdict: Rewrite) -> ToolCall | None:
        """The call with its new arguments; None where they cannot be used."""
        arguments: Any = verdict.arguments
        before = call.arguments or {}
        problem = ""
        size = encoding.size_of(arguments)
        if not isinstance(arguments, dict) or size is None:
            problem = "they are not JSON"
        elif size > self._settings.max_arguments:
            problem = "they are larger than one call's arguments may be"
        elif offer.validator is not None and (wrong := offer.validator.problems(arguments)):
            problem = f"they break the tool's schema ({wrong[0].kind})"
        if problem:
            self._tell_failure(call, HOOK, f"its arguments cannot be used: {problem}")
            return None
        changed = [
            name
            for name in {**before, **arguments}
            if name not in before or name not in arguments or before[name] != arguments[name]
        ]
        told = feedback.rewritten(changed, verdict.note, self._wording) if changed else verdict.note
        return msgspec.structs.replace(
            call,
            arguments=copied(arguments),
            as_asked=call.as_asked if call.as_asked is not None else before,
            note=" ".join(filter(None, (call.note, told))) or None,
        )

    def _failed(self, call: ToolCall, by: str) -> Judgement | None:
        """A policy that fails denies; None where the settings let the call run."""
        if self._settings.hook_failure == "allow":
            return None
        text = self._wording.words.policy_failed
        return Judgement(call, not_queued(Code.DENIED, text), by=f"{by}, which failed")

    def _tell_failure(
        self, call: ToolCall, hook: str, why: str, error: BaseException | None = None
    ) -> None:
        self._observers.hook_failed(hook, why, error, tool=call.name, call_id=call.id)

    def _proposed(self, call: ToolCall, offer: Offer, shared: TurnContext) -> ProposedCall:
        return proposed(call, offer.spec.effects, shared, self._settings.tenant)

    def _tell(self, judgement: Judgement, shared: TurnContext) -> None:
        call, what, why = judgement.call, "", ""
        if judgement.refusal is not None:
            what, why = "denied", judgement.refusal.error
        elif judgement.approval is None:
            what = "rewritten"
        if what:
            self._observers.audited(
                what,
                tool=call.name,
                call_id=call.id,
                session=shared.session,
                by=judgement.by,
                reason=why,
            )


def _denied(verdict: Deny) -> Outcome:
    return not_queued(Code.DENIED, verdict.reason[:_LONGEST_REASON])


def proposed(
    call: ToolCall, effects: Effects | None, shared: TurnContext, tenant: str
) -> ProposedCall:
    """What a policy is shown of a call; nobody knows the effects of what its provider runs."""
    context: Mapping[str, Any] | None = shared.context
    return ProposedCall(
        tool=call.name,
        arguments=copied(call.arguments or {}),
        call_id=call.provider_id,
        session=shared.session,
        turn=shared.id,
        tenant=tenant,
        context=copied(context) if context is not None else None,
        effects=effects,
        provider=shared.provider,
    )


def _verdict(answer: Any) -> Verdict:
    """What a hook answered. Raises `HookFailed` for what is no answer."""
    if answer is None or answer is True:
        return Allow()
    if answer is False:
        return Deny()
    if not isinstance(answer, (Allow, Deny, Rewrite, AskApproval)):
        raise HookFailed(HOOK, f"it answered a {type(answer).__name__}, and no verdict")
    try:
        return checked(answer)
    except ValueError as error:
        raise HookFailed(HOOK, str(error)) from None
