"""Options of several commands, and the settings that result from them and the environment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.contract.importing import comma_separated

if TYPE_CHECKING:
    from toolpool.contract.settings import Settings

ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="MODULE|FILE.py",
        help="Tools to use in place of the built-in ones: a module, a package with its "
        "submodules, or a file. May be given again. Default: TOOLPOOL_TOOLS.",
    ),
]
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]


def load_settings(**given: Any) -> "Settings":
    """The settings from the environment, under the command line's options (None: not given).

    Raises `Misconfigured`, naming the variable and its fault.
    """
    from pydantic import ValidationError

    from toolpool.contract.errors import Misconfigured
    from toolpool.contract.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"]).upper()
        where = f"the setting TOOLPOOL_{name}" if name else "a setting"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"][0].lower() + first["msg"][1:]
        raise Misconfigured(f"{where} is wrong: {message}{more}") from None


def configure_logging(settings: "Settings", *, quiet: bool) -> None:
    """Write this process's log to standard error.

    With `quiet`, toolpool's own loggers write only warnings.
    """
    from toolpool.contract import logs

    logs.configure(
        level=settings.log_level,
        format=settings.log_format,
        with_texts=settings.error_texts,
        quiet=quiet,
    )


def require_session(name: str | None) -> None:
    """Refuse an invalid conversation name."""
    from toolpool.dispatcher.turn_options import require_name

    try:
        require_name("it", name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--session") from None


def tool_sources(tools: Sequence[str] | None, settings: "Settings") -> list[str]:
    """The modules and files that hold the tools; empty for the built-in ones."""
    return list(tools or ()) or comma_separated(settings.tools)


def require_own_workers(settings: "Settings") -> None:
    """Refuse options that need workers of this command's own."""
    if settings.redis_url:
        raise typer.BadParameter(
            "TOOLPOOL_REDIS_URL is set, so the tools and their workspace are those of the workers "
            "there; unset it to run with workers of this command's own",
            param_hint="--tools, --workspace",
        )


def seconds_of(text: str, option: str) -> float:
    """A duration such as `90s`, `10m` or `2h`."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit() and int(number)):
        raise typer.BadParameter("write a number and s, m or h, as in 10m", param_hint=option)
    return int(number) * unit


def kinds_of(run_in: str) -> list[str]:
    """The kinds of tools in an option `--run-in`."""
    known = ("loop", "thread", "process")
    kinds = list(dict.fromkeys(comma_separated(run_in)))
    unknown = [kind for kind in kinds if kind not in known]
    if unknown or not kinds:
        raise typer.BadParameter(
            f"{', '.join(unknown) or 'nothing'} is not among {', '.join(known)}",
            param_hint="--run-in",
        )
    return kinds
