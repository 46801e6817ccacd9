"""JSON on its way to a tool and back: through envelope and pipe, unchanged."""

import socket
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from toolpool.contract import encoding
from toolpool.contract.envelope import Batch, CallMessage, Envelope, Settled
from toolpool.contract.outcome import Outcome
from toolpool.contract.signing import Keyring
from toolpool.workers.running import frames

ENVELOPE = Envelope(Keyring.local(), max_bytes=1 << 30)

text = st.text(st.characters(exclude_categories=("Cs",)))
scalars = (
    st.none() | st.booleans() | st.integers() | text
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=25
)
arguments = st.dictionaries(text, values)
with_odd_numbers = example({"a": [2**64, -(2**80), 1, 1.0, -0.0, 5e-324, 1e308, 10**400]})


def exactly(value: Any) -> str:
    """Tells 1 from 1.0, and 0.0 from -0.0."""
    return repr(value)


@pytest.mark.long
@given(arguments)
@with_odd_numbers
def test_the_envelope_changes_nothing(given: dict[str, Any]) -> None:
    call = CallMessage(key="k", id="c", tool="t", digest="", arguments=given, context=given)
    batch = ENVELOPE.decode_batch(
        ENVELOPE.encode_batch(Batch(id="b", reply="r", calls=(call, call)))
    )
    for received in batch.calls:
        assert exactly(received.arguments) == exactly(given)
        assert exactly(received.context) == exactly(given)


def run_of(number: int, arguments: dict[str, Any], **more: Any) -> frames.Run:
    call = CallMessage(key="k", id="c", tool="t", digest="", arguments=arguments)
    return frames.Run(run=number, call=call, timeout=1.0, **more)


@pytest.mark.long
@given(arguments)
@with_odd_numbers
def test_the_pipe_to_a_child_changes_nothing(given: dict[str, Any]) -> None:
    frame = run_of(1, given)
    packed = frames.pack(frame)
    assert frames.body_length(packed[: frames.HEADER_BYTES]) == len(packed) - frames.HEADER_BYTES
    received = frames.unpack(packed[frames.HEADER_BYTES :])
    assert isinstance(received, frames.Run)
    assert exactly(received.call.arguments) == exactly(given)


@given(values)
def test_a_result_comes_back_as_it_was_returned(value: Any) -> None:
    """Encoded where the tool ran, carried as it is, decoded where it is asked for."""
    outcome = Outcome(ok=True, data=msgspec.Raw(encoding.encode(value)))
    done = frames.unpack(
        frames.pack(frames.Done(pid=1, run=1, outcome=outcome))[frames.HEADER_BYTES :]
    )
    assert isinstance(done, frames.Done)
    reply = ENVELOPE.decode_reply(ENVELOPE.encode_reply(Settled(key="k", outcome=done.outcome)))
    assert isinstance(reply, Settled)
    assert exactly(reply.outcome.data) == exactly(value)


def test_frames_arrive_whole_in_whatever_pieces() -> None:
    """A megabyte over a socket that takes it bit by bit, then the end."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    arguments = {"a": "x" * 1_000_000}
    sent = [run_of(2**63 - 1, arguments), run_of(1, {})]

    def send() -> None:
        for frame in sent:
            ours.sendall(frames.pack(frame))
        ours.close()

    sender = threading.Thread(target=send)
    sender.start()
    reader = frames.Reader(theirs)
    received = [reader.receive() for _ in range(3)]
    sender.join()
    theirs.close()
    assert received == [*sent, None]


def test_a_frame_does_not_show_what_it_carries() -> None:
    frame = run_of(1, {"a": "hunter2"}, secrets={"key": "hunter2"})
    assert repr(frame) == "Run(run=1, tool='t')"
    assert frames.unpack(frames.pack(frame)[frames.HEADER_BYTES :]) == frame


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'{"type":"other"}', b"\xff"])
def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.unpack(body)


def test_canonical_forms_are_equal_for_equal_values() -> None:
    """Keys of records are made of them."""
    one, other = {"a": 1, "b": [{"c": 1, "d": 2}]}, {"b": [{"d": 2, "c": 1}], "a": 1}
    assert encoding.digest(one) == encoding.digest(other)
    assert encoding.digest({"a": 1}) != encoding.digest({"a": 1.0}) != encoding.digest({"a": "1"})
