"""A call's record in the in-memory server; on Redis it is a hash."""

from dataclasses import dataclass

_REPLIES_AT_MOST = 16


@dataclass(slots=True)
class Record:
    """Times are on the monotonic clock unless noted otherwise."""

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
    """The approval state; empty if the call needs no approval."""
    request: bytes = b""
    decision: bytes = b""
    expires: float = 0.0
    """When a waiting call, or an approved call that was not opened, expires; Unix time."""
    asker: str = ""
    look_at: float = 0.0
    """When the next dispatcher may take over the approved call; Unix time in seconds."""
    is_told: bool = False
    is_handed_over: bool = False
    """Whether the call has a handle, with which a client may ask for it."""
    unsent_in: str = ""
    """The epoch in which no dispatcher has sent a call that needs approval."""
    anew_at: float | None = None
    """When a refused call that never ran may be dispatched again; Unix time in seconds."""

    def attach(self, reply: str, alive: set[str]) -> None:
        """Add a reply stream; if there are too many, streams of dead dispatchers are dropped."""
        if reply in self.replies:
            return
        if len(self.replies) >= _REPLIES_AT_MOST:
            self.replies = [known for known in self.replies if known in alive]
        if len(self.replies) < _REPLIES_AT_MOST:
            self.replies.append(reply)
