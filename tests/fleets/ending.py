"""A tool for every way in which a call can end by its tool."""

import asyncio
import os
from typing import Any

from toolpool import ToolContext, ToolError, tool


class OrderGoneError(Exception):
    """What a shop raises."""


def find(token: str) -> None:
    """Fail somewhere below the tool."""
    nested = {"local": [token]}
    raise OrderGoneError(f"no order for {token}: {nested}")


@tool
async def works(token: str) -> str:
    """Work."""
    return token


@tool
async def fails(token: str, ctx: ToolContext) -> str:
    """Fail on the loop."""
    find(str(ctx.context.get("key", token)))
    return token


@tool(run_in="thread")
def fails_in_a_thread(token: str) -> str:
    """Fail in a thread."""
    find(token)
    return token


@tool
def fails_in_a_child(token: str) -> str:
    """Fail in a child process."""
    try:
        find(token)
    except OrderGoneError as error:
        raise KeyError(token) from error
    return token


@tool
def dies(token: str) -> str:
    """End the process."""
    os._exit(3)


@tool
async def returns_what_is_none(token: str) -> Any:
    """Return what is no JSON."""
    return {token: object()}


@tool
async def reports(token: str) -> str:
    """Report."""
    raise ToolError(f"no such customer: {token}")


@tool(timeout=0.3)
async def hangs(token: str) -> str:
    """Hang."""
    await asyncio.sleep(60)
    return token


@tool(effects="read", retries=1)
async def fails_twice(token: str) -> str:
    """Fail, and be tried again."""
    find(token)
    return token


@tool(timeout=20)
async def waits(token: str) -> str:
    """Wait for longer than its worker lives."""
    await asyncio.sleep(20)
    return token
