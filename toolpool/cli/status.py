"""`toolpool status`: the server, its workers, queues and tools."""

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from toolpool.cli import screen
from toolpool.cli.exits import ExitCode
from toolpool.cli.options import JsonOption, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolpool.contract.settings import Settings
    from toolpool.fleet import Fleet


def status(json: JsonOption = False) -> int:
    """Show the server, live workers, queues with what waits in them, and tools.

    Exits 1 when no worker is alive.
    """
    from toolpool.contract.server.connection import require_redis_url
    from toolpool.contract.server.passwords import without_password
    from toolpool.contract.version import VERSION
    from toolpool.doctor import server_version
    from toolpool.fleet import answering, describe, read_fleet

    settings = load_settings()
    url = without_password(require_redis_url(settings))
    with answering(settings) as client:
        name, version = server_version(client.info())
    fleet = read_fleet(settings)
    waiting, broker = _waiting(settings, fleet)
    report: dict[str, Any] = {
        "version": VERSION,
        "server": {"name": name, "version": version, "url": url},
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
    }
    if json:
        screen.write_json(report)
    else:
        _show(report)
    return ExitCode.OK if fleet.workers else ExitCode.FAILED


def _waiting(
    settings: "Settings", fleet: "Fleet"
) -> "tuple[Mapping[str, int], dict[str, Any] | None]":
    """The depth of each queue, and what is known of a broker that is not the server."""
    from toolpool.contract.errors import BrokerUnreachable
    from toolpool.contract.server.passwords import without_password
    from toolpool.queues import depths

    if settings.broker_url is None:
        return depths(settings, fleet.queues()), None
    broker: dict[str, Any] = {"url": without_password(settings.broker_url), "fault": None}
    try:
        return depths(settings, fleet.queues()), broker
    except BrokerUnreachable as error:
        return {}, broker | {"fault": str(error)}


def unserved_for(seconds: float | None) -> str:
    """That no worker has a tool, and for how long."""
    if seconds is None:
        return "no running worker has it"
    return f"no running worker has had it for {timedelta(seconds=round(seconds))}"


def _show(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    server = report["server"]
    screen.show(Text(f"{server['name']} {server['version']} at {server['url']}"))
    broker = report["broker"]
    if broker is not None:
        screen.show(Text(broker["fault"] or f"broker at {broker['url']}"))
    screen.show(Text(f"toolpool {report['version']}"))
    workers = Table("worker", "host", "pid", "version", "up", "slots", box=box.SIMPLE)
    for worker in report["workers"]:
        slots = ", ".join(f"{queue} {count}" for queue, count in worker["slots"].items())
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
    screen.show(Text(f"{len(report['tools'])} tools: {', '.join(report['tools'])}"))
    for name, reason in report["refused"].items():
        screen.show(Text(f"{name} is not offered: {reason}", style="yellow"))
    for name, seconds in report["unserved"].items():
        screen.show(Text(f"{name}: {unserved_for(seconds)}", style="yellow"))
