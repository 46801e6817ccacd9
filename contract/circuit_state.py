"""The signed state of a tool's circuit, shared between dispatchers."""

import msgspec

from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import MessageRejected

_CIRCUIT = "circuit"


class CircuitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A circuit that is open until `open_until`; 0 if it is closed.

    Both times are fleet time in seconds. Of two states of a tool under one key prefix, the one with
    the later `set_at` holds.
    """

    tool: str
    open_until: float
    set_at: float
    prefix: str = ""


_states = msgspec.json.Decoder(CircuitState)
_encoder = msgspec.json.Encoder()


def signed_state(envelope: Envelope, state: CircuitState) -> bytes:
    """Encode and sign the state for storage."""
    return envelope.seal(_CIRCUIT, _encoder.encode(state))


def read_state(envelope: Envelope, data: bytes) -> CircuitState:
    """Verify and decode a state. Raises `MessageRejected`."""
    try:
        return _states.decode(envelope.unseal(_CIRCUIT, data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"not a circuit state: {error}") from None
