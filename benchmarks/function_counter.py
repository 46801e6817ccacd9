"""Counts the Python and C function calls of a process, with `sys.setprofile`."""

import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

_by_code: Counter[CodeType] = Counter()
_c_calls = [0]


def profile(frame: FrameType, event: str, _argument: Any) -> None:
    """Count a call; for `sys.setprofile`, of one thread."""
    if event == "call":
        _by_code[frame.f_code] += 1
    elif event == "c_call":
        _c_calls[0] += 1


def begin() -> None:
    """Count the calls of this thread, and of all threads that it starts from now on."""
    threading.setprofile(profile)
    sys.setprofile(profile)


def counts() -> dict[str, int]:
    """The function calls since `begin`: `python` and `c`."""
    return {"python": _by_code.total(), "c": _c_calls[0]}


def clear() -> None:
    """Begin at zero again."""
    _by_code.clear()
    _c_calls[0] = 0


def by_function() -> Counter[str]:
    """Python function calls by module path, line and name."""
    found: Counter[str] = Counter()
    for code, count in list(_by_code.items()):
        path = code.co_filename.rpartition("/toolpool/")[2] or code.co_filename
        found[f"{path}:{code.co_firstlineno} {code.co_qualname}"] += count
    return found
