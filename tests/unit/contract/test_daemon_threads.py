"""Threads that run one call after another."""

import contextvars
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from toolpool.contract.daemon_threads import DaemonThreads

_user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


@pytest.fixture
def pool() -> Iterator[DaemonThreads]:
    threads = DaemonThreads("tool")
    yield threads
    threads.close()


def test_what_a_call_sets_is_not_set_for_the_next_session(pool: DaemonThreads) -> None:
    seen: list[tuple[int, str]] = []

    def work() -> None:
        seen.append((threading.get_ident(), _user.get()))
        _user.set("a user of this session")

    pool.submit(work)
    wait_until(lambda: len(seen) == 1 and pool._idle == 1, "it has run")
    pool.submit(work)
    wait_until(lambda: len(seen) == 2, "it has run again")
    assert seen == [(seen[0][0], "nobody")] * 2, "the same thread"
