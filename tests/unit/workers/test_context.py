"""What a tool says of its progress: how often, how much, and until when."""

import threading

import pytest

from toolpool.workers.context import ProgressThrottle

Report = tuple[float, float | None, str | None]


class Wire:
    """What went through a gate; `send` shows when two are sent at once."""

    def __init__(self) -> None:
        self.sent: list[Report] = []
        self.overlaps = 0
        self._busy = threading.Semaphore()

    def send(self, done: float, total: float | None, message: str | None) -> None:
        alone = self._busy.acquire(blocking=False)
        self.overlaps += not alone
        threading.Event().wait(0.001)  # as a full socket does
        self.sent.append((done, total, message))
        if alone:
            self._busy.release()


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_that_it_is_all_done_is_said_once(wire: Wire) -> None:
    gate = ProgressThrottle(wire.send)
    gate(1, 5, None)
    for _ in range(100):
        gate(5, 5, "done")
    assert wire.sent == [(1, 5, None), (5, 5, "done")]


def test_a_long_message_is_cut(wire: Wire) -> None:
    ProgressThrottle(wire.send)(1, None, "x" * 200_000)
    ((_, _, message),) = wire.sent
    assert message == "x" * 1000


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_dropped(wire: Wire, number: float) -> None:
    ProgressThrottle(wire.send)(number, None, None)
    ProgressThrottle(wire.send)(1, number, None)
    assert wire.sent == []


def test_half_a_surrogate_pair_fails_nothing(wire: Wire) -> None:
    ProgressThrottle(wire.send)(1, None, "\ud800")
    ((_, _, message),) = wire.sent
    assert message == "?"


def test_threads_report_one_at_a_time(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolpool.workers.context._PROGRESS_SECONDS", 0.0)
    gate = ProgressThrottle(wire.send)
    threads = [
        threading.Thread(target=lambda: [gate(n, None, None) for n in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(wire.sent), wire.overlaps) == (40, 0)


def test_nothing_is_reported_after_the_end(wire: Wire) -> None:
    gate = ProgressThrottle(wire.send)
    gate.close()
    gate(1, 1, None)
    assert wire.sent == []
