"""Requests to the host's resolver of secrets."""

import asyncio
import threading

import pytest

from tests.waiting import eventually
from toolpool.workers.credentials import resolver as module
from toolpool.workers.credentials.resolver import SecretResolver


async def test_a_request_that_was_given_up_in_the_queue_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a source that comes back would first answer requests that nobody waits for."""
    monkeypatch.setattr(module, "_THREADS", 1)
    gate, asked = threading.Event(), list[str]()

    def resolve(*, tenant: str, user: str | None, name: str) -> str:
        asked.append(name)
        gate.wait(10)
        return name

    resolver = SecretResolver(resolve)
    first = asyncio.ensure_future(resolver.ask(tenant="t", user=None, name="first"))
    await eventually(lambda: asked, "the only thread is busy")
    given_up = [
        asyncio.ensure_future(resolver.ask(tenant="t", user=None, name=f"late {number}"))
        for number in range(20)
    ]
    await asyncio.sleep(0)
    for request in given_up:
        request.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    last = asyncio.ensure_future(resolver.ask(tenant="t", user=None, name="last"))
    loop = resolver._started()
    await eventually(lambda: len(asyncio.all_tasks(loop)) == 2, "its loop has cancelled them")
    gate.set()
    assert ((await first).value, (await last).value) == ("first", "last")
    assert asked == ["first", "last"]
    resolver.close()
