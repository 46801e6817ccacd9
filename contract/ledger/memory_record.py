"""A call's record in the in-memory server, as the real one keeps it in a hash."""

from dataclasses import dataclass

_REPLIES_AT_MOST = 16


@dataclass(slots=True)
class Record:
    """Times are on the monotonic clock, where nothing else is said."""

    epoch: str
    opened: str
    attempt: int
    rerunnable: bool
    until: float
    deadline: float
    gone_at: float
    replies: list[str]
    state: str = "open"
    claims: int = 0
    claimed: str = ""
    worker: str = ""
    settled_by: str = ""
    outcome: bytes = b""
    recovered: str = ""
    released: str = ""
    releases: int = 0
    goes_on: str = ""
    keep: float = 0.0
    approval: str = ""
    """How far the approval of a call is that a person has to approve; empty for any other."""
    request: bytes = b""
    decision: bytes = b""
    expires: float = 0.0
    """By when it is decided, or once it is approved opened; Unix time in seconds."""
    asker: str = ""
    look_at: float = 0.0
    """When the next dispatcher may look at what is approved; Unix time in seconds."""
    is_told: bool = False
    anew_at: float | None = None
    """When a call that was refused, and never ran, may be asked again; Unix time in seconds."""

    def attach(self, reply: str, alive: set[str]) -> None:
        """Note a reply stream; where there are many, those of dead dispatchers make room."""
        if reply in self.replies:
            return
        if len(self.replies) >= _REPLIES_AT_MOST:
            self.replies = [known for known in self.replies if known in alive]
        if len(self.replies) < _REPLIES_AT_MOST:
            self.replies.append(reply)
