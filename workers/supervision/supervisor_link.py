"""The messages between a worker and its supervisor, over a private pair of sockets.

About once a second the worker sends that its loops turn, and how many messages it has consumed. The
supervisor tells it to leave, and how earlier workers ended. A frame is dropped if the buffer is
full: another follows soon.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from toolpool.contract import encoding

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
    """Accept no more calls, let running calls end, and exit: a successor has started."""


class StopNow(msgspec.Struct, tag="hurry", frozen=True):
    """The supervisor stops too: a recycling worker now has only its drain time."""


class WorkerExited(msgspec.Struct, tag="down", frozen=True):
    """An earlier worker ended by itself, or was killed by another process."""

    worker: str
    reason: str


class Stalled(msgspec.Struct, tag="stalled", frozen=True):
    """An earlier worker was killed or replaced because it stalled."""

    worker: str
    reason: str


Frame = LoopTurned | MainTurned | Recycle | StopNow | WorkerExited | Stalled

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Frame] = encoding.decoder_of(Frame)


class Link:
    """One end of the pair. `send` may be called from any thread, never blocks and never raises."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FRAME_BYTES)

    @classmethod
    def pair(cls) -> tuple["Link", socket.socket]:
        """The supervisor's end, and the socket for a worker."""
        # Datagrams: a frame is never half written, even if several threads write.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return cls(ours), theirs

    @classmethod
    def inherited(cls, descriptor: int) -> "Link":
        """The end that a supervisor passed to this process; child processes do not inherit it."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)
        return cls(end)

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, frame: Frame) -> bool:
        """Send a frame; return whether there was room for it."""
        with suppress(OSError):
            self._socket.send(_encode(frame), socket.MSG_DONTWAIT)
            return True
        return False

    def received(self) -> list[Frame]:
        """The frames that have arrived since the last call."""
        frames: list[Frame] = []
        with suppress(OSError):
            while True:
                data = self._socket.recv(_FRAME_BYTES, socket.MSG_DONTWAIT)
                with suppress(msgspec.DecodeError):
                    frames.append(_decoder.decode(data))
        return frames

    def follow(self, handle: Callable[[Frame], None]) -> None:
        """Call `handle` with every frame, in a background thread."""

        def read() -> None:
            with suppress(OSError):
                while data := self._socket.recv(_FRAME_BYTES):
                    with suppress(msgspec.DecodeError):
                        handle(_decoder.decode(data))

        threading.Thread(target=read, name="link", daemon=True).start()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
