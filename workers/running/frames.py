"""The private socket between a worker and its child processes: length-prefixed JSON, no pickle.

Every frame from a child says which process wrote it, and during a call which `run` it is about: a
nonce that the worker chose. A fork of a tool holds the same socket, and its frames must not pass
for another call's result.
"""

import socket
import struct

import msgspec

from toolpool.contract import encoding
from toolpool.contract.envelope import CallMessage, Switch
from toolpool.contract.outcome import Outcome

_LENGTH = struct.Struct("!I")
HEADER_BYTES = _LENGTH.size
_LEAST_READ, _MOST_READ = 1 << 13, 1 << 20


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run the tool of this call. `timeout` is in seconds from now, `heartbeat` of silence.

    `run` is a nonce below 2**63 that every frame about this run carries. `secrets` are the secrets
    that the tool declares.
    """

    run: int
    call: CallMessage
    timeout: float
    heartbeat: float | None = None
    secrets: dict[str, str] | None = None
    switches: tuple[Switch, ...] = ()
    enter_by: float | None = None
    """Until when the tool may be entered (monotonic clock); if set, the child sends `Entered`."""

    def __repr__(self) -> str:
        return f"Run(run={self.run}, tool={self.call.tool!r})"


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The child has loaded its tools."""

    pid: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The child could not load its tools, and ends."""

    pid: int
    error: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The run's outcome. A child that gives a `spent` reason accepts no further call."""

    pid: int
    run: int
    outcome: Outcome
    whole: str | None = None
    spent: str = ""


class Progressed(msgspec.Struct, frozen=True, kw_only=True, tag="progressed"):
    """The running call reports progress."""

    pid: int
    run: int
    done: float
    total: float | None = None
    message: str | None = None


class Entered(msgspec.Struct, frozen=True, kw_only=True, tag="entered"):
    """The tool is about to be entered."""

    pid: int
    run: int


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """The running call sends a heartbeat."""

    pid: int
    run: int


CUT_OFF = 74
"""The exit code of a child that cannot tell its worker how a call ended."""

Said = Ready | Failed | Done | Progressed | Beat | Entered
"""The frames that a child may send."""
Frame = Run | Said
_decoder: msgspec.json.Decoder[Frame] = encoding.decoder_of(Frame)


def pack(frame: Frame) -> bytes:
    """Encode a frame with its length prefix."""
    body = encoding.encode(frame)
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes | bytearray) -> int:
    """The length of the body that follows a header."""
    return int(_LENGTH.unpack(header)[0])


def unpack(body: bytes | bytearray) -> Frame:
    """Decode the frame in `body`. Raises msgspec.DecodeError."""
    return _decoder.decode(body)


class Reader:
    """Reads frames from a blocking socket, mostly with one system call each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def receive(self) -> Frame | None:
        """The next frame; None at the socket's end. Raises msgspec.DecodeError or OSError."""
        if not self._fill(HEADER_BYTES):
            return None
        end = HEADER_BYTES + body_length(self._received[:HEADER_BYTES])
        if not self._fill(end):
            return None
        body = self._received[HEADER_BYTES:end]
        del self._received[:end]
        return unpack(body)

    def _fill(self, count: int) -> bool:
        while len(self._received) < count:
            missing = count - len(self._received)
            part = self._connection.recv(min(max(missing, _LEAST_READ), _MOST_READ))
            if not part:
                return False
            self._received += part
        return True
