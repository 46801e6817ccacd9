"""What is done in a row, a turn of the event loop later."""

import asyncio
import threading
from collections import deque
from contextvars import ContextVar

from toolpool.contract.gathering import Gathered


async def test_what_one_turn_brings_is_handed_over_in_the_next_in_order() -> None:
    taken: list[list[int]] = []
    gathered: Gathered[int] = Gathered(taken.append)
    for number in range(3):
        gathered.add(number)
    assert taken == [], "nothing is done at once"
    await asyncio.sleep(0)
    gathered.add(3)
    await asyncio.sleep(0)
    assert taken == [[0, 1, 2], [3]]


request: ContextVar[str] = ContextVar("request", default="none")


async def test_work_is_handed_over_in_an_empty_context() -> None:
    """What is done for many must not look as if it were done for the first of them."""
    seen: list[str] = []
    gathered: Gathered[int] = Gathered(lambda _: seen.append(request.get()))
    request.set("mine")
    gathered.add(0)
    await asyncio.sleep(0)
    assert seen == ["none"]


async def test_what_is_added_while_it_is_handed_over_comes_next() -> None:
    taken: list[list[int]] = []

    def take(items: list[int]) -> None:
        taken.append(items)
        if items == [0]:
            gathered.add(1)

    gathered: Gathered[int] = Gathered(take)
    gathered.add(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == [[0], [1]]


async def test_a_flush_hands_over_what_waits_and_nothing_twice() -> None:
    taken: list[list[int]] = []
    gathered: Gathered[int] = Gathered(taken.append)
    gathered.add(0)
    gathered.flush()
    gathered.flush()
    await asyncio.sleep(0)
    assert taken == [[0]]


def test_without_an_event_loop_it_is_handed_over_at_once() -> None:
    taken: list[list[int]] = []
    gathered: Gathered[int] = Gathered(taken.append)
    gathered.add(0)
    assert taken == [[0]]


async def test_who_flushes_is_woken_for_the_first_that_waits() -> None:
    woken: list[int] = []
    taken: list[list[int]] = []
    gathered: Gathered[int] = Gathered(taken.append, began=lambda: woken.append(len(taken)))
    gathered.add(0)
    gathered.add(1)
    gathered.flush()
    gathered.add(2)
    await asyncio.sleep(0)
    assert woken == [0, 1]
    assert taken == [[0, 1], [2]]


class AddedBetween(deque[int]):
    """As if another thread added a second item just when the first is taken."""

    gathered: Gathered[int]

    def popleft(self) -> int:
        if list(self) == [0]:
            self.gathered.add(1)
        return super().popleft()


async def test_what_is_added_while_another_thread_takes_the_last_is_not_left() -> None:
    """The event loop may be blocked, and nobody is woken for what is not the first."""
    taken: list[list[int]] = []
    gathered: Gathered[int] = Gathered(taken.append)
    gathered._waiting = waiting = AddedBetween()
    waiting.gathered = gathered
    gathered.add(0)
    gathered.flush()
    assert taken == [[0, 1]]


async def test_who_hands_over_in_time_does_not_wait_for_another_who_hangs() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def take(items: list[int]) -> None:
        entered.set()
        assert go_on.wait(10)

    gathered: Gathered[int] = Gathered(take)
    gathered.add(1)
    hangs = threading.Thread(target=gathered.flush)
    hangs.start()
    assert entered.wait(30)
    gathered.flush(0.01)
    assert hangs.is_alive(), "it came back meanwhile"
    go_on.set()
    hangs.join()
