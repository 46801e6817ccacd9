"""What every test has: a clean environment, the recorded data, a server of its own."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

from toolpool.contract import logs
from toolpool.embedded import EmbeddedServer

REPOSITORY = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "TOOLPOOL_TEST_DATA"


def pytest_configure() -> None:
    """Settings of the shell the tests are run from are not theirs, nor their children's."""
    # A shell ignores it for jobs in the background, and so would all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A busy machine is no failure of the code.
    hypothesis.settings.register_profile("toolpool", deadline=None)
    hypothesis.settings.load_profile("toolpool")
    for name in list(os.environ):
        if name != DATA_VARIABLE and name.startswith(("TOOLPOOL_", "SENTRY_", "OTEL_")):
            del os.environ[name]


_LONGEST = (
    "test_links",
    "test_rates",
    "test_cli_fleet",
    "test_supervise",
    "test_cli_run",
    "test_rejection_mutations",
    "test_credentials",
    "test_approvals",
    "test_stops",
    "test_sync_misuse",
    "test_worker_observers",
    "test_resume",
    "test_strict",
)
"""The files that take longest: begun last, one of them would run alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, then what waits for servers, then what only computes."""
    ranks = {name: rank for rank, name in enumerate(_LONGEST)}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        return ranks.get(item.path.stem, len(ranks)), "integration" not in item.path.parts

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def _log_afresh() -> None:
    """A line that another test has seen is no repeated one."""
    logs.forget_repeats()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded data that lies beside the checkout, or where the variable says."""
    folder = Path(os.environ.get(DATA_VARIABLE) or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        reason = f"no recorded data at {folder}; set {DATA_VARIABLE} to the folder that has it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One real server for the whole run. A test that harms it starts one of its own."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    """The URL of the real server, emptied for this test."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


@pytest.fixture
def broker_url(server: EmbeddedServer, redis_url: str) -> str:
    """The same server's URL for Celery and kombu."""
    return server.broker_url
