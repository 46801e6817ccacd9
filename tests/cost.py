"""What a piece of work costs, in units that do not depend on how fast or busy the machine is."""

import time
from collections.abc import Callable
from typing import Any

_TRIES = 5


def cost(work: Callable[[], Any], *, most: float) -> tuple[Any, float]:
    """What `work` gave or raised, and its processor time as a multiple of `_reference`'s.

    Both are the least of some tries, one beside the other; the first that is under `most` is
    enough.
    """
    least = float("inf")
    for _ in range(_TRIES):
        unit, _ = _timed(_reference)
        seconds, result = _timed(work)
        least = min(least, seconds / unit)
        if least < most:
            break
    return result, least


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.thread_time()
    try:
        result = work()
    except Exception as error:
        result = error
    return time.thread_time() - began, result


def _reference() -> int:
    """About a hundredth of a second on a machine of 2025."""
    return sum(number * number % 7 for number in range(100_000))
