"""`toolpool approvals`: lists and decides the calls that wait for approval."""

import getpass
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode, ExitNow
from toolpool.cli.options import JsonOption, load_settings

if TYPE_CHECKING:
    from toolpool.dispatcher.approvals import Approvals
    from toolpool.dispatcher.policy.approval_view import Approval

T = TypeVar("T")

app = typer.Typer(
    help="List, show, approve and deny calls that wait for a person.", no_args_is_help=True
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, or a prefix of it.")]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who decides. Default: the user of this computer.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; a denied model reads it.")]
DigestOption = Annotated[
    str | None, typer.Option("--digest", help="Digest of the arguments that you saw, from `show`.")
]


@app.command("list")
def list_(
    session: Annotated[str | None, typer.Option(help="Only of this conversation.")] = None,
    json: JsonOption = False,
) -> int:
    """List what waits for a person, the first to expire first."""

    async def ask(approvals: "Approvals") -> "list[Approval]":
        return await approvals.waiting(session=session)

    found = _asked(ask)
    if json:
        screen.write_json([_plain(approval) for approval in found])
    else:
        _show_all(found)
    return ExitCode.OK


@app.command("show")
def show(id: IdArgument, json: JsonOption = False) -> int:
    """Show a call that waits, or waited, with its arguments."""

    async def ask(approvals: "Approvals") -> "Approval":
        return await approvals.get(await _full_id(approvals, id))

    _show(_asked(ask), json=json)
    return ExitCode.OK


@app.command("approve")
def approve(
    id: IdArgument,
    by: ByOption = None,
    reason: ReasonOption = "",
    digest: DigestOption = None,
    json: JsonOption = False,
) -> int:
    """Approve a call. It runs once, with exactly the arguments shown."""

    return _decide("approve", id, by, reason, digest, json=json)


@app.command("deny")
def deny(
    id: IdArgument,
    by: ByOption = None,
    reason: ReasonOption = "",
    digest: DigestOption = None,
    json: JsonOption = False,
) -> int:
    """Deny a call. The model reads the reason."""

    return _decide("deny", id, by, reason, digest, json=json)


def _decide(
    how: Literal["approve", "deny"],
    id: str,
    by: str | None,
    reason: str,
    digest: str | None,
    *,
    json: bool,
) -> int:
    async def ask(approvals: "Approvals") -> "Approval":
        whole = await _full_id(approvals, id)
        decide = approvals.approve if how == "approve" else approvals.deny
        return await decide(whole, by=_by(by), digest=digest, reason=reason)

    _show(_asked(ask), json=json)
    return ExitCode.OK


def _asked(ask: "Callable[[Approvals], Awaitable[T]]") -> T:
    """Run a request to the server's approvals; a refusal becomes one line."""
    import asyncio

    from toolpool.contract.errors import ApprovalRefused
    from toolpool.contract.server.connection import require_redis_url
    from toolpool.dispatcher.approvals import Approvals

    settings = load_settings()
    require_redis_url(settings)

    async def run() -> T:
        async with Approvals.connect(settings=settings) as approvals:
            return await ask(approvals)

    try:
        return asyncio.run(run())
    except ApprovalRefused as error:
        raise ExitNow(str(error), ExitCode.FAILED) from None
    except KeyError as error:
        raise ExitNow(f"{error.args[0]}; see `toolpool approvals list`", ExitCode.USAGE) from None
    except ValueError as error:
        raise ExitNow(str(error), ExitCode.USAGE) from None


async def _full_id(approvals: "Approvals", beginning: str) -> str:
    """The id of the pending approval whose id begins with this text; the text itself if there is
    none. Raises `ExitNow` if there are several.
    """
    found = [a.id for a in await approvals.waiting() if beginning and a.id.startswith(beginning)]
    if len(found) > 1:
        raise ExitNow(f"{len(found)} ids begin with {beginning!r}: give more of it", ExitCode.USAGE)
    return found[0] if found else beginning


def _by(by: str | None) -> str:
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise ExitNow("this user has no name: say who decides with --by", ExitCode.USAGE) from None


def _plain(approval: "Approval") -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(approval)
    return plain


def _show_all(found: "list[Approval]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not found:
        screen.show(Text("nothing waits for approval"))
        return
    table = Table("id", "tool", "session", "until", "who may", "why", box=box.SIMPLE)
    for approval in found:
        table.add_row(
            Text(approval.id[:10]),
            Text(screen.escaped(approval.tool)),
            Text(screen.escaped(approval.session or "")),
            _time(approval.expires_at),
            Text(screen.escaped(", ".join(approval.approvers) or "anybody")),
            Text(screen.escaped(approval.reason or approval.asked_by)),
        )
    screen.show(table)
    screen.show(Text("see one with `toolpool approvals show ID`"))


def _show(approval: "Approval", *, json: bool) -> None:
    import msgspec

    if json:
        screen.write_json(_plain(approval))
        return
    arguments = msgspec.json.format(msgspec.json.encode(approval.arguments), indent=2).decode()
    lines = [
        f"{approval.tool}, approval {approval.id}: {approval.state.value}",
        f"arguments: {arguments}",
        f"digest: {approval.digest}",
        f"asked by {approval.asked_by}, {_time(approval.asked_at)}; good until "
        f"{_time(approval.expires_at)}",
    ]
    named = {"session": approval.session, "turn": approval.turn, "call": approval.call_id}
    lines.append(", ".join(f"{name} {value}" for name, value in named.items() if value))
    if approval.reason:
        lines.append(f"why: {approval.reason}")
    lines.append(f"who may decide: {', '.join(approval.approvers) or 'anybody'}")
    if approval.decided_by:
        at = _time(approval.decided_at or 0.0)
        why = f": {approval.decision_reason}" if approval.decision_reason else ""
        lines.append(f"decided by {approval.decided_by}, {at}{why}")
    for line in lines:
        screen.write(screen.escaped(line))


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
