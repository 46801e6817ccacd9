"""A host is killed in the middle of a turn; the next one resumes its conversation (R50)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import connected, running
from tests.processes import kill_hard, python
from tests.waiting import eventually
from toolpool.contract.settings import Settings
from toolpool.dispatcher.transports.base import TurnNote
from toolpool.dispatcher.transports.redis import RedisTransport

HOST = """
import asyncio, json, sys
from toolpool import Dispatcher

async def main():
    async with Dispatcher.connect() as dispatcher:
        await dispatcher.dispatch(json.loads(sys.argv[1]), session="s-1")

asyncio.run(main())
"""


def use(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_killed_host_s_conversation_goes_on_with_each_call_answered_once(
    tmp_path: Path, is_over: bool
) -> None:
    """While the write still runs, and after its end."""
    trace = tmp_path / "trace"
    write = use("t1", "write_on_loop", trace=str(trace), seconds=1.0)
    content = [write, use("t2", "look", trace=str(trace))]
    response = {"type": "message", "id": "msg_1", "content": content, "stop_reason": "tool_use"}
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": content}]
    with running("tests.fleets.writing") as fleet:
        settings = fleet.settings
        environment = {
            "TOOLPOOL_REDIS_URL": settings.redis_url or "",
            "TOOLPOOL_SIGNING_KEY": settings.signing_key.get_secret_value()
            if settings.signing_key is not None
            else "",
        }
        with python(HOST, json.dumps(response), **environment) as host:
            await eventually(trace.exists, "the write runs", 30.0)
            kill_hard(host)
        if is_over:
            await eventually(lambda: "ended" in trace.read_text(), "the write has ended", 30.0)
        async with connected(fleet) as dispatcher:
            resumed = await dispatcher.resume(history, session="s-1")
            assert await dispatcher.resume(resumed, session="s-1") == resumed
    assert trace.read_text().split() == ["started", "ended"]
    [answers] = resumed[2:]
    told = {block["tool_use_id"]: block for block in answers["content"]}
    assert told["t1"]["is_error"] is False, told["t1"]
    assert told["t2"]["content"] == '["started","ended"]'


async def test_what_is_noted_of_turns_expires(redis_url: str) -> None:
    """And is found in the hour after it was noted, whatever a host calls its turns."""
    settings = Settings(redis_url=redis_url, key_prefix="noting", turns_kept=5000)
    transport = RedisTransport(settings)
    await transport.open()
    try:
        notes = [TurnNote("n", "a\0b", ""), TurnNote("n", "c", "refusal"), TurnNote("m", "d", "")]
        await transport.note_turns(notes[:1])
        await transport.note_turns(notes[1:])
        assert await transport.turns("n") == notes[:2]
        later = transport._clock.time() + 3600
        transport._clock.time = lambda: later  # type: ignore[method-assign]
        assert await transport.turns("n") == notes[:2]
        client = transport._client
        [key] = [key async for key in client.scan_iter("noting:turns:*")]
        assert 5000 < await client.ttl(key) <= 3 * 3600
    finally:
        await transport.close()
