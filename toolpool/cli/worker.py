"""`toolpool worker`: runs tools for dispatchers until it is told to stop."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli.options import (
    ToolsOption,
    configure_logging,
    kinds_of,
    load_settings,
    tool_sources,
)
from toolpool.contract.importing import comma_separated, require_package

if TYPE_CHECKING:
    from toolpool.contract.settings import Settings


Quiet = Annotated[
    bool,
    typer.Option("--quiet", help="Log only warnings of the worker; tools' logs stay."),
]


def worker(
    tools: ToolsOption = None,
    run_in: Annotated[
        str,
        typer.Option(
            metavar="loop,thread,process", help="Which kinds of tools to run, comma-separated."
        ),
    ] = "loop,thread,process",
    queues: Annotated[
        str, typer.Option(metavar="NAMES", help="Which queues to serve, comma-separated.")
    ] = "default",
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Calls to run at once, of each kind. Default: TOOLPOOL_SLOTS_LOOP, _THREAD and "
            "_PROCESS.",
        ),
    ] = None,
    observer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="An observer of this worker: a toolpool.WorkerObserver, or a callable that "
            "returns one. May be given again. Default: TOOLPOOL_WORKER_OBSERVERS.",
        ),
    ] = None,
    secrets: Annotated[
        str | None,
        typer.Option(
            metavar="env|file:DIRECTORY|MODULE:CALLABLE",
            help="The source of the secrets that tools declare. Default: TOOLPOOL_SECRETS.",
        ),
    ] = None,
    quiet: Quiet = False,
    boot: Annotated[str | None, typer.Option(hidden=True)] = None,
    link: Annotated[int | None, typer.Option(hidden=True)] = None,
    handed_over: Annotated[int | None, typer.Option(hidden=True)] = None,
    metrics_slot: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> int:
    """Run tools for dispatchers until stopped.

    Needs TOOLPOOL_REDIS_URL, and TOOLPOOL_SIGNING_KEY on a network server. TERM and Ctrl-C let
    running calls finish first; a second one ends them. A worker that exits or stalls is started
    again.
    """
    kinds, names = kinds_of(run_in), _queues(queues)
    given = {**{f"slots_{kind}": concurrency for kind in kinds}, "secrets": secrets}
    settings, variables = _settings(handed_over, given)
    configure_logging(settings, quiet=quiet)
    if boot is None:
        require_package("celery", "a worker")
        from toolpool.contract.settings import warn_of_mistyped_variables
        from toolpool.workers.supervision.supervise import Supervisor

        arguments = _without_option(sys.argv[1:], "--handed-over")
        command = [sys.executable, "-P", "-m", "toolpool", *arguments]
        warn_of_mistyped_variables()
        return Supervisor(command, settings, variables).run()

    from toolpool.contract.errors import ToolsUnimportable
    from toolpool.contract.spec import RunIn
    from toolpool.workers.celery.app import run_worker
    from toolpool.workers.running.process_role import SHOWS_TEXTS
    from toolpool.workers.supervision.supervisor_link import Link

    try:
        return run_worker(
            settings,
            tools=tool_sources(tools, settings),
            run_in=tuple(RunIn(kind) for kind in kinds),
            queues=names,
            boot=boot,
            link=Link.inherited(link) if link is not None else None,
            observers=observer or comma_separated(settings.worker_observers),
            metrics_slot=metrics_slot,
            variables=variables,
        )
    except ToolsUnimportable as error:
        if not (sys.stderr.isatty() or os.environ.get(SHOWS_TEXTS) or settings.error_texts):
            error.explained = str(error)  # standard error is a log
        raise


def _settings(
    descriptor: int | None, given: dict[str, Any]
) -> "tuple[Settings, Mapping[str, str]]":
    """The settings, and the variables that hold secrets of tools.

    After this they exist in this process only: tools run programs that can read the environment.
    """
    from toolpool.contract.server.process_secrets import (
        conceal,
        forget,
        received,
        secrets_of,
        variables_of,
    )

    conceal()
    handed = received(descriptor) if descriptor is not None else {}
    variables = variables_of(os.environ) | variables_of(handed)
    of_settings = {name: value for name, value in handed.items() if name not in variables}
    settings = load_settings(**given, **of_settings)
    forget(secrets_of(settings))
    return settings, variables if settings.secrets == "env" else {}


def _without_option(arguments: list[str], option: str) -> list[str]:
    if option not in arguments:
        return arguments
    at = arguments.index(option)
    return arguments[:at] + arguments[at + 2 :]


def _queues(queues: str) -> list[str]:
    from toolpool.contract.redis_keys import is_queue

    names = comma_separated(queues)
    if not names:
        raise typer.BadParameter("name at least one queue", param_hint="--queues")
    for name in names:
        if not is_queue(name):
            raise typer.BadParameter(
                f"{name!r} has other signs than letters, digits, _ and -", param_hint="--queues"
            )
    return names
