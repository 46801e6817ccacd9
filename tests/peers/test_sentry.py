"""What Sentry is told, seen by servers and checkers that nobody here wrote (R44)."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environments import environment
from tests.peers.bugsink import Bugsink, bugsink
from tests.peers.endings import SECRET, Endings
from tests.sentry_sink import SentrySink, sentry_sink
from tests.waiting import wait_until
from toolpool import Code, Settings
from toolpool.local import LocalFleet

RELAY = ["sentry-relay==0.10.1"]
CHECK = Path(__file__).with_name("relay_check.py")
TOOLS = "tests.fleets.ending"

EXPECTED = {
    ("fails", "runtime.raised"): 45,
    ("fails_in_a_thread", "runtime.raised"): 20,
    ("fails_in_a_child", "runtime.raised"): 20,
    ("dies", "runtime.crashed"): 5,
    ("returns_what_is_none", "runtime.bad_result"): 10,
    ("fails_twice", "runtime.raised"): 10,
    ("waits", "exception.worker_lost"): 3,
    ("works", "exception.queue_unreachable"): 5,
    # Of what the pool is short of there is one warning a minute.
    ("hangs", "exception.overloaded"): 1,
    ("fails", "exception.circuit_open"): 1,
    ("works", "exception.expired"): 1,
}
"""Events of each issue. No other ending is one, be it good or a mistake of the model's."""


async def ended(
    run: Callable[[Endings], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    dsn: str,
    are_reported: Callable[[], bool] = lambda: True,
    **settings: int,
) -> Endings:
    monkeypatch.setenv("SENTRY_DSN", dsn)
    monkeypatch.setenv("PLANTED", f"{SECRET}-environment")
    for name, value in settings.items():
        monkeypatch.setenv(f"TOOLPOOL_{name.upper()}", str(value))
    fleet = LocalFleet([TOOLS], Settings(retry_delay=0.01, lease_ttl=2.0))
    try:
        endings = Endings(fleet, are_reported)
        await run(endings)
        return endings
    finally:
        fleet.close()


def runtime_issues(sink: SentrySink) -> list[Any]:
    return [e for e in sink.of("event") if e["tags"]["code"].startswith("runtime")]


def of_workers(issues: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {key: count for key, count in issues.items() if key[1].startswith("runtime")}


def counted(server: Bugsink) -> dict[tuple[str, str], int]:
    return {
        (issue["tags"].get("tool", issue["value"]), issue["tags"].get("code", "")): issue["count"]
        for issue in server.issues()
    }


@pytest.mark.timeout(400)
async def test_the_issues_are_exactly_those_of_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bugsink(tmp_path) as server:
        endings = await ended(
            Endings.all,
            monkeypatch,
            server.dsn,
            lambda: of_workers(counted(server)) == of_workers(EXPECTED),
            sentry_per_minute=10_000,
        )
        wait_until(lambda: counted(server) == EXPECTED, f"{EXPECTED}", 60.0)
        codes = endings.codes()
        assert len(endings.results) > 990
        assert set(Code) - set(codes) == {Code.INTERNAL}, (
            "every ending but a fault of the pool's own"
        )
        assert counted(server) == EXPECTED, "and nothing came after it"


@pytest.mark.timeout(400)
async def test_a_flood_is_capped_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bugsink(tmp_path) as server:
        await ended(Endings.flood, monkeypatch, server.dsn)
        wait_until(lambda: len(counted(server)) == 2, "both issues are there", 60.0)
        issues = server.issues()
    counts = {issue["tags"].get("tool"): issue["count"] for issue in issues}
    assert counts == {"fails": 10, None: 1}
    (held_back,) = [issue["value"] for issue in issues if not issue["tags"]]
    assert held_back == "50 reports of failed tool calls were suppressed"


@pytest.mark.timeout(400)
async def test_no_secret_is_sent_and_every_item_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Relay is what stands before Sentry, and refuses what is not of the form."""
    monkeypatch.setenv("SENTRY_TRACES_SAMPLE_RATE", "1.0")
    with sentry_sink() as sink:
        await ended(
            Endings.all,
            monkeypatch,
            sink.dsn,
            lambda: len(runtime_issues(sink)) == sum(of_workers(EXPECTED).values()),
            sentry_per_minute=10_000,
        )
        assert SECRET not in b"".join(sink.bodies).decode()
        kinds = Counter(header["type"] for header, _ in sink.items)
        assert kinds["transaction"] > 1_000
        assert kinds["event"] == sum(EXPECTED.values())
        checked = subprocess.run(
            [str(environment("relay", RELAY) / "python"), str(CHECK)],
            input=json.dumps(sink.items), capture_output=True, text=True, timeout=120, check=True,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
    assert json.loads(checked.stdout) == {"checked": kinds["event"] + kinds["transaction"],
                                          "faults": []}  # fmt: skip
