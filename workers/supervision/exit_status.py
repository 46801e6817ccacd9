"""How a process ended, in words."""

import contextlib
import signal


def described(code: int) -> str:
    """What follows "the process": it exited with a code, or was killed by a signal (below 0)."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
