"""Tools that note the key which they would hand to a payment API, and how the first try ends."""

import os
import signal
from pathlib import Path
from typing import Literal

from toolpool import ToolContext, tool

First = Literal["works", "fails", "kills its worker"]


def _pay(ctx: ToolContext, file: str, first: First, worker: int) -> str:
    """Note the key; what goes wrong goes wrong once."""
    notes = Path(file)
    is_first = not notes.exists()
    with notes.open("a") as lines:
        print(ctx.idempotency_key, file=lines)
    if is_first and first == "fails":
        raise ConnectionError("the payment API hung up")
    if is_first and first == "kills its worker":
        os.kill(worker, signal.SIGKILL)
        signal.pause()
    return ctx.idempotency_key


@tool(effects="write", idempotent=True, retries=2)
async def pay_on_the_loop(file: str, amount: int, ctx: ToolContext, first: First = "works") -> str:
    """Pay."""
    return _pay(ctx, file, first, os.getpid())


@tool(effects="write", idempotent=True, retries=2, run_in="thread")
def pay_in_a_thread(file: str, amount: int, ctx: ToolContext, first: First = "works") -> str:
    """Pay."""
    return _pay(ctx, file, first, os.getpid())


@tool(effects="write", idempotent=True, retries=2)
def pay_in_a_child(file: str, amount: int, ctx: ToolContext, first: First = "works") -> str:
    """Pay."""
    return _pay(ctx, file, first, os.getppid())
