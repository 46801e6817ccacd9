"""How a process ended, in words."""

import contextlib
import signal


def described(code: int) -> str:
    """How a process ended, to follow "the process". A code below 0 is minus a signal."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
