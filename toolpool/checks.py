"""The checks of `toolpool doctor`: faults of a set-up, and their remedies."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpool.contract.settings import Settings
    from toolpool.fleet_reader import Fleet

OLDEST_PYTHON = (3, 11)

_NAMED = 5
"""How many items one finding names."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy` says what to do; it is empty if all is well."""

    name: str
    level: Level
    message: str
    remedy: str = ""


def examine(settings: "Settings") -> list[Finding]:
    """Runs every check of this process and, if a Redis URL is set, of the server and its fleet."""
    findings = [check_python(), check_embedded(settings), check_secrets(settings)]
    findings += [*check_bash(settings), *check_policy(settings), *check_settings(settings)]
    if not settings.redis_url:
        return [
            *findings,
            Finding(
                "server",
                Level.OK,
                "TOOLPOOL_REDIS_URL is not set: commands start a server and workers of their own",
            ),
        ]
    server = check_server(settings)
    key = check_key(settings)
    findings += [*server, *check_broker(settings), key]
    if Level.FAIL in (key.level, server[0].level):
        return findings  # the server cannot be read
    from toolpool.contract.version import VERSION
    from toolpool.fleet_reader import read_fleet

    fleet = read_fleet(settings)
    findings += [*check_fleet(fleet, VERSION), *check_rules(settings, fleet)]
    return [*findings, *check_policies(settings, fleet), *check_leases(settings, fleet)]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Whether the interpreter is new enough."""
    shown = ".".join(str(part) for part in version)
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        return Finding(
            "python", Level.FAIL, f"Python {shown} is too old", f"use Python {oldest} or newer"
        )
    return Finding("python", Level.OK, f"Python {shown}")


def check_embedded(settings: "Settings") -> Finding:
    """Whether an embedded server can be started, which is required if no Redis URL is set."""
    from toolpool.contract.errors import BrokerUnreachable
    from toolpool.embedded import find_program

    try:
        return Finding("embedded server", Level.OK, str(find_program()))
    except BrokerUnreachable as error:
        return Finding(
            "embedded server",
            Level.WARN if settings.redis_url else Level.FAIL,
            str(error).splitlines()[0].rstrip(":"),
            "install valkey-server or redis-server, or set TOOLPOOL_REDIS_URL to one that runs",
        )


def check_bash(settings: "Settings") -> list[Finding]:
    """Whether commands that a model writes could read a worker's keys."""
    from toolpool.contract.server.process_secrets import sees_everything

    if not settings.bash or not sees_everything():
        return []
    return [
        Finding(
            "bash",
            Level.WARN,
            "TOOLPOOL_BASH is on, and this user may look into every process: what a model has bash "
            "run could read a worker's signing key",
            "run workers as a separate user, not as root",
        )
    ]


def check_settings(settings: "Settings") -> list[Finding]:
    """Whether the other settings can be used, and whether variables are mistyped."""
    from toolpool.contract.errors import Misconfigured
    from toolpool.contract.settings import mistyped_variables

    findings = [
        Finding("settings", Level.WARN, f"{variable} is no setting", f"did you mean {near}?")
        for variable, near in mistyped_variables(os.environ).items()
    ]
    for name, read in _READERS.items():
        variable = f"TOOLPOOL_{name.upper()}"
        try:
            read(settings)
        except Misconfigured as error:
            said = str(getattr(error, "explained", error))
            remedy = f"correct it, or set {variable} to another"
            findings.append(Finding("settings", Level.FAIL, f"{variable}: {said}", remedy))
    return findings


def _read_tools(settings: "Settings") -> None:
    from toolpool.contract.importing import comma_separated
    from toolpool.workers.tool_loading import Catalog

    if settings.tools:
        Catalog.load(comma_separated(settings.tools))


def _read_observers(settings: "Settings") -> None:
    from toolpool.contract.importing import comma_separated
    from toolpool.workers.worker_observer import load

    load(comma_separated(settings.worker_observers))


def _read_locale(settings: "Settings") -> None:
    from toolpool.dispatcher.messages.locales import locale

    locale(settings.locale)


def _read_metrics_port(settings: "Settings") -> None:
    from toolpool.contract.errors import Misconfigured
    from toolpool.contract.telemetry.scraping import port_of

    if settings.metrics_port not in (0, "0") and port_of(settings.metrics_port) is None:
        raise Misconfigured("it is not a port, so there will be no metrics")


