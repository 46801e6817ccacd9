"""Decides whether a call may run on this worker, and under which limits it starts.

The claim's atomic step checks the same for the whole fleet. `Signature.bind` compares the typed
arguments with those that the policy judged.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from toolpool.contract import logs
from toolpool.contract.approval_messages import ApprovalReader, digest_of
from toolpool.contract.envelope import CallMessage, Envelope, Switch
from toolpool.contract.errors import MessageRejected, ToolDeclarationInvalid
from toolpool.contract.kill_switches import KillSwitches, SwitchLedger
from toolpool.contract.outcome import NOT_JUDGED, Code, Executed, Outcome, failure
from toolpool.contract.rate_limits import RateLimits
from toolpool.contract.rates import Limit
from toolpool.contract.redis_keys import retry_of, root_of
from toolpool.contract.schema.validator import SchemaCache
from toolpool.contract.settings import Settings
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import Catalog

log = logs.logger("admission")

_SWITCHES_PAUSE_SECONDS = 0.25


class Admission:
    """Decides for one worker which calls may run."""

    def __init__(
        self, catalog: Catalog, envelope: Envelope, settings: Settings, ledger: SwitchLedger
    ) -> None:
        self._tools = catalog.tools
        self._ledger = ledger
        self._envelope = envelope
        self._prefix = settings.key_prefix
        self._policy_required = settings.policy_required
        self._limits = RateLimits(settings)
        self._limited = frozenset(
            name
            for name, tool in catalog.tools.items()
            if tool.spec.limit is not None or tool.spec.at_once is not None
        )
        self._schemas = SchemaCache()
        self.switches = KillSwitches(envelope, settings.key_prefix)
        self.server_time: Callable[[], float] = time.time
        """Unix time by the server's clock."""

    def can_run(self, call: CallMessage) -> bool:
        """Whether this worker has the call's tool in a version that accepts its arguments."""
        tool = self._tools.get(call.tool)
        if tool is None:
            return False
        is_same = call.digest == tool.spec.digest
        return is_same or call.final or self._other_version(tool, call) is None

    def limits(self, call: CallMessage, tenant: str) -> tuple[Limit, ...]:
        """The limits that this worker knows for the call, and others from its dispatcher."""
        if not (self._limits.hold_all or call.limits or call.tool in self._limited):
            return ()
        own = self._limits.of(self._tools[call.tool].spec, call.session, tenant)
        names = {limit.name for limit in own}
        return own + tuple(limit for limit in call.limits if limit.name not in names)

    def is_limited(self, call: CallMessage) -> bool:
        """Whether any limit may apply to the call."""
        return self._limits.hold_all or bool(call.limits) or call.tool in self._limited

    def is_switched_off(self, call: CallMessage, tenant: str) -> bool:
        """Whether a kill switch denies the call."""
        denial = self.switches.denial(call.tool, call.arguments, tenant, self._canonical)
        return denial is not None

    def switches_on_arguments(self, call: CallMessage, tenant: str) -> tuple[Switch, ...]:
        """The kill switches on arguments of the call's tool, for the typed arguments."""
        is_named = call.tool in self.switches.on
        return self.switches.on_arguments(call.tool, tenant) if is_named else ()

    async def follow_switches(self) -> None:
        """Read the switches and restore those the server lost. Never raises."""
        try:
            for switch in await self.switches.follow(self._ledger):
                if self._has_no_effect(switch):
                    log.warning(
                        "switch_without_effect tool=%s argument=%s: the tool's types reject "
                        "its value",
                        switch.tool, switch.argument,
                    )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - claims are refused as stale until then
            log.warning("switches_not_read: %s", str(error) or type(error).__name__)
            await asyncio.sleep(_SWITCHES_PAUSE_SECONDS)

    def refusal(self, tool: Tool, call: CallMessage, tenant: str) -> Outcome | None:
        """The outcome of a claimed call that may not run; None if it may."""
        if self._policy_required and (call.verdict is None or not call.verdict.policy):
            details = {"cause": "no policy judged it"}
            return failure(Code.DENIED, NOT_JUDGED, Executed.NO, details=details)
        if tool.spec.approval is True or call.approval is not None:
            refused = self._not_approved(tool, call, tenant)
            if refused is not None:
                return refused
        return None if call.digest == tool.spec.digest else self._other_version(tool, call)

    def _canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in canonical form; unchanged if the schema has none."""
        tool = self._tools.get(name)
        try:
            validator = self._schemas.validator(tool.spec) if tool is not None else None
            return arguments if validator is None else validator.canonical(arguments)
        except (ToolDeclarationInvalid, ValueError):
            return arguments

    def _has_no_effect(self, switch: Switch) -> bool:
        """Whether no call can have the denied value, because the argument's type rejects it."""
        tool = self._tools.get(switch.tool)
        if tool is None or switch.argument is None or not switch.on:
            return False
        return not tool.signature.can_read(switch.argument, switch.value)

    def _not_approved(self, tool: Tool, call: CallMessage, tenant: str) -> Outcome | None:
        """The outcome of a call that nobody approved for this version of the tool."""
        try:
            digest = digest_of(call.tool, call.arguments, tool.spec.bound_digest)
            reader = ApprovalReader(self._envelope, tenant, self._prefix)
            decision = reader.decision(root_of(call.key), call.approval or b"", digest)
        except MessageRejected as error:
            log.error("message_rejected reason=%s tool=%s: %s", error.reason, call.tool, error)
            is_changed = call.approval is not None and call.digest != tool.spec.digest
            reason = "changed_since" if is_changed else "not_approved"
            return failure(Code.DENIED, reason, Executed.NO)
        if not decision.approved:
            return failure(Code.DENIED, "not_approved", Executed.NO)
        is_over = self.server_time() >= decision.ends_at
        return failure(Code.EXPIRED, "", Executed.NO) if is_over else None

    def _other_version(self, tool: Tool, call: CallMessage) -> Outcome | None:
        """The outcome of a call that fits only the version of the tool that validated it.

        The model reads that the tool has changed, and not that its arguments were wrong.
        """
        changed = failure(Code.EXPIRED, "changed", Executed.NO)
        if retry_of(call.key) and not tool.spec.rerunnable:
            return changed
        judged = call.verdict.tool if call.verdict is not None else ""
        if judged and judged != tool.spec.bound_digest:
            return changed
        try:
            validator = self._schemas.validator(tool.spec)
        except ToolDeclarationInvalid as error:
            return failure(Code.INTERNAL, str(error), Executed.NO)
        return changed if validator and validator.problems(call.arguments) else None
