"""Commands that were started with SIGINT ignored, as a shell starts a job in the background.

Ctrl-C is then for the job in front, and none of theirs; TERM ends them all the same.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.integration.test_cli_run import TOOLS, call, environment
from tests.waiting import wait_until
from toolpool.contract.redis_keys import RedisKeys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A current directory with tools."""
    (tmp_path / "shop_tools.py").write_text(TOOLS)
    return tmp_path


@contextmanager
def in_background(folder: Path, *argv: str, **more: str) -> "Iterator[subprocess.Popen[str]]":
    script = 'trap "" INT; exec "$@"'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, "-m", "toolpool", *argv],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_run_goes_on_and_ends_by_term(folder: Path) -> None:
    with in_background(folder, "run", "--tools", "shop_tools.py") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in ("one", "two"):
            process.stdin.write(call("echo", text=text))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())[0]["data"] == text
            process.send_signal(signal.SIGINT)
        process.stdin.write(call("nap", seconds=50))
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143


def test_a_worker_goes_on_and_ends_by_term(folder: Path, redis_url: str) -> None:
    arguments = ("worker", "--tools", "shop_tools.py", "--run-in", "loop")
    with (
        in_background(folder, *arguments, TOOLPOOL_REDIS_URL=redis_url) as process,
        redis.Redis.from_url(redis_url) as client,
    ):
        wait_until(lambda: client.zcard(RedisKeys().workers), "the worker has a lease", 30)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        seen = time.time()
        wait_until(lambda: _renewed_at(client) > seen, "it renews its lease")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def _renewed_at(client: "redis.Redis") -> float:
    return max(
        (at for _, at in client.zrange(RedisKeys().workers, 0, -1, withscores=True)), default=0
    )
