"""`toolpool status`: the server, its workers, queues and tools."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode
from toolpool.cli.options import JsonOption, load_settings, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolpool.contract.settings import Settings
    from toolpool.fleet_reader import Fleet


def status(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="10m", help="Also the most frequent failures since then: s, m or h, up to 1h."
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show the server, workers and dispatchers, what waits and why, and what is switched off.

    Exits 1 when no worker is alive.
    """
    from toolpool import fleet_state
    from toolpool.checks import server_version
    from toolpool.contract.server.connection import is_nearly_full, require_redis_url
    from toolpool.contract.server.password_masking import without_password
    from toolpool.contract.version import VERSION
    from toolpool.fleet_reader import answering, describe, read_fleet

    settings = load_settings()
    url = without_password(require_redis_url(settings))
    ago = seconds_of(since, "--since") if since is not None else None
    with answering(settings) as client:
        info = client.info()
    name, version = server_version(info)
    fleet = read_fleet(settings)
    waiting, broker = _waiting(settings, fleet)
    report: dict[str, Any] = {
        "version": VERSION,
        "server": {
            "name": name,
            "version": version,
            "url": url,
            "memory_used": info.get("used_memory"),
            "memory_limit": info.get("maxmemory") or None,
            "is_nearly_full": is_nearly_full(info),
        },
        "broker": broker,
        "workers": [describe(lease, fleet) for lease in fleet.workers],
        "foreign_workers": [asdict(worker) for worker in fleet.foreign_workers],
        "queues": [
            {
                "name": queue,
                "waiting_messages": waiting.get(queue),
                "workers": sum(queue in lease.slots for lease in fleet.workers),
                "tools": len(fleet.tools_by_queue().get(queue, ())),
            }
            for queue in fleet.queues()
        ],
        "tools": [spec.name for spec in fleet.specs()],
        "refused": fleet.refused(),
        "unserved": fleet.unserved(),
        "withheld": sorted(fleet.withheld()),
        "dispatchers": fleet_state.described_dispatchers(fleet),
        "foreign_dispatchers": fleet.foreign_dispatchers,
        "waiting": fleet_state.waiting(fleet),
        "switches": fleet_state.switches(fleet),
        "circuits": fleet_state.circuits(fleet),
        "limits": fleet_state.limits(settings, fleet),
    }
    if ago is not None:
        report["failures"] = fleet_state.failures(fleet, fleet.now - ago)
    if json:
        screen.write_json(report)
    else:
        _show(report)
    return ExitCode.OK if fleet.workers else ExitCode.FAILED


def _waiting(
    settings: "Settings", fleet: "Fleet"
) -> "tuple[Mapping[str, int], dict[str, Any] | None]":
    """The depth of each queue, and the state of a separate broker."""
    from toolpool.broker_queues import depths
    from toolpool.contract.errors import BrokerUnreachable
    from toolpool.contract.server.password_masking import without_password

    if settings.broker_url is None:
        return depths(settings, fleet.queues()), None
    broker: dict[str, Any] = {"url": without_password(settings.broker_url), "fault": None}
    try:
        return depths(settings, fleet.queues()), broker
    except BrokerUnreachable as error:
        return {}, broker | {"fault": str(error)}


def unserved_for(seconds: float | None, *, is_withheld: bool) -> str:
    """Says that no worker has a tool, for how long, and whether dispatchers offer it."""
    offered = "it is withheld from models" if is_withheld else "it is still offered"
    if seconds is None:
        return f"no running worker has it; {offered}"
    return f"no running worker has had it for {timedelta(seconds=round(seconds))}; {offered}"


