"""What one dispatcher tells the others of a tool's circuit."""

import msgspec

from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import MessageRejected

_CIRCUIT = "circuit"


class CircuitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that is left alone until `open_until`, or is well again where that is 0.

    Both are fleet time in seconds; of two states of one tool under a key prefix the one that was
    `set_at` later holds.
    """

    tool: str
    open_until: float
    set_at: float
    prefix: str = ""


_states = msgspec.json.Decoder(CircuitState)
_encoder = msgspec.json.Encoder()


def signed_state(envelope: Envelope, state: CircuitState) -> bytes:
    """The state as it is stored."""
    return envelope.seal(_CIRCUIT, _encoder.encode(state))


def read_state(envelope: Envelope, data: bytes) -> CircuitState:
    """Raises `MessageRejected` for what nobody we trust has signed."""
    try:
        return _states.decode(envelope.unseal(_CIRCUIT, data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"no circuit: {error}") from None
