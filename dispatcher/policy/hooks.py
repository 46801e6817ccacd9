"""The hooks of a host: functions that decide about calls and results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolpool.contract.errors import Misconfigured
from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.dispatcher.events import Event
from toolpool.dispatcher.host.hook import Hook, hook_of
from toolpool.dispatcher.observer import Loop
from toolpool.dispatcher.policy.approval_view import Approval
from toolpool.dispatcher.policy.rule_file import RuleFile
from toolpool.dispatcher.policy.verdict_types import ProposedCall, Replace, Verdict

BeforeCall = Callable[[ProposedCall], Verdict | Awaitable[Verdict | None] | None]
AfterResult = Callable[[ToolResult, ProposedCall], Replace | Awaitable[Replace | None] | None]
OnLoop = Callable[[Loop], Awaitable[bool | None] | bool | None]
OnApproval = Callable[[Approval], Awaitable[None] | None]
OnEvent = Callable[[Event], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions of the host, async or sync, each within the setting `hook_timeout`.

    Each may be given as a function or named as `module:function`. Sync ones run in threads; async
    ones run on the dispatcher's event loop and must not block it.

    `before_call(call)` decides about a valid call: None or `Allow()`, `Deny(reason)`,
    `Rewrite(arguments)` or `AskApproval(reason)`. `after_result(result, call)` may return
    `Replace(…)`, to be read in place of a result. If one of these two fails, the call is denied or
    its result withheld. `on_loop(loop)` is called before a looping call is refused: a true value
    lets it run. `on_event(event)` gets every event of this dispatcher, `on_approval(approval)`
    every call that begins to wait for approval here; their exceptions are logged.

    `policy` is a file of rules, `policy.toml`, which is reloaded when it changes.
    """

    before_call: BeforeCall | str | None = None
    after_result: AfterResult | str | None = None
    on_loop: OnLoop | str | None = None
    on_event: OnEvent | str | None = None
    on_approval: OnApproval | str | None = None
    policy: str | Path | None = None


class HostHooks:
    """The hooks of one dispatcher: those that it is given, and those of the settings.

    Raises `Misconfigured`, also if a hook or policy is given in both places: one of them would not
    hold.
    """

    def __init__(self, given: Hooks | None, settings: Settings) -> None:
        given = given or Hooks()

        def hook(name: str, function: Any) -> Hook | None:
            return hook_of(name, function, seconds=settings.hook_timeout)

        def chosen(name: str) -> Any:
            ours, theirs = getattr(given, name), getattr(settings, name)
            if ours is not None and theirs is not None:
                raise Misconfigured(
                    f"both TOOLPOOL_{name.upper()} and Hooks({name}=…) are given, and only one of "
                    "them can hold: leave one out"
                )
            return ours if ours is not None else theirs

        self.before_call = hook("before_call", chosen("before_call"))
        self.after_result = hook("after_result", chosen("after_result"))
        self.on_loop = hook("on_loop", given.on_loop)
        self.on_event = hook("on_event", given.on_event)
        self.on_approval = hook("on_approval", given.on_approval)
        policy = chosen("policy")
        self.rules = RuleFile(policy) if policy is not None else None
        if settings.policy_required and self.rules is None and self.before_call is None:
            raise Misconfigured(
                "TOOLPOOL_POLICY_REQUIRED is on and this dispatcher has no policy: set "
                "TOOLPOOL_POLICY or TOOLPOOL_BEFORE_CALL, or give Hooks(policy=…, before_call=…)"
            )

    def close(self) -> None:
        """Let their threads end. Idempotent."""
        hooks = (self.before_call, self.after_result, self.on_loop, self.on_event, self.on_approval)
        for hook in hooks:
            if hook is not None:
                hook.close()
