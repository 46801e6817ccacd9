"""A host is killed in the middle of a turn; the next one resumes its conversation (R50)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import connected, running
from tests.processes import kill_hard, python
from tests.waiting import eventually
from toolpool.contract.settings import Settings
from toolpool.dispatcher.transports.base import NoteBatch, TurnNote
from toolpool.dispatcher.transports.redis import RedisTransport

pytestmark = pytest.mark.long

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


OWN = use("toolu_01A09q90qw90lq917835", "write_on_loop")
COUNTED = use("call_0", "write_on_loop")


@pytest.mark.parametrize("call", [OWN, COUNTED])
async def test_several_that_resume_while_it_runs_attach_to_the_one_that_was_dispatched(
    tmp_path: Path, call: dict[str, Any]
) -> None:
    """A host that was only thought dead, and two that take over. Nobody has the answer yet."""
    trace = tmp_path / "trace"
    content = [{**call, "input": {"trace": str(trace), "seconds": 1.0}}]
    response = {"type": "message", "id": "msg_1", "content": content, "stop_reason": "tool_use"}
    history = [{"role": "assistant", "content": content}]
    with running("tests.fleets.writing") as fleet:
        async with connected(fleet) as old, connected(fleet) as one, connected(fleet) as other:
            asked = asyncio.ensure_future(old.dispatch(response, session="s-1"))
            await eventually(trace.exists, "the write runs", 30.0)
            resumed = await asyncio.gather(
                *(each.resume(history, session="s-1") for each in (one, other, one))
            )
            turn = await asked
            assert turn.ok
            assert resumed == [[*history, *turn.messages()]] * 3
            cut = await one.resume(history, session="s-1")
    assert trace.read_text().split() == ["started", "ended"]
    is_known = cut == resumed[0]
    assert is_known == (call is OWN), "of a call that is like others one has the answer by now"


async def test_a_read_that_nothing_is_known_of_runs_once_for_all_who_resume(tmp_path: Path) -> None:
    """On dispatchers of their own, whatever id its provider gives it."""
    with running("tests.fleets.writing") as fleet:
        async with connected(fleet) as one, connected(fleet) as other:
            for id in ("toolu_01A09q90qw90lq917835", "call_0"):
                trace = tmp_path / id
                content = [use(id, "slow_look", trace=str(trace))]
                history = [{"role": "assistant", "content": content}]
                resumed = await asyncio.gather(
                    *(each.resume(history, session="s-1") for each in (one, other, one, other))
                )
                assert resumed == [resumed[0]] * 4
                assert resumed[0][1]["content"][0]["content"] == "seen"
                assert trace.read_text().split() == ["looked"]


async def test_what_is_noted_of_turns_expires(redis_url: str) -> None:
    """And is found in the hour after it was noted, whatever a host calls its turns."""
    settings = Settings(redis_url=redis_url, key_prefix="noting", turn_ttl=5000)
    transport = RedisTransport(settings)
    await transport.open()
    try:
        notes = [
            TurnNote("s", "a\0b", "n", ""),
            TurnNote("s", "c", "n", "refusal"),
            TurnNote("s", "b", "m", ""),
            TurnNote("s", "a\0b", is_answered=True),
        ]
        now = transport.server_time()
        for _ in range(2):  # a note that is written again is the same note
            await transport.note_turns([NoteBatch(now, notes[:1])])
        await transport.note_turns(
            [NoteBatch(now + 1.0, [*notes[1:], TurnNote("s2", "d", "n", "")])]
        )
        assert await transport.turns("s") == notes
        later = transport._clock.time() + 3600
        transport._clock.time = lambda: later  # type: ignore[method-assign]
        assert await transport.turns("s") == notes
        client = transport._client
        [key] = [key async for key in client.scan_iter("noting:turns:*")]
        assert 5000 < await client.ttl(key) <= 3 * 3600
    finally:
        await transport.close()