def _read_record(settings: "Settings") -> None:
    from toolpool.contract.errors import Misconfigured

    if settings.record is None:
        return
    path = Path(settings.record)
    if not path.is_dir() and path.suffix != ".jsonl":
        raise Misconfigured(f"there is no folder {path}, and a file has to end in .jsonl")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Misconfigured(f"{path} cannot be written by this user")


def _read_workspace(settings: "Settings") -> None:
    from toolpool.contract.errors import Misconfigured

    if not settings.workspace.is_dir():
        raise Misconfigured(f"there is no folder {settings.workspace}")


_READERS: "dict[str, Callable[[Settings], None]]" = {
    "tools": _read_tools,
    "worker_observers": _read_observers,
    "locale": _read_locale,
    "metrics_port": _read_metrics_port,
    "record": _read_record,
    "workspace": _read_workspace,
}
"""Settings whose values are read only when used; each reader raises `Misconfigured`."""


def check_policy(settings: "Settings") -> list[Finding]:
    """Whether the rules and hooks in the settings can be used."""
    from toolpool.contract.errors import Misconfigured
    from toolpool.contract.importing import imported
    from toolpool.dispatcher.observer import Observers
    from toolpool.dispatcher.policy.approval_webhook import ApprovalNotifier
    from toolpool.dispatcher.policy.rule_file import RuleFile

    findings: list[Finding] = []
    if settings.policy is not None:
        try:
            rules = RuleFile(settings.policy).rules
            findings.append(Finding("policy", Level.OK, f"{settings.policy}: {len(rules)} rules"))
        except Misconfigured as error:
            findings.append(Finding("policy", Level.FAIL, str(error), "no dispatcher will start"))
    for name in ("before_call", "after_result"):
        path = getattr(settings, name)
        if path is None:
            continue
        try:
            imported(name, path)
            findings.append(Finding(name, Level.OK, path))
        except Misconfigured as error:
            findings.append(Finding(name, Level.FAIL, str(error), "no dispatcher will start"))
    if settings.approval_webhook:
        try:
            ApprovalNotifier(settings, None, Observers())
            findings.append(Finding("approval webhook", Level.OK, "its address can be used"))
        except Misconfigured as error:
            remedy = "no dispatcher will start"
            findings.append(Finding("approval webhook", Level.FAIL, str(error), remedy))
    return findings


def check_rules(settings: "Settings", fleet: "Fleet") -> list[Finding]:
    """Whether every rule matches a tool that workers offer, and can be applied to it."""
    from toolpool.contract.errors import Misconfigured
    from toolpool.dispatcher.policy.rule_file import RuleFile

    if settings.policy is None:
        return []
    try:
        rules = RuleFile(settings.policy).rules
    except Misconfigured:  # reported by `check_policy`
        return []
    specs = list(fleet.specs())
    findings = [
        Finding(
            "policy",
            Level.FAIL,
            f"every call of {spec.name} is denied: {why}",
            "correct the rule, or the tool's schema",
        )
        for spec in specs
        if (why := rules.misfit(spec))
    ]
    idle = rules.idle(specs)
    if not idle:
        return findings
    return [
        *findings,
        Finding(
            "policy",
            Level.WARN,
            f"no published tool has a name and arguments that these rules match: {_some(idle)}",
            "look for a mistyped name in `toolpool tools list`; tools that a provider runs are not "
            "in it, and rules for them are right",
        ),
    ]


def check_policies(settings: "Settings", fleet: "Fleet") -> Iterator[Finding]:
    """Which dispatchers have which policy. All dispatchers of a tenant should have the same."""
    tenants: dict[str, dict[str, list[str]]] = {}
    for report in fleet.dispatchers:
        policies = tenants.setdefault(report.tenant, {})
        policies.setdefault(report.policy, []).append(f"{report.id} on {report.host}")
    for tenant, policies in tenants.items():
        if settings.policy_required and (without := policies.get("")):
            yield Finding(
                "policies",
                Level.FAIL,
                f"workers deny what {_some(without)} sends: it has no policy, and one is required",
                "set TOOLPOOL_POLICY or TOOLPOOL_BEFORE_CALL there, or unset "
                "TOOLPOOL_POLICY_REQUIRED",
            )
        elif len(policies) > 1:
            told = ", ".join(f"{p[:8] or 'none'} at {_some(ids)}" for p, ids in policies.items())
            yield Finding(
                "policies",
                Level.WARN,
                f"dispatchers of the tenant {tenant} have different policies: {told}",
                "give all of them the same rules and hook, and restart them",
            )
        elif policy := next(iter(policies)):
            count = len(policies[policy])
            yield Finding("policies", Level.OK, f"policy {policy[:8]} at {count} dispatchers")


