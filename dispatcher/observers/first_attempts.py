"""Which calls are first tries, and which mend one that was rejected."""

from collections import OrderedDict

_REMEMBERED = 10_000


class FirstAttempts:
    """Remembers which tools a session was last rejected for. On one thread."""

    def __init__(self) -> None:
        self._rejected: OrderedDict[tuple[str, str], None] = OrderedDict()

    def valid(self, session: str | None, tool: str) -> bool:
        """A call was valid: whether it was a first try."""
        return session is None or self._rejected.pop((session, tool), self) is self

    def rejected(self, session: str | None, tool: str) -> bool:
        """A call was rejected: whether it was a first try."""
        if session is None:
            return True
        is_first = self._rejected.pop((session, tool), self) is self
        self._rejected[session, tool] = None
        if len(self._rejected) > _REMEMBERED:
            self._rejected.popitem(last=False)
        return is_first
