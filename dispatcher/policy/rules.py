"""The rules of a policy file. The first rule that matches a call decides."""

import fnmatch
import re
import tomllib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from toolpool.contract import encoding
from toolpool.contract.errors import Misconfigured
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.policy.conditions import Condition, Steps, Test
from toolpool.dispatcher.policy.equality import Budget, RuleFailed
from toolpool.dispatcher.policy.schema_fit import ToolSchema, Useless
from toolpool.dispatcher.policy.verdict_types import (
    Allow,
    AskApproval,
    Deny,
    ProposedCall,
    checked,
)

Action = Literal["allow", "deny", "ask"]


class _Rule(Condition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[rule]]` of the file, with its own condition or several in `when`."""

    action: Action
    name: str = ""
    tool: str | list[str] = "*"
    session: str | None = None
    tenant: str | None = None
    effects: Literal["read", "write", "undeclared"] | None = None
    when: tuple[Condition, ...] = ()
    reason: str = ""
    approvers: tuple[str, ...] | None = None
    expires: float | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `default` applies to calls that no rule matches, `rules` is their number."""

    rules: int | None = None
    rule: list[dict[str, Any]] = []
    default: Action = "allow"


DEFAULT = "default"
"""The name of the verdict if no rule matches."""


class RuleVerdict(NamedTuple):
    """A verdict, and the name of the rule that gave it."""

    verdict: Allow | Deny | AskApproval
    rule: str


class Rule:
    """A compiled rule. Raises ValueError for an invalid one."""

    def __init__(self, rule: _Rule, number: int) -> None:
        self.name = rule.name or f"rule {number}"
        patterns = [rule.tool] if isinstance(rule.tool, str) else rule.tool
        if not patterns or not all(patterns):
            raise ValueError("`tool` names no tool")
        if rule.session == "" or rule.tenant == "":
            raise ValueError(
                "`session` and `tenant` must not be empty: a rule for all leaves them out"
            )
        self._patterns = patterns
        self._tools = [_glob(pattern) for pattern in patterns]
        self._session = _glob(rule.session) if rule.session is not None else None
        self._tenant = _glob(rule.tenant) if rule.tenant is not None else None
        self._effects = rule.effects
        self._for_all = rule.action == "allow"
        own = Condition(**{name: getattr(rule, name) for name in Condition.__struct_fields__})
        conditions = [own, *rule.when] if own != Condition() else list(rule.when)
        self.tests = [Test(condition) for condition in conditions]
        if rule.action != "ask" and (rule.approvers or rule.expires is not None):
            raise ValueError("`approvers` and `expires` are for rules whose action is `ask`")
        if rule.approvers is not None and not rule.approvers:
            raise ValueError("`approvers` names nobody; leave it out if anyone may approve")
        self.verdict = checked(_verdict(rule))

        self.paths = [test.steps for test in self.tests if not test.of_context]

    def tests_of(
        self, spec: ToolSpec, schema: ToolSchema, *, is_named: bool | None = None
    ) -> list[Test]:
        """Its tests for the arguments of a tool that it names. Raises `Useless`.

        Only a rule that names this very tool, and no pattern, has to match a possible call.
        """
        if self._effects not in (None, spec.effects or "undeclared"):
            return self.tests
        is_named = spec.name in self._patterns if is_named is None else is_named
        return [
            t if t.of_context else t.read_by(schema.reading(t, is_named=is_named))
            for t in self.tests
        ]

    def names(self, tool: str) -> bool:
        """Whether it names this tool."""
        return any(pattern.fullmatch(tool) for pattern in self._tools)

    def is_idle(self, spec: ToolSpec, schema: ToolSchema) -> bool:
        """Whether it can match no call of this tool."""
        is_other = self._effects not in (None, spec.effects or "undeclared")
        is_other = is_other or not self.names(spec.name)
        return is_other or self.is_useless(spec, schema, is_named=True)

    def is_useless(
        self, spec: ToolSpec, schema: ToolSchema, *, is_named: bool | None = None
    ) -> bool:
        """Whether this rule cannot be applied to a tool that it names; see `tests_of`."""
        try:
            self.tests_of(spec, schema, is_named=is_named)
        except Useless:
            return True
        return False

    def fits(self, call: ProposedCall, tests: Sequence[Test], budget: Budget) -> bool:
        """Whether it matches a call of a tool that it names, by its tests for that tool.

        Raises `RuleFailed`.
        """
        if self._effects is not None and self._effects != (call.effects or "undeclared"):
            return False
        if self._tenant is not None and not self._tenant.fullmatch(call.tenant):
            return False
        if self._session is not None and not self._session.fullmatch(call.session or ""):
            return False
        failed = ""
        for test in tests:
            value = call.context if test.of_context else call.arguments
            try:
                if not test.holds(value, for_all=self._for_all, budget=budget):
                    return False
            except RuleFailed as error:
                failed = str(error)
            except (ValueError, RecursionError) as error:  # not Unicode, or nested too deeply
                failed = type(error).__name__
        if failed:
            raise RuleFailed(f"{self.name}: {failed}")
        return True


class ToolRules(NamedTuple):
    """The rules for one tool, each with its tests for the tool's arguments."""

    digest: str
    """The digest of the tool's spec."""
    rules: list[tuple[Rule, Sequence[Test]]]
    misfit: str = ""
    """Which rule cannot be applied to the tool, and why; empty if all can."""


class Rules:
    """All rules of a file, in order."""

    def __init__(
        self,
        rules: Sequence[Rule],
        default: Allow | Deny | AskApproval,
        digest: str,
        *,
        is_counted: bool,
    ) -> None:
        self.digest = digest
        self.is_counted = is_counted
        """Whether the file states its number of rules."""
        self._rules = rules
        self._default = RuleVerdict(default, DEFAULT)
        self._by_tool: dict[str, list[Rule]] = {}
        self._of_tools: dict[str, ToolRules] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def idle(self, specs: Sequence[ToolSpec]) -> list[str]:
        """The names of the rules that match none of these tools, or none of their arguments.

        A rule that denies a tool because it cannot be applied to it is not among them.
        """
        tools = [(spec, _schema_of(spec)) for spec in specs]
        return [
            rule.name
            for rule in self._rules
            if all(rule.is_idle(*tool) for tool in tools)
            and not any(rule.names(tool[0].name) and rule.is_useless(*tool) for tool in tools)
        ]

    def misfit(self, spec: ToolSpec) -> str:
        """Which rule cannot be applied to a tool's arguments, and why; empty if all can."""
        return self._of_tool(spec).misfit

    def decide(self, call: ProposedCall, spec: ToolSpec | None = None) -> RuleVerdict:
        """The verdict on a call. Raises `RuleFailed`, also if a rule cannot be applied to the tool.

        `spec` is None for a tool that a provider runs.
        """
        if spec is None:
            rules: Sequence[tuple[Rule, Sequence[Test]]] = [
                (rule, rule.tests) for rule in self._for(call.tool)
            ]
        else:
            of_tool = self._of_tool(spec)
            if of_tool.misfit:
                raise RuleFailed(of_tool.misfit)
            rules = of_tool.rules
        budget = Budget()
        for rule, tests in rules:
            if rule.fits(call, tests, budget):
                return RuleVerdict(rule.verdict, rule.name)
        return self._default

    def _of_tool(self, spec: ToolSpec) -> ToolRules:
        known = self._of_tools.get(spec.name)
        if known is None or known.digest != spec.digest:
            schema, found = _schema_of(spec), ToolRules(spec.digest, [])
            for rule in self._for(spec.name):
                try:
                    found.rules.append((rule, rule.tests_of(spec, schema)))
                except Useless as error:
                    why = f"{rule.name} cannot be applied to it: {error}"
                    found = ToolRules(spec.digest, [], why)
                    break
            known = self._of_tools[spec.name] = found
        return known

    def paths(self, tool: str) -> tuple[Steps, ...]:
        """The paths that rules read in the arguments of a tool."""
        return tuple(dict.fromkeys(path for rule in self._for(tool) for path in rule.paths))

    def _for(self, tool: str) -> list[Rule]:
        rules = self._by_tool.get(tool)
        if rules is None:  # bounded by the number of tools in the catalog
            rules = self._by_tool[tool] = [rule for rule in self._rules if rule.names(tool)]
        return rules


def _schema_of(spec: ToolSpec) -> ToolSchema:
    return ToolSchema(spec.input_schema if spec.check_schema else None)


def parse(text: str, where: str) -> Rules:
    """The rules in `text`, the content of the file `where`. Raises `Misconfigured`."""
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        raise Misconfigured(f"the policy {where} is not TOML: {error}") from None
    except RecursionError:
        raise Misconfigured(f"the policy {where} is nested too deeply") from None
    cannot = f"the policy {where} cannot be used"
    try:
        found = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise Misconfigured(f"{cannot}: {error}") from None
    if found.rules not in (None, len(found.rule)):
        raise Misconfigured(
            f"{cannot}: it says `rules = {found.rules}` and has {len(found.rule)}: it lost some, "
            "or the number is wrong"
        )
    if not found.rule and found.rules is None and found.default == "allow":
        raise Misconfigured(f"{cannot}: it has no rules; if that is intended, write `rules = 0`")
    rules: list[Rule] = []
    for number, entry in enumerate(found.rule, 1):
        try:
            rules.append(Rule(msgspec.convert(entry, _Rule), number))
        except (ValueError, RecursionError) as error:  # a ValidationError is a ValueError
            name = f" ({entry['name']})" if entry.get("name") else ""
            raise Misconfigured(f"{cannot}: rule {number}{name}: {error}") from None
    is_counted = found.rules is not None
    return Rules(rules, _default(found.default), encoding.digest(content), is_counted=is_counted)


def _default(action: Action) -> Allow | Deny | AskApproval:
    if action == "deny":
        return Deny("no rule allows it")
    return AskApproval("no rule allows it without one") if action == "ask" else Allow()


def _verdict(rule: _Rule) -> Allow | Deny | AskApproval:
    if rule.action == "deny":
        return Deny(rule.reason)
    if rule.action == "ask":
        return AskApproval(rule.reason, rule.approvers or msgspec.UNSET, rule.expires)
    return Allow()


def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern in which `*` is any text and `?` one character."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