def check_secrets(settings: "Settings") -> Finding:
    """Where workers with these settings would get the secrets of tools."""
    from toolpool.contract.errors import Misconfigured
    from toolpool.workers.credentials.secret_sources import held_variables, source_of

    try:
        source = source_of(settings.secrets)
    except Misconfigured as error:
        return Finding(
            "secrets",
            Level.FAIL,
            str(error),
            "no worker starts with it: set TOOLPOOL_SECRETS to `env`, `file:DIRECTORY` or "
            "`module:callable`",
        )
    if source is None:
        return Finding(
            "secrets", Level.OK, "TOOLPOOL_SECRETS is not set: tools that declare secrets have none"
        )
    if source.name == "env":
        held = held_variables()
        return Finding("secrets", Level.OK, f"from the environment: {_some(held) or 'it has none'}")
    kind = "the folder is there" if source.name.startswith("file:") else "it can be imported"
    return Finding("secrets", Level.OK, f"from {source.name}: {kind}")


def check_server(settings: "Settings") -> list[Finding]:
    """Whether the server at the Redis URL answers (the first finding) and is suitable."""
    from redis.exceptions import RedisError

    from toolpool.contract.errors import Misconfigured
    from toolpool.contract.server.password_masking import without_password
    from toolpool.fleet_reader import answering

    try:
        with answering(settings) as client:
            info = client.info()
            try:
                policy = client.config_get("maxmemory-policy").get("maxmemory-policy")
            except RedisError:  # many hosted servers forbid CONFIG
                policy = info.get("maxmemory_policy")
    except Misconfigured as error:
        return [
            Finding(
                "server",
                Level.FAIL,
                str(error),
                "start the server, or set TOOLPOOL_REDIS_URL to one that runs; without it "
                "toolpool starts one of its own",
            )
        ]
    url = without_password(settings.redis_url or "")
    name, version = server_version(info)
    found = server_findings(info, policy)
    found = found or [Finding("server", Level.OK, f"{name} {version} at {url}")]
    return [*found, *check_memory(info), check_rights(settings)]


def check_memory(info: dict[str, Any]) -> list[Finding]:
    """Whether the server has memory left for new calls."""
    from toolpool.contract.server.connection import is_nearly_full

    if not is_nearly_full(info):
        return []
    share = int(info["used_memory"]) / int(info["maxmemory"])
    return [
        Finding(
            "memory",
            Level.FAIL,
            f"the server is full: it uses {share:.0%} of its maxmemory, so new calls are refused",
            "give it more (CONFIG SET maxmemory), or find what else fills it",
        )
    ]


def check_rights(settings: "Settings") -> Finding:
    """Whether the server's user may use every command that toolpool uses. Tries each command."""
    from redis.exceptions import RedisError, ResponseError

    from toolpool.acl_check import COMMANDS, missing, rule_for
    from toolpool.contract.errors import Misconfigured
    from toolpool.fleet_reader import answering

    try:
        with answering(settings) as client:
            try:
                refused = missing(client, settings)
                user = client.get_connection_kwargs().get("username") or "default"
            except ResponseError as error:
                remedy = "check that it is a primary with free memory and disk"
                return Finding("rights", Level.FAIL, f"the server takes no writes: {error}", remedy)
    except (Misconfigured, RedisError) as error:
        return Finding("rights", Level.FAIL, str(error), "check that the server stays reachable")
    if refused:
        return Finding(
            "rights",
            Level.FAIL,
            f"the server's user may not use {_some(refused)}",
            f"on the server: ACL SETUSER {user} {rule_for(refused, settings.key_prefix)}",
        )
    return Finding("rights", Level.OK, f"all {len(COMMANDS)} commands are allowed")


