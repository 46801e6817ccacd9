"""What can be said of a message that cannot be read."""

import pytest

from toolpool.contract.envelope import Envelope, Settled
from toolpool.contract.errors import MessageRejected
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.signing import Keyring

KEYRING = Keyring.local()
ENVELOPE = Envelope(KEYRING)


def signed(body: bytes) -> bytes:
    return KEYRING.sign("reply", body)


@pytest.mark.parametrize(
    "outcome",
    [
        b'{"ok":true,"data":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"ok":"perhaps"}',
        b'{"ok":false,"code":"newer.code"}',
        b'{"ok":tr',
    ],
    ids=["deep", "form", "newer", "cut"],
)
def test_an_outcome_that_cannot_be_read_ends_its_call(outcome: bytes) -> None:
    """R1: its worker sent it once; nobody would say anything more of the call."""
    reply = ENVELOPE.decode_reply(
        signed(b'{"type":"settled","key":"k-1_a.b:c","outcome":' + outcome + b"}")
    )
    assert isinstance(reply, Settled)
    assert reply.key == "k-1_a.b:c"
    assert (reply.outcome.code, reply.outcome.executed) == (Code.INTERNAL, Executed.UNKNOWN)
    assert "could not be read" in reply.outcome.error


def test_only_a_settled_call_is_ended_by_what_cannot_be_read() -> None:
    for body in (b'{"type":"progress","key":"k","done":"x"}', b'{"key":"k"}', b"\xff"):
        with pytest.raises(MessageRejected):
            ENVELOPE.decode_reply(signed(body))
    with pytest.raises(MessageRejected):  # unsigned
        ENVELOPE.decode_reply(b'{"type":"settled","key":"k","outcome":{}}')


def test_a_settled_call_begins_as_its_key_is_looked_for() -> None:
    """Where its outcome is cut off, the key is still found."""
    body = KEYRING.verify(
        "reply", ENVELOPE.encode_reply(Settled(key="k", outcome=Outcome(ok=True, data=[1])))
    )
    reply = ENVELOPE.decode_reply(signed(body[:-4]))
    assert isinstance(reply, Settled) and reply.key == "k"
