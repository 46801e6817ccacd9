"""An AMQP broker that refuses every user, as RabbitMQ does with a wrong password."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_REFUSED = b"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."


def _frame(class_: int, method: int, arguments: bytes) -> bytes:
    payload = struct.pack(">HH", class_, method) + arguments
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


_START = _frame(10, 10, b"\x00\x09" + _long(b"") + _long(b"PLAIN AMQPLAIN") + _long(b"en_US"))
_CLOSE = _frame(
    10, 50, struct.pack(">HB", 403, len(_REFUSED)) + _REFUSED + struct.pack(">HH", 0, 0)
)


def _refuse(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.settimeout(5)
                connection.recv(8)
                connection.sendall(_START)
                connection.recv(4096)
                connection.sendall(_CLOSE)
                connection.recv(4096)


@contextmanager
def refusing_broker() -> Iterator[str]:
    """Its URL, with a password."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_refuse, args=(listening,), daemon=True)
        thread.start()
        yield f"amqp://shop:wr0ng@127.0.0.1:{listening.getsockname()[1]}//"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)
