"""Threads that run one call after another."""

import contextvars
import functools
import queue
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


def test_no_more_threads_than_allowed_are_started_and_further_work_waits() -> None:
    threads = DaemonThreads("tool", at_most=2)
    gate, ran = threading.Event(), queue.SimpleQueue[int]()

    def work(number: int) -> None:
        gate.wait(10)
        ran.put(number)

    for number in range(5):
        threads.submit(functools.partial(work, number))
    assert threads.threads == 2
    gate.set()
    assert {ran.get(timeout=10) for _ in range(5)} == set(range(5))
    threads.close()


def test_a_thread_that_cannot_be_started_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = DaemonThreads("tool", at_most=1)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(lambda: None)
    ran = threading.Event()
    threads.submit(ran.set)
    assert ran.wait(10)
    threads.close()


async def test_a_future_has_what_the_function_returns_or_raises(pool: DaemonThreads) -> None:
    def fail(error: BaseException) -> None:
        raise error

    assert await pool.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="k"):
        await pool.call(fail, KeyError("k"))
    for refused in (SystemExit("secret"), StopIteration("secret"), KeyboardInterrupt("secret")):
        with pytest.raises(RuntimeError, match=f"^{type(refused).__name__}$"):
            await pool.call(fail, refused)


async def test_a_function_whose_caller_has_gone_is_not_called() -> None:
    threads, gate, called = DaemonThreads("tool", at_most=1), threading.Event(), list[int]()
    first = threads.call(gate.wait, 10)
    second = threads.call(called.append, 1)
    second.cancel()
    gate.set()
    assert await first
    assert await threads.call(called.copy) == []
    threads.close()
