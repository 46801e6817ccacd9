"""What a worker and its supervisor tell each other, over a pair of sockets that only they hold.

The worker says about once a second that its loops turn, and what it has taken; the supervisor asks
it to leave, and tells it what became of those before it. A frame that finds no room is dropped:
another follows it soon.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

_FRAME_BYTES = 1 << 16


class LoopTurned(msgspec.Struct, tag="loop", frozen=True):
    """The event loop turns. `consumed` counts messages, ours and foreign, since the start.

    `leased`: the server has confirmed the worker's lease recently enough for calls to start.
    """

    consumed: int = 0
    free: dict[str, int] = {}
    worn_out: bool = False
    leased: bool = True


class MainTurned(msgspec.Struct, tag="main", frozen=True):
    """Celery's loop, on the main thread, turns. `consumes`: it is connected to the broker."""

    consumes: bool = True


class Recycle(msgspec.Struct, tag="recycle", frozen=True):
    """Take no more calls, let those end that still may, and exit: a successor is there."""


class Hurry(msgspec.Struct, tag="hurry", frozen=True):
    """The supervisor is to stop as well: what was told to recycle has its grace, no longer."""


class Down(msgspec.Struct, tag="down", frozen=True):
    """A worker that was here before ended by itself, or was killed by somebody else."""

    worker: str
    reason: str


class Stalled(msgspec.Struct, tag="stalled", frozen=True):
    """A worker that was here before was found to be of no use."""

    worker: str
    reason: str


Frame = LoopTurned | MainTurned | Recycle | Hurry | Down | Stalled

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


class Link:
    """One end. Safe to send on from any thread; never blocks, never raises."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FRAME_BYTES)

    @classmethod
    def pair(cls) -> tuple["Link", socket.socket]:
        """Our end, and the one for a worker."""
        # Datagrams: no frame is ever half written, whoever else writes at the same time.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return cls(ours), theirs

    @classmethod
    def inherited(cls, descriptor: int) -> "Link":
        """The end that a supervisor handed over; nothing that is started from here gets it."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)
        return cls(end)

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(self, frame: Frame) -> bool:
        """Tell the other end; whether there was room for the frame."""
        with suppress(OSError):
            self._socket.send(_encode(frame), socket.MSG_DONTWAIT)
            return True
        return False

    def received(self) -> list[Frame]:
        """What has come meanwhile."""
        frames: list[Frame] = []
        with suppress(OSError):
            while True:
                data = self._socket.recv(_FRAME_BYTES, socket.MSG_DONTWAIT)
                with suppress(msgspec.DecodeError):
                    frames.append(_decoder.decode(data))
        return frames

    def follow(self, handle: Callable[[Frame], None]) -> None:
        """Call `handle` with every frame that comes, in a thread of its own."""

        def read() -> None:
            with suppress(OSError):
                while data := self._socket.recv(_FRAME_BYTES):
                    with suppress(msgspec.DecodeError):
                        handle(_decoder.decode(data))

        threading.Thread(target=read, name="link", daemon=True).start()

    def close(self) -> None:
        """Let go of this end."""
        self._socket.close()
