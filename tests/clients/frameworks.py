"""Calls the tools of docs/frameworks.md and a few more on real workers. Prints what came of it."""

import asyncio
import json
import sys
from typing import Any

from toolpool import Dispatcher

_NAMES = ("langchain_core", "pydantic_ai", "agents")


async def _call() -> list[Any]:
    calls: list[tuple[str, dict[str, Any]]] = json.load(sys.stdin)
    async with Dispatcher.local(["tools", "more_tools"]) as dispatcher:
        loaded = [name for name in _NAMES if name in sys.modules]
        results = await asyncio.gather(*(dispatcher.call(name, given) for name, given in calls))
    return [loaded, [r.data if r.ok else [r.code, r.executed, r.error] for r in results]]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_call())))
