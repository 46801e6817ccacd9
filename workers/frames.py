"""The private pipe between a worker and its child processes: length-prefixed JSON, never pickle."""

import socket
import struct
from typing import Any

import msgspec

from contract import encoding
from contract.outcome import Outcome

_LENGTH = struct.Struct("!I")
HEADER_BYTES = _LENGTH.size


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run this tool. `timeout` is in seconds from now, `heartbeat` in seconds of silence."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    timeout: float
    heartbeat: float | None = None
    session: str | None = None
    attempt: int = 1
    context: dict[str, Any] | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The child has loaded its tools."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The child could not load its tools and ends."""

    error: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The call's outcome; `spent` children take no further call."""

    outcome: Outcome
    whole: str | None = None
    spent: bool = False


class Progressed(msgspec.Struct, frozen=True, kw_only=True, tag="progressed"):
    """The running call says how far it is."""

    done: float
    total: float | None = None
    message: str | None = None


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """The running call says that it is alive."""


Frame = Run | Ready | Failed | Done | Progressed | Beat
_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


def pack(frame: Frame) -> bytes:
    """A frame's bytes with their length in front."""
    body = encoding.encode(frame)
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes | bytearray) -> int:
    """How many bytes follow a header."""
    return int(_LENGTH.unpack(header)[0])


def unpack(body: bytes | bytearray) -> Frame:
    """The frame in `body`. Raises msgspec.DecodeError."""
    return _decoder.decode(body)


def receive(connection: socket.socket) -> Frame | None:
    """The next frame of a blocking socket; None at its end."""
    header = _exactly(connection, HEADER_BYTES)
    body = _exactly(connection, body_length(header)) if header else None
    return unpack(body) if body is not None else None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
