"""Running something in a thread that lasts."""

import threading

import pytest

from toolpool.workers.supervision.lifeline import in_lasting_thread


def in_another_thread(call: object) -> list[object]:
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(in_lasting_thread(call))  # type: ignore[arg-type]
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(10)
    return answers


def test_the_main_thread_runs_it_itself() -> None:
    assert in_lasting_thread(threading.current_thread) is threading.main_thread()


def test_every_other_thread_shares_one_that_stays() -> None:
    [first], [second] = (in_another_thread(threading.current_thread) for _ in range(2))
    assert isinstance(first, threading.Thread)
    assert first is second
    assert first.is_alive()
    assert first is not threading.main_thread()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_it_raises_is_raised_where_it_was_asked_for(error: BaseException) -> None:
    def fail() -> None:
        raise error

    assert in_another_thread(fail) == [error]
    [after] = in_another_thread(threading.current_thread)
    assert isinstance(after, threading.Thread)  # the thread took no harm