def check_broker(settings: "Settings") -> list[Finding]:
    """Whether a separate broker answers.

    No finding if the server at the Redis URL is the broker.
    """
    if settings.broker_url is None:
        return []
    from toolpool.broker_queues import broker
    from toolpool.contract.errors import BrokerUnreachable
    from toolpool.contract.server.password_masking import without_password

    try:
        with broker(settings):
            url = without_password(settings.broker_url)
            return [Finding("broker", Level.OK, f"it answers at {url}")]
    except BrokerUnreachable as error:
        remedy = (
            "start the broker, or set TOOLPOOL_BROKER_URL to one that runs; without it the server "
            "at TOOLPOOL_REDIS_URL is the broker"
        )
        said, _, advice = str(error).partition(": put ")
        if advice:  # the broker answers, and refuses the user
            remedy = f"put {advice}"
        return [Finding("broker", Level.FAIL, said.partition(": check that")[0], remedy)]


def server_findings(info: dict[str, Any], maxmemory_policy: str | None) -> list[Finding]:
    """What makes a server unsuitable; empty if it is suitable."""
    from toolpool.contract.server.connection import server_faults

    return [
        Finding("server", Level.FAIL, *_split_fault(fault))
        for fault in server_faults(info, maxmemory_policy)
    ]


def _split_fault(fault: str) -> tuple[str, str]:
    message, _, remedy = fault.partition(";")
    return message, remedy.strip() or "use another server"


def server_version(info: dict[str, Any]) -> tuple[str, str]:
    """The server's name and version from its INFO: Valkey also calls itself a Redis 7.2."""
    if "valkey_version" in info:
        return "Valkey", str(info["valkey_version"])
    return "Redis", str(info.get("redis_version", "?"))


def check_key(settings: "Settings") -> Finding:
    """Whether there is a signing key if one is needed."""
    from toolpool.contract.errors import Misconfigured
    from toolpool.contract.server.connection import keyring

    try:
        ring = keyring(settings)
    except Misconfigured as error:
        return Finding(
            "signing key",
            Level.FAIL,
            str(error).partition(": dispatchers")[0],
            "make one with `toolpool keygen` and set it as TOOLPOOL_SIGNING_KEY for every "
            "dispatcher and worker",
        )
    if settings.signing_key is None:
        return Finding("signing key", Level.OK, "none is needed on a private unix socket")
    return Finding("signing key", Level.OK, f"signs as {ring.key_id}")


def check_leases(settings: "Settings", fleet: "Fleet") -> Iterator[Finding]:
    """Whether workers have this process's `TOOLPOOL_LEASE_TTL`."""
    others = {lease.id: lease.ttl for lease in fleet.workers if lease.ttl}
    named = [f"{id_} ({ttl:g})" for id_, ttl in others.items() if ttl != settings.lease_ttl]
    if named:
        yield Finding(
            "leases",
            Level.WARN,
            f"TOOLPOOL_LEASE_TTL is {settings.lease_ttl:g} here, and another at worker "
            + _some(named),
            "give every process of the deployment the same value: with a shorter one, a dispatcher "
            "or a server that lost data waits too short for a worker that is cut off",
        )


