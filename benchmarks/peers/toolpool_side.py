"""toolpool: one dispatcher, one worker process for coroutines and one for child-process tools."""

import asyncio
from importlib.metadata import version
from typing import Any

from benchmarks.peers import loads
from toolpool import Dispatcher, Settings, tool
from toolpool.local import LocalFleet


@tool
async def echo(argument: str) -> str:
    """Give back the text."""
    return argument


@tool(run_in="process", effects="read")
def echo_isolated(argument: str) -> str:
    """Give back the text."""
    return argument


@tool(run_in="process", effects="read")
def work(argument: float) -> float:
    """Keep a processor busy."""
    return loads.work(argument)


@tool(timeout=60, effects="read")
async def wait(argument: float) -> float:
    """Sleep."""
    await asyncio.sleep(argument)
    return argument


async def _main() -> None:
    settings = Settings(slots_loop=1_000)
    fleet = await asyncio.to_thread(LocalFleet, ["benchmarks.peers.toolpool_side"], settings)
    try:
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            numbers = iter(range(10**12))

            async def measured(load: loads.Load, seconds: float) -> loads.Figures:
                name = f"{load.task}_isolated" if load.is_isolated else load.task

                async def ask(argument: Any) -> Any:
                    block = {
                        "type": "tool_use", "id": "call", "name": name,
                        "input": {"argument": argument},
                    }  # fmt: skip
                    message = {
                        "type": "message", "id": f"msg-{next(numbers)}", "content": [block],
                    }  # fmt: skip
                    (result,) = await dispatcher.dispatch(message)
                    assert result.ok, result
                    return result.data

                return await loads.measure(ask, load, seconds)

            await loads.answer_orders(measured, {"toolpool": version("toolpool")})
    finally:
        await asyncio.to_thread(fleet.close)


if __name__ == "__main__":
    loads.run(_main())
