"""`toolpool cancel`: ends a call from anywhere, or says that it did not."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode, ExitNow
from toolpool.cli.options import JsonOption, load_settings

_RAN = {
    "no": "it was not run",
    "yes": "it had started, and may have had effects",
    "unknown": "it may have started, and had effects",
}

if TYPE_CHECKING:
    from toolpool.call_search import Finder
    from toolpool.contract.envelope import BackgroundCall
    from toolpool.contract.settings import Settings


def cancel(
    target: Annotated[
        str, typer.Argument(metavar="CALL|HANDLE", help="A call's id, or a background handle.")
    ],
    session: Annotated[
        str | None, typer.Option(help="The session of the call, if call ids repeat.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """End a call, whichever dispatcher it belongs to.

    Exits 0 when it is cancelled, 1 when it is not: it had ended, is unknown, or was not confirmed.
    """
    from toolpool.call_search import Finder

    settings = load_settings()
    finder = Finder(settings)
    background = finder.handed_over(target)
    if background is not None:
        told = _of_handle(settings, background)
    else:
        told = _of_call(finder, target, session)
    if json:
        screen.write_json(told)
    else:
        screen.write(screen.escaped(_sentence(told)))
    return ExitCode.OK if told["cancelled"] else ExitCode.FAILED


def _of_handle(settings: "Settings", found: "BackgroundCall") -> dict[str, Any]:
    """End a background call by this command's own dispatcher, as any dispatcher can."""
    import asyncio

    from toolpool import Dispatcher

    async def run() -> tuple[str, str]:
        async with Dispatcher.connect(settings=settings) as dispatcher:
            try:
                result = await dispatcher.task_cancel(found.handle, session=found.session)
            except KeyError:
                raise ExitNow("the handle has expired") from None
            return str(result.code or "ok"), str(result.executed)

    code, executed = asyncio.run(run())
    message = found.message
    return _told(message.id, message.tool, message.session, code, executed)


def _of_call(finder: "Finder", target: str, session: str | None) -> dict[str, Any]:
    """End an open call by asking its dispatcher."""
    found = [row for row in finder.calls(target) if session in (None, row["session"])]
    silent = ", ".join(f"{report.id} on {report.host}" for report in finder.silent)
    if not found:
        why = f"dispatchers that did not answer: {silent}" if silent else "it may have ended"
        raise ExitNow(f"no running dispatcher has a call {target!r} open; {why}")
    sessions = {str(row["session"]) for row in found}
    if len(sessions) > 1:
        raise ExitNow(
            "calls of several sessions have this id; choose one with --session: "
            + ", ".join(sorted(sessions)),
            ExitCode.USAGE,
        )
    if len(found) > 1:
        raise ExitNow(f"{len(found)} calls of its session have this id", ExitCode.USAGE)
    [row] = found
    status = finder.cancel(row)
    if status is None:
        raise ExitNow(
            f"dispatcher {row['dispatcher']} did not confirm that {target} is cancelled: it may "
            "still run"
        )
    code = status.cancelled or "exception.queue_unreachable"
    return _told(status.call, status.tool, status.session, code, status.executed or "unknown")


def _told(call: str, tool: str, session: str | None, code: str, executed: str) -> dict[str, Any]:
    from toolpool.contract.outcome import Code

    named = {"call": call, "tool": tool, "session": session}
    return {"cancelled": code == Code.CANCELLED, **named, "code": code, "executed": executed}


def _sentence(told: dict[str, Any]) -> str:
    name = f"{told['call']} ({told['tool']})"
    if not told["cancelled"]:
        return f"{name} was not cancelled: {told['code']}, executed: {told['executed']}"
    return f"{name} is cancelled: {_RAN[told['executed']]}"
