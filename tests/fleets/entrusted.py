"""Tools that were entrusted with a secret: what uses it, and what lets it slip in every way."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

from toolpool import NeedsSignIn, ToolContext, ToolError, tool

log = logging.getLogger("shop")


class PaymentFailed(Exception):
    """What an SDK raises, with the request that failed."""


def _slip(how: str, ctx: ToolContext) -> Any:
    token = ctx.secret("api-key")
    ctx.progress(1, 2, f"signing in with {token}")
    log.warning("GET https://api.example/?key=%s", token)
    if how == "raise":
        headers = {"Authorization": f"Bearer {token}"}
        raise PaymentFailed(f"401 for {headers} in {ctx!r}") from KeyError(token)
    if how == "raise late":  # where the text is cut
        raise PaymentFailed("x" * 1_990 + token)
    if how == "report":
        raise ToolError(f"{token} was refused", recommendations=[f"use another than {token}"])
    if how == "fail":
        return {"ok": False, "error": f"no {token}", "recommendations": [token]}
    if how == "return":
        return {"text": f"it is {token}", token: [token]}
    if how == "return much":
        return token * 20_000
    if how == "return nonsense":
        return {"a": object(), "b": token}
    if how == "sign in":
        raise NeedsSignIn(f"https://sign-in.example/{token}", f"{token} is no longer valid")
    return "kept"


@tool(secrets=["api-key"])
async def slip_on_the_loop(how: str, ctx: ToolContext) -> Any:
    """Let it slip."""
    return _slip(how, ctx)


@tool(secrets=["api-key"], run_in="thread")
def slip_in_a_thread(how: str, ctx: ToolContext) -> Any:
    """Let it slip."""
    return _slip(how, ctx)


@tool(secrets=["api-key"])
def slip_in_a_child(how: str, ctx: ToolContext) -> Any:
    """Let it slip."""
    return _slip(how, ctx)


def _is_own(user: str, tenant: str, ctx: ToolContext) -> dict[str, Any]:
    """Whether the secrets are the user's own, and whether the process tells them to others."""
    from tests.fleets.vault import value_of

    wanted = [value_of(tenant, user, name) for name in ("api-key", "other")]
    got = [ctx.secret("api-key"), ctx.secret("other")]
    arguments = Path("/proc/self/cmdline").read_bytes()
    inherited = [name for name, value in os.environ.items() if "Tk" in value]
    return {
        "user": user,
        "own": got == wanted,
        "told": bool(inherited) or got[0].encode() in arguments,
        "shown": got[0] in repr(ctx),
    }


@tool(secrets=["api-key", "other"], effects="read")
async def own_on_the_loop(user: str, tenant: str, ctx: ToolContext) -> dict[str, Any]:
    """Look whose it is."""
    await asyncio.sleep(0.001)
    return _is_own(user, tenant, ctx)


@tool(secrets=["api-key", "other"], effects="read", run_in="thread")
def own_in_a_thread(user: str, tenant: str, ctx: ToolContext) -> dict[str, Any]:
    """Look whose it is."""
    time.sleep(0.001)
    return _is_own(user, tenant, ctx)


@tool(secrets=["api-key", "other"], effects="read")
def own_in_a_child(user: str, tenant: str, ctx: ToolContext) -> dict[str, Any]:
    """Look whose it is."""
    return _is_own(user, tenant, ctx)


@tool(secrets="api-key", effects="write", retries=0)
def needs_one(file: str, ctx: ToolContext) -> int:
    """Note that it ran."""
    with Path(file).open("a") as notes:
        print("ran", file=notes)
    return len(ctx.secret("api-key"))


@tool(secrets=["api-key"], effects="read", retries=2)
async def reads(ctx: ToolContext) -> int:
    """Read."""
    return len(ctx.secret("api-key"))


@tool
async def needs_none(ctx: ToolContext) -> bool:
    """Ask for what it does not declare."""
    return bool(ctx.secret("api-key"))


@tool
async def works() -> str:
    """Work."""
    return "worked"


@tool(secrets=["api-key"])
def tells_its_end(ctx: ToolContext) -> str:
    """Say how the secret ends: enough to know which it was."""
    return ctx.secret("api-key")[-4:]
