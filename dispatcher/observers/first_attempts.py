"""Distinguishes first attempts from corrections of rejected calls."""

from collections import OrderedDict

_REMEMBERED = 10_000


class FirstAttempts:
    """Remembers, by session and tool, whether the last call was rejected. Not thread-safe."""

    def __init__(self) -> None:
        self._rejected: OrderedDict[tuple[str, str], None] = OrderedDict()

    def valid(self, session: str | None, tool: str) -> bool:
        """Record a valid call; return whether it was a first attempt."""
        return session is None or self._rejected.pop((session, tool), self) is self

    def rejected(self, session: str | None, tool: str) -> bool:
        """Record a rejected call; return whether it was a first attempt."""
        if session is None:
            return True
        is_first = self._rejected.pop((session, tool), self) is self
        self._rejected[session, tool] = None
        if len(self._rejected) > _REMEMBERED:
            self._rejected.popitem(last=False)
        return is_first