def _show(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    server = report["server"]
    screen.show(Text(f"{server['name']} {server['version']} at {server['url']}"))
    if server["is_nearly_full"]:
        full = (
            f"the server is nearly full ({server['memory_used']:,} of {server['memory_limit']:,} "
            "bytes): new calls are refused; give it more maxmemory"
        )
        screen.show(Text(full, style="bold red"))
    broker = report["broker"]
    if broker is not None:
        screen.show(Text(broker["fault"] or f"broker at {broker['url']}"))
    screen.show(Text(f"toolpool {report['version']}"))
    workers = Table("worker", "host", "pid", "version", "up", "slots used", box=box.SIMPLE)
    for worker in report["workers"]:
        used = worker["slots_used"]
        slots = ", ".join(f"{queue} {used[queue]}/{n}" for queue, n in worker["slots"].items())
        workers.add_row(
            Text(worker["id"]),
            Text(worker["host"]),
            str(worker["pid"]),
            worker["version"],
            str(timedelta(seconds=round(worker["up"]))),
            Text(slots),
        )
    for worker in report["foreign_workers"]:
        fault = "cannot be read" if worker["is_unreadable"] else "signs with another key"
        workers.add_row(Text(worker["id"]), Text(worker["host"]), "", "", "", fault)
    queues = Table("queue", "waiting", "workers", "tools", box=box.SIMPLE)
    for queue in report["queues"]:
        waiting = queue["waiting_messages"]
        queues.add_row(
            Text(queue["name"]),
            "?" if waiting is None else str(waiting),
            str(queue["workers"]),
            str(queue["tools"]),
        )
    screen.show(workers if workers.row_count else Text("no worker runs: `toolpool worker`"))
    for worker in report["workers"]:
        if worker["stale_tools"]:
            named = ", ".join(worker["stale_tools"])
            told = f"{worker['id']} has another version than is offered of {named}"
            screen.show(Text(told, style="yellow"))
    if queues.row_count:
        screen.show(queues)
    _show_calls(report)
    screen.show(Text(f"{len(report['tools'])} tools: {', '.join(report['tools'])}"))
    for name, reason in report["refused"].items():
        screen.show(Text(f"{name} is not offered: {reason}", style="yellow"))
    for name, seconds in report["unserved"].items():
        told = unserved_for(seconds, is_withheld=name in report["withheld"])
        screen.show(Text(f"{name}: {told}", style="yellow"))


def _show_calls(report: dict[str, Any]) -> None:
    """Show the dispatchers' open calls, the switched-off tools, and the failures."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    dispatchers = report["dispatchers"]
    opened = sum(each["open"] for each in dispatchers)
    running = sum(each["running"] for each in dispatchers)
    many = "1 dispatcher" if len(dispatchers) == 1 else f"{len(dispatchers)} dispatchers"
    screen.show(Text(f"{many}: {opened} calls open, {running} of them running"))
    for id_ in report["foreign_dispatchers"]:
        told = f"dispatcher {id_} signs with another key, or is of another version: it is not read"
        screen.show(Text(told, style="yellow"))
    tables = {
        "waiting": Table("waiting", "for", "calls", "oldest", box=box.SIMPLE),
        "limits": Table("limit", "counts", "used", "most", box=box.SIMPLE),
    }
    for row in report["waiting"]:
        count = str(row["calls"])
        tables["waiting"].add_row(Text(row["tool"]), row["waits_for"], count, f"{row['oldest']} s")
    for row in report["limits"]:
        whose = f"{row['tool'] or 'tenant'} {row['limit']}"
        tables["limits"].add_row(Text(whose), row["counts"], str(row["used"]), str(row["most"]))
    for table in tables.values():
        if table.row_count:
            screen.show(table)
    for row in report["switches"]:
        where = f" where {row['argument']} = {row['value']!r}" if "argument" in row else ""
        told = f"{row['tool']}{where} is denied: {row['reason']}"
        screen.show(Text(screen.escaped(told), style="yellow"))
    for row in report["circuits"]:
        told = f"{row['tool']}: its circuit is open for {row['seconds']:g} s on {row['host']}"
        screen.show(Text(told, style="yellow"))
    if "failures" in report:
        _show_failures(report["failures"])


def _show_failures(failures: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("tool", "failed", "of", "by code", box=box.SIMPLE)
    for row in failures["tools"]:
        codes = ", ".join(f"{code} {count}" for code, count in row["codes"].items())
        if row["failed"]:
            table.add_row(Text(row["tool"]), str(row["failed"]), str(row["calls"]), codes)
    screen.show(table if table.row_count else Text("no call failed"))
    if failures["known_since"] is None:
        screen.show(Text("no dispatcher runs: failures are unknown"))
    elif not failures["is_complete"]:
        at = datetime.fromtimestamp(failures["known_since"]).astimezone()
        told = f"known in full only since {at:%H:%M:%S}: dispatchers count from their start"
        screen.show(Text(told))
