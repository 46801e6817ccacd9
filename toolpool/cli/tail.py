"""`toolpool tail`: the events of the fleet, one per line."""

import os
import select
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolpool.cli import screen
from toolpool.cli.exit_codes import ExitCode, ExitNow, ReaderGone
from toolpool.cli.options import JsonOption, load_settings

if TYPE_CHECKING:
    from toolpool.contract.settings import Settings
    from toolpool.dispatcher.events import Event

_LOOK_SECONDS = 0.5
_FLUSH_SECONDS = 0.05


def tail(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="BOOKMARK", help="Begin after this event; 0 for all stored ones. Default: now."
        ),
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="`progress` or `monitor`. May be given again. Default: both."),
    ] = None,
    session: Annotated[str | None, typer.Option(help="Only events of this conversation.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only events of this tool.")] = None,
    json: JsonOption = False,
) -> int:
    """Follow what happens to calls on every dispatcher that publishes events (TOOLPOOL_EVENTS=on).

    Events that were removed or lost are shown as a gap. Ends with Ctrl-C.
    """
    import asyncio

    from toolpool.contract.event_entries import Position
    from toolpool.contract.server.connection import require_redis_url
    from toolpool.contract.server.password_masking import without_password
    from toolpool.dispatcher.events import CHANNELS, require_channels

    settings = load_settings()
    url = without_password(require_redis_url(settings))
    try:
        at = Position.parse(since) if since is not None else None
        wanted = require_channels(channel or CHANNELS)
    except ValueError as error:
        raise ExitNow(str(error), ExitCode.USAGE) from None

    async def follow() -> None:
        from toolpool.contract.envelope import Envelope
        from toolpool.contract.ledger.event_stream import RedisEvents
        from toolpool.contract.redis_keys import RedisKeys
        from toolpool.contract.server import connection
        from toolpool.dispatcher.observers.event_reader import EventReader

        log = RedisEvents(
            connection.open_async(settings),
            connection.open_async(settings, blocking=True),
            RedisKeys(settings.key_prefix),
            kept=settings.events_maxlen,
        )
        envelope = Envelope(connection.keyring(settings))
        following = EventReader(log, envelope, tenant=settings.tenant)
        try:
            await _say(settings, log, url, sorted(wanted))
            await _write(following.follow(at, wanted), session, tool, json=json)
        finally:
            await following.close()
            await log.close()

    asyncio.run(follow())
    return ExitCode.OK


async def _say(settings: "Settings", log: Any, url: str, channels: list[str]) -> None:
    """Say what is followed. Raises `BrokerUnreachable`."""
    from toolpool.contract.errors import BrokerUnreachable, ServerError
    from toolpool.contract.server.connection import unreachable

    try:
        last = await log.last()
    except ServerError as error:
        raise BrokerUnreachable(unreachable(settings, error)) from None
    screen.print_error(f"following {' and '.join(channels)} of {settings.key_prefix} at {url}")
    if last is None:
        screen.print_error("no event is kept there: dispatchers publish with TOOLPOOL_EVENTS=on")


async def _write(
    stream: "AsyncIterator[Event]", session: str | None, tool: str | None, *, json: bool
) -> None:
    """Write each event as it comes. Raises `ReaderGone`, also while waiting."""
    import asyncio

    async def following() -> "Event":
        return await anext(stream)

    is_flushed = True
    event_to_come = asyncio.ensure_future(following())
    try:
        while True:
            seconds = _LOOK_SECONDS if is_flushed else _FLUSH_SECONDS
            done, _ = await asyncio.wait({event_to_come}, timeout=seconds)
            if not done:
                screen.flush()
                is_flushed = True
                _require_reader()
                continue
            event = event_to_come.result()
            event_to_come = asyncio.ensure_future(following())
            if event.kind != "gap" and not (
                session in (None, event.session) and tool in (None, event.tool)
            ):
                continue
            screen.write(_as_json(event) if json else _as_line(event))
            is_flushed = False
    finally:
        event_to_come.cancel()


def _require_reader() -> None:
    """Raises `ReaderGone` if the reader of standard output has ended."""
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return
    if any(what & select.POLLERR for _, what in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ReaderGone


def _as_json(event: "Event") -> str:
    import msgspec

    return msgspec.json.encode(event).decode()


def _as_line(event: "Event") -> str:
    """The time, the event, and its call, without terminal control characters."""
    at = datetime.fromtimestamp(event.at / 1000).astimezone()
    words = [at.strftime("%H:%M:%S.%f")[:-3], f"{event.kind:<15}", event.tool or "-"]
    names = {"session": event.session, "call": event.call_id, "severity": event.severity}
    more = {**(event.detail or {}), "bookmark": event.bookmark}
    for name, value in {**names, **more}.items():
        if value not in (None, []):
            words.append(f"{name}={value}")
    return screen.escaped(" ".join(words)).replace("\n", "?")
