"""A program that only dispatches. Prints what came of it, as JSON."""

import asyncio
import itertools
import json
import sys
from importlib.metadata import version
from typing import Any

import redis

from toolpool import Dispatcher, Settings, SyncDispatcher

_MANY = 300
_SESSION = sys.argv[1]
_NOT_NEEDED = ("celery", "kombu", "sentry_sdk", "prometheus_client", "typer", "rich")


_numbers = itertools.count()


def _response(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": name, "input": arguments}
    return {"content": [call]}


async def _dispatch() -> dict[str, Any]:
    told: dict[str, Any] = {}
    async with Dispatcher.connect() as dispatcher:

        async def answer(name: str, **arguments: Any) -> Any:
            [result] = await dispatcher.dispatch(_response(name, **arguments), session=_SESSION)
            return result.data if result.ok else [result.code, result.executed]

        told["right"] = await answer("add", a=1, b=2)
        told["mistyped"] = await answer("add", a="one", b=2)
        told["failed"] = await answer("fail")
        many = await asyncio.gather(*(answer("add", a=i, b=1) for i in range(_MANY)))
        told["many"] = many == [i + 1 for i in range(_MANY)]
        for cut in range(2):
            _cut_all_connections()
            await asyncio.sleep(0.2)  # until the loop has seen that they are closed
            sums = await asyncio.gather(*(answer("add", a=cut, b=i) for i in range(3)))
            told[f"after_cut_{cut}"] = sums
        waiting = await dispatcher.dispatch(_response("wait"), session=_SESSION, wait=0.1)
        told["state"] = waiting[0].state
        told["cancelled"] = await dispatcher.cancel(_SESSION)
    return told


def _cut_all_connections() -> None:
    with redis.Redis.from_url(Settings().redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)


def _dispatch_blocking() -> Any:
    with SyncDispatcher.connect() as dispatcher:
        [result] = dispatcher.dispatch(_response("add", a=20, b=22), session="sync")
        return result.data


told = asyncio.run(_dispatch())
told["sync"] = _dispatch_blocking()
told["loaded"] = [name for name in _NOT_NEEDED if name in sys.modules]
told["versions"] = {name: version(name) for name in ("redis", "pydantic")}
print(json.dumps(told))