def check_fleet(fleet: "Fleet", version: str) -> Iterator[Finding]:
    """Checks of workers and the catalog, as far as they are signed with our key."""
    for worker in fleet.foreign_workers:
        if worker.is_unreadable:
            yield Finding(
                "workers",
                Level.WARN,
                f"worker {worker} describes itself in a form that toolpool {version} cannot read",
                "install one version everywhere; upgrade workers before dispatchers",
            )
            continue
        key = f" ({worker.key})" if worker.key else ""
        yield Finding(
            "workers",
            Level.FAIL,
            f"worker {worker} signs with another key{key}: its results would be refused",
            "start it again with this process's TOOLPOOL_SIGNING_KEY",
        )
    if fleet.workers:
        yield Finding("workers", Level.OK, f"{len(fleet.workers)} running")
    elif not fleet.foreign_workers:
        yield Finding(
            "workers",
            Level.WARN,
            "no worker runs: tools are still offered, and calls would wait in the queue and expire",
            "start one with `toolpool worker`",
        )
    yield from _check_versions(fleet, version)
    yield from _check_stale(fleet)
    if fleet.foreign_switches:
        yield Finding(
            "switches",
            Level.FAIL,
            f"{len(fleet.foreign_switches)} kill switches are signed with another key, and deny "
            "nothing here",
            "set them again, or add the key that signed them to TOOLPOOL_SIGNING_KEY",
        )
    if fleet.foreign_tools:
        yield Finding(
            "catalog",
            Level.WARN,
            f"{len(fleet.foreign_tools)} entries were signed with another key and are passed over: "
            + _some(sorted(set(fleet.foreign_tools))),
            "start workers with this process's TOOLPOOL_SIGNING_KEY; the entries go by themselves",
        )
    if fleet.entries:
        yield Finding("catalog", Level.OK, f"{len(fleet.entries)} tools")
    else:
        yield Finding(
            "catalog",
            Level.FAIL,
            "no worker has published a tool, so there is nothing to call",
            "start one with `toolpool worker --tools your.module`",
        )
    for name, reason in fleet.refused().items():
        yield Finding(
            "refused tools",
            Level.FAIL,
            f"dispatchers do not offer {name}: {reason}",
            "correct its schema and restart its workers, or take it out of the catalog with "
            "`toolpool tools remove`",
        )
    yield from _check_unserved(fleet)
    yield from _check_left_out(fleet)


def _check_versions(fleet: "Fleet", version: str) -> Iterator[Finding]:
    others = [lease for lease in fleet.workers if lease.version != version]
    if others:
        named = [f"worker {each.id} on {each.host} runs {each.version}" for each in others]
        yield Finding(
            "versions",
            Level.WARN,
            f"this is toolpool {version}, but {_some(named)}",
            "install one version everywhere; upgrade workers before dispatchers",
        )
    elif fleet.workers:
        yield Finding("versions", Level.OK, f"toolpool {version} everywhere")


def _check_stale(fleet: "Fleet") -> Iterator[Finding]:
    """Workers whose version of a tool is not the newest one, which is offered."""
    for lease in fleet.workers:
        stale = fleet.stale_tools(lease.id)
        if stale:
            yield Finding(
                "tools",
                Level.WARN,
                f"worker {lease.id} on {lease.host} has another version than is offered of "
                + _some(stale),
                "restart it with the same tools as the others; until then it gets no calls of them",
            )


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _check_left_out(fleet: "Fleet") -> Iterator[Finding]:
    """Tools that workers have loaded, and that none of them takes."""
    taken = {name for tools in fleet.offers.values() for name in tools}
    for lease in fleet.workers:
        if left := [name for name in lease.left_out if name not in taken]:
            yield Finding(
                "tools",
                Level.WARN,
                f"worker {lease.id} on {lease.host} has loaded {_some(left)}, and no worker takes "
                "them",
                "start one with `--run-in process` for plain functions, or with their queue in "
                "`--queues`",
            )


def _check_unserved(fleet: "Fleet") -> Iterator[Finding]:
    """Tools that no running worker has, and tools on a queue without workers."""
    if not fleet.workers:
        return
    served = {queue for lease in fleet.workers for queue in lease.slots}
    unserved, withheld = fleet.unserved(), fleet.withheld()
    for queue, tools in sorted(fleet.tools_by_queue().items()):
        gone = [name for name in sorted(tools) if queue in served and name in unserved]
        if gone:
            hidden = [name for name in gone if name in withheld]
            what = _some(hidden) or "such a tool after TOOLPOOL_UNSERVED_TIMEOUT seconds"
            yield Finding(
                "tools",
                Level.WARN,
                f"workers take from {queue}, and none of them has {_some(gone)}: dispatchers "
                f"withhold {what}",
                "start a worker that has it, or take it out of the catalog with `toolpool tools "
                "remove`",
            )
        if queue not in served:
            yield Finding(
                "queues",
                Level.WARN,
                f"no running worker takes from {queue} ({_some(sorted(tools))}): "
                + ("it is still offered" if len(tools) == 1 else "they are still offered"),
                f"start one with `toolpool worker --queues {queue.split('.')[-2]} "
                f"--run-in {queue.rpartition('.')[2]}`, or take the tools out of the catalog "
                "with `toolpool tools remove`",
            )
