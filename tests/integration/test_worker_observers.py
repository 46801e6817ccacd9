"""Observers of workers: told what happens in a real one, and never felt by a call."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.fleet import call, connected, running
from tests.waiting import eventually
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.spec import RunIn
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long

TOOLS = "tests.fleets.watching"
QUICK = {
    "lease_ttl": 2.0,
    "event_loop_timeout": 1.5,
    "drain_timeout": 0.5,
}


class Moments:
    """What the observers of a fleet have written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, moment: str) -> list[list[Any]]:
        """The process and the facts of each."""
        if not self._path.exists():
            return []
        whole, _, _ = self._path.read_text().rpartition("\n")  # the last may just be written
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line[1:] for line in lines if line[0] == moment]

    def text(self) -> str:
        return self._path.read_text()


@contextmanager
def watched(moments: Moments, observers: str) -> Iterator[LocalFleet]:
    """A fleet with these observers; they write into a file that its workers are told of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_MOMENTS", str(moments._path))
        with running(TOOLS, **QUICK, worker_observers=observers) as fleet:
            yield fleet


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    return Moments(tmp_path_factory.mktemp("observed") / "moments")


@pytest.fixture(scope="module")
def fleet(moments: Moments) -> Iterator[LocalFleet]:
    with watched(moments, f"{TOOLS}:Writing, {TOOLS}:Raising") as started:
        yield started


async def test_the_life_of_a_worker_and_of_its_calls_is_told(
    fleet: LocalFleet, moments: Moments
) -> None:
    await eventually(lambda: len(moments.of("ready")) == 2, "both workers are ready")
    async with connected(fleet) as dispatcher:
        turn = await dispatcher.dispatch(
            call("echo", "one", text="secret-424242") + call("fails", "two"), session="s-1"
        )
    assert [result.ok for result in turn] == [True, False]
    await eventually(lambda: len(moments.of("ended")) == 2, "both ends are told")
    assert len(moments.of("started")) == 2
    ended = " ".join(facts[1] for facts in moments.of("ended"))
    assert "call_id='one'" in ended and "session='s-1'" in ended
    answers = " ".join(facts[2] for facts in moments.of("ended"))
    assert "code=None" in answers and "runtime.raised" in answers
    assert "424242" not in moments.text(), "no argument and no exception's text is told"
    (worker,) = [facts[1] for facts in moments.of("ready") if "tools=()" not in facts[1]]
    assert "tools=('block_the_loop', 'die_writing', 'echo', 'fails')" in worker


async def test_one_that_raises_is_logged_and_not_felt(fleet: LocalFleet) -> None:
    async with connected(fleet) as dispatcher:
        assert (await dispatcher.dispatch(call("echo", text="there")))[0].ok
    await eventually(lambda: "observer_failed observer=Raising.started" in fleet.log(), "logged")


async def test_a_refused_message_is_reported(fleet: LocalFleet, moments: Moments) -> None:
    queue = RedisKeys(fleet.settings.key_prefix).queue("default", RunIn.LOOP)
    assert fleet.settings.redis_url is not None
    with redis.Redis.from_url(fleet.settings.redis_url) as client:
        client.lpush(queue, b'{"body": "bm90aGluZw==", "headers": {}, "properties": {}}')
    await eventually(lambda: moments.of("refused"), "it is told")
    assert moments.of("refused")[0][1] == "foreign"


async def test_a_worker_s_end_is_reported_by_its_successor(
    fleet: LocalFleet, moments: Moments
) -> None:
    async with connected(fleet) as dispatcher:
        await dispatcher.dispatch(call("die_writing"))
        await eventually(lambda: moments.of("worker_down"), "the next worker is told", 20.0)
        (pid, _, reason) = moments.of("worker_down")[0]
        assert reason == "was killed by SIGKILL"
        assert pid in [ready[0] for ready in moments.of("ready")]
        (frozen, *_) = moments.of("ready")[-1]
        os.kill(frozen, signal.SIGSTOP)
        await eventually(lambda: moments.of("worker_stalled"), "the next worker is told", 40.0)
        assert "it has sent nothing for" in moments.of("worker_stalled")[0][2]
        stalled = moments.of("worker_stalled")[0][1]
        assert stalled not in [worker for _, worker, _ in moments.of("worker_down")]


async def test_a_tool_that_blocks_the_loop_is_told_with_its_stack_though_it_ends_the_worker(
    fleet: LocalFleet, moments: Moments
) -> None:
    async with connected(fleet) as dispatcher:
        await dispatcher.dispatch(call("block_the_loop", seconds=20))

    def told() -> list[str]:
        """A busy machine may hold a loop up as well, for a moment."""
        return [blocked for _, blocked in moments.of("blocked") if "block_the_loop" in blocked]

    await eventually(lambda: len(told()) >= 2, "it is told", 20.0)
    first, last = told()
    assert "tool='block_the_loop'" in first and "is_fatal=False" in first
    assert "tool='block_the_loop'" in last and "is_fatal=True" in last and "time.sleep" in last


async def test_a_stop_and_a_server_outage_are_reported(tmp_path: Path) -> None:
    seen = Moments(tmp_path / "moments")
    with watched(seen, f"{TOOLS}:Writing") as fleet:
        await eventually(lambda: len(seen.of("ready")) == 2, "both workers are ready")
        os.kill(fleet._server.pid, signal.SIGSTOP)
        try:
            await eventually(lambda: len(seen.of("server_lost")) == 2, "it is away", 40.0)
        finally:
            os.kill(fleet._server.pid, signal.SIGCONT)
        await eventually(lambda: len(seen.of("server_back")) == 2, "it is back", 20.0)
        assert len(seen.of("server_lost")) == 2, "once by each worker"
        assert min(seconds for _, seconds in seen.of("server_back")) > 1.0
    assert len(seen.of("draining")) == len(seen.of("stopped")) == 2


@pytest.mark.parametrize(
    ("observer", "why"),
    [
        ("no_colon", "must be named as module:name"),
        ("not.there:Pager", "cannot be loaded: ModuleNotFoundError"),
        (f"{TOOLS}:missing", "cannot be loaded: AttributeError"),
        (f"{TOOLS}:broken", "cannot be loaded: OSError: no such thing"),
        (f"{TOOLS}:nothing", "is str, not an observer: derive its class from"),
        (f"{TOOLS}:echo", "cannot be loaded"),
    ],
)
def test_an_invalid_observer_stops_the_worker_at_once(
    observer: str, why: str, redis_url: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "toolpool", "worker", "--tools", TOOLS, "--observer", observer],
        env={**os.environ, "TOOLPOOL_REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 2
    assert why in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr
