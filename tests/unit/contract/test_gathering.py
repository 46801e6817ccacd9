"""What is done in a row, a turn of the event loop later."""

import asyncio
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


async def test_it_is_handed_over_in_nobodys_context() -> None:
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
