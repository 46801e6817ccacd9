"""The state of a fleet: waiting calls, kill switches, failures and limits."""

import math
from collections import Counter
from typing import Any

from toolpool.contract.fleet_clock import fleet_time
from toolpool.contract.rate_limits import RateLimits
from toolpool.contract.settings import Settings
from toolpool.fleet_reader import Fleet, answering


def described_dispatchers(fleet: Fleet) -> list[dict[str, Any]]:
    """The dispatchers as plain data, for programs. Each dispatcher knows only its own calls."""
    return [
        {
            "id": report.id,
            "host": report.host,
            "pid": report.pid,
            "version": report.version,
            "tenant": report.tenant,
            "up": round(max(0.0, fleet.now - report.started_at), 1),
            "open": report.open,
            "running": report.running,
            "refuses_new_calls": report.refuses_new_calls,
        }
        for report in fleet.dispatchers
    ]


def waiting(fleet: Fleet) -> list[dict[str, Any]]:
    """Waiting calls, by tool and cause, the longest wait first (seconds)."""
    found: dict[tuple[str, str], list[float]] = {}
    for report in fleet.dispatchers:
        for calls in report.waiting:
            row = found.setdefault((calls.tool, calls.waits_for), [0, 0.0])
            row[0] += calls.count
            row[1] = max(row[1], calls.oldest)
    rows = [
        {"tool": tool, "waits_for": why, "calls": int(count), "oldest": oldest}
        for (tool, why), (count, oldest) in found.items()
    ]
    return sorted(rows, key=lambda row: -float(str(row["oldest"])))


def circuits(fleet: Fleet) -> list[dict[str, Any]]:
    """The open circuits. The dispatcher in each row tries the tool again in `seconds`."""
    return [
        {"tool": tool, "dispatcher": report.id, "host": report.host, "seconds": seconds}
        for report in fleet.dispatchers
        for tool, seconds in sorted(report.circuits.items())
    ]


def switches(fleet: Fleet) -> list[dict[str, Any]]:
    """The active kill switches, as set by `toolpool switch`."""
    return [
        {
            "tool": switch.tool,
            **({} if switch.argument is None else {"argument": switch.argument}),
            **({} if switch.argument is None else {"value": switch.value}),
            **({} if switch.tenant is None else {"tenant": switch.tenant}),
            "reason": switch.reason,
            "since": switch.set_at,
        }
        for switch in fleet.switches
    ]


def limits(settings: Settings, fleet: Fleet) -> list[dict[str, Any]]:
    """The used places of each rate limit and fleet-wide concurrency of tools and the tenant.

    Limits of single sessions are not included: their calls are among the waiting calls. Raises
    `BrokerUnreachable`.
    """
    known = RateLimits(settings)
    found = {
        limit: spec.name
        for spec in fleet.specs()
        for limit in known.of(spec, None, settings.tenant)
    }
    if not found:
        return []
    rows = []
    with answering(settings) as client:
        now = fleet_time(client, settings)
        pipeline = client.pipeline(transaction=False)
        for limit in found:
            key = fleet.names.rate(limit.name)
            if limit.rate.seconds:
                pipeline.zcount(key, f"({round(now * 1000)}", "+inf")
            else:
                pipeline.zcard(key)
        for (limit, tool), used in zip(found.items(), pipeline.execute(), strict=True):
            kind = limit.kind
            row = {"tool": None if kind == "tenant" else tool, "counts": kind}
            rows.append({**row, "limit": str(limit.rate), "used": used, "most": limit.rate.most})
    return rows


def hindrances(settings: Settings, fleet: Fleet, tool: str) -> list[str]:
    """What prevents calls of a tool from starting now, one sentence per cause; see `limits`."""
    found = []
    entry = fleet.entries.get(tool)
    queue = fleet.names.queue(entry.spec.queue, entry.spec.run_in) if entry is not None else None
    if queue is not None and not any(queue in lease.slots for lease in fleet.workers):
        found.append(f"no worker takes from its queue {queue}")
    left = [report.circuits[tool] for report in fleet.dispatchers if tool in report.circuits]
    if left:
        count = f"{len(left)} of {len(fleet.dispatchers)} dispatchers"
        found.append(f"its circuit is open on {count}, for up to {max(left):g} s")
    for row in limits(settings, fleet):
        if row["tool"] in (tool, None) and row["used"] >= row["most"]:
            whose = "the tool's" if row["tool"] else "the tenant's"
            found.append(f"{whose} limit {row['limit']} has no place free")
    if any(report.refuses_new_calls for report in fleet.dispatchers):
        found.append("the server is nearly full, so dispatchers refuse new calls")
    return found


def failures(fleet: Fleet, since: float) -> dict[str, Any]:
    """The failures since `since` (Unix time), the tool with most failures first.

    Each dispatcher counts the calls that it answered, for an hour at most; `known_since` is when
    the counts of all running dispatchers begin. Minutes are counted whole.
    """
    calls: Counter[str] = Counter()
    codes: dict[str, Counter[str]] = {}
    for report in fleet.dispatchers:
        for row in report.ended:
            if row.minute >= since // 60:
                calls[row.tool] += row.calls
                codes.setdefault(row.tool, Counter()).update(row.failures)
    tools = [
        {
            "tool": tool,
            "calls": calls[tool],
            "failed": failed.total(),
            "codes": dict(failed.most_common()),
        }
        for tool, failed in sorted(codes.items(), key=lambda each: (-each[1].total(), each[0]))
    ]
    known = max((report.ended_since for report in fleet.dispatchers), default=math.inf)
    return {
        "since": math.floor(since / 60) * 60,
        "known_since": None if known is math.inf else known,
        "is_complete": known <= since,
        "tools": tools,
    }
