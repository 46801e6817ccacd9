"""Bytes that are not ours, or not whole: `MessageRejected` with its reason, and nothing else."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, strategies as st
from msgspec.structs import replace

from tests.contract.samples import BATCH, CALL, ENVELOPE, KEY, SAMPLES, Sample, body_of, golden
from toolpool.contract import encoding
from toolpool.contract.envelope import (
    BackgroundCall,
    Cancel,
    CatalogEntry,
    Envelope,
    StoredOutput,
    Switch,
    Toolset,
    WorkerLease,
)
from toolpool.contract.errors import MessageRejected, Misconfigured
from toolpool.contract.event_entries import EventBatch
from toolpool.contract.signing import Keyring, generate_key

KEYRING = Keyring([KEY])
PURPOSES = (
    "batch",
    "reply",
    "cancel",
    "catalog",
    "lease",
    "toolset",
    "switch",
    "output",
    "background",
    "events",
)
DOORS: tuple[Callable[[bytes], object], ...] = (
    ENVELOPE.decode_batch,
    ENVELOPE.decode_reply,
    partial(ENVELOPE.decode, Cancel),
    partial(ENVELOPE.decode, CatalogEntry),
    partial(ENVELOPE.decode, WorkerLease),
    partial(ENVELOPE.decode, Toolset),
    partial(ENVELOPE.decode, Switch),
    partial(ENVELOPE.decode, StoredOutput),
    partial(ENVELOPE.decode, BackgroundCall),
    partial(ENVELOPE.decode, EventBatch),
)
every_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=list(SAMPLES))


def reason(door: Callable[[bytes], object], data: bytes) -> str:
    with pytest.raises(MessageRejected) as caught:
        door(data)
    return caught.value.reason


def signed(sample: Sample) -> bytes:
    return sample.encode(sample.value)


@every_sample
def test_unsigned(sample: Sample) -> None:
    body = body_of(signed(sample))
    for data in (b"", b".", b"..", body, b"x" * 52, b"12345678." + body, b"." * 60):
        assert reason(sample.decode, data) == "unsigned"


@every_sample
def test_a_foreign_key(sample: Sample) -> None:
    foreign = Keyring([generate_key()])
    for purpose in PURPOSES:
        data = foreign.sign(purpose, body_of(signed(sample)))
        assert reason(sample.decode, data) == "unknown_key"


@every_sample
def test_a_known_key_id_in_front_of_a_foreign_signature(sample: Sample) -> None:
    """The key id is no secret."""
    foreign = Keyring([generate_key()]).sign("batch", body_of(signed(sample)))
    assert reason(sample.decode, signed(sample)[:8] + foreign[8:]) == "bad_signature"


def _way(door: Callable[[bytes], object]) -> object:
    """The method of the envelope, and the type that it decodes."""
    return (door.func, door.args) if isinstance(door, partial) else door


@pytest.mark.parametrize("name", SAMPLES)
def test_a_message_signed_for_another_purpose(name: str) -> None:
    """A stored outcome must not pass for a batch, nor a lease for a cancel."""
    sample = SAMPLES[name]
    for door in DOORS:
        if _way(door) == _way(sample.decode):
            continue
        assert reason(door, signed(sample)) == "bad_signature"


@every_sample
def test_truncated_anywhere(sample: Sample) -> None:
    data = signed(sample)
    for length in range(len(data)):
        expected = "unsigned" if length < 52 else "bad_signature"
        assert reason(sample.decode, data[:length]) == expected


@every_sample
def test_a_flipped_byte_anywhere(sample: Sample) -> None:
    data = signed(sample)
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        assert reason(sample.decode, flipped) in ("unsigned", "unknown_key", "bad_signature")


@every_sample
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b'"text"', b"{", b"\xff\xfe", b'{"type":"other"}', b"1e999"],
)
def test_signed_by_us_and_still_not_of_the_form(sample: Sample, body: bytes) -> None:
    for purpose, door in zip(PURPOSES, DOORS, strict=True):
        if door == sample.decode:
            assert reason(door, KEYRING.sign(purpose, body)) == "malformed"


@pytest.mark.parametrize("depth", [100_000, 500_000])
def test_nested_without_end(depth: int) -> None:
    """Far past what the interpreter's stack takes."""
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    body = body_of(golden("batch")[-1]).replace(b'{"customer_id":"C-104","limit":10}', deep)
    envelope = Envelope(KEYRING, max_bytes=10 * len(body))
    assert deep in body
    assert reason(envelope.decode_batch, KEYRING.sign("batch", body)) == "malformed"


def test_over_the_size_cap() -> None:
    data = golden("batch")[-1]
    assert Envelope(KEYRING, max_bytes=len(data)).decode_batch(data) == BATCH
    assert reason(Envelope(KEYRING, max_bytes=len(data) - 1).decode_batch, data) == "too_large"


def test_the_text_never_holds_the_payload() -> None:
    """It goes to logs, and arguments may be secrets."""
    body = body_of(golden("batch")[-1]).replace(b'"index":1', b'"index":"C-104"')
    with pytest.raises(MessageRejected) as caught:
        ENVELOPE.decode_batch(KEYRING.sign("batch", body))
    assert "C-104" not in str(caught.value)


@given(st.binary(max_size=200))
@example(b"\xff" * 8 + b"." + b"A" * 43 + b".{}")
@example(b"12345678." + b"\xff" * 43 + b".")
def test_any_bytes_at_all(data: bytes) -> None:
    for door in DOORS:
        assert reason(door, data) in ("unsigned", "unknown_key", "bad_signature")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(body=st.binary(max_size=200) | _json.map(encoding.encode))
def test_anything_signed_by_us_is_of_the_form_or_rejected(body: bytes) -> None:
    for purpose, door in zip(PURPOSES, DOORS, strict=True):
        try:
            door(KEYRING.sign(purpose, body))
        except MessageRejected as rejected:
            assert rejected.reason in ("malformed", "version")  # noqa: PT017


@given(name=st.sampled_from(sorted(SAMPLES)), data=st.data())
def test_one_field_of_any_other_value_is_taken_or_rejected(name: str, data: st.DataObject) -> None:
    """Nearly right is harder than garbage: the form holds, one field of it does not."""
    fields = encoding.decode(body_of(golden(name)[-1]))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(_json)
    for purpose, door in zip(PURPOSES, DOORS, strict=True):
        try:
            door(KEYRING.sign(purpose, encoding.encode(fields)))
        except MessageRejected as rejected:
            assert rejected.reason in ("malformed", "version")  # noqa: PT017


def test_keys_rotate_without_a_stop() -> None:
    """The first key signs, all verify: new key second, then first, then the old one goes."""
    old, new = generate_key(), generate_key()
    before, during, after = (Keyring.parse(keys) for keys in (old, f"{new}, {old}", new))
    written_before = Envelope(before).encode_batch(BATCH)
    written_during = Envelope(during).encode_batch(BATCH)
    assert Envelope(during).decode_batch(written_before) == BATCH
    assert Envelope(after).decode_batch(written_during) == BATCH
    assert Envelope(Keyring.parse(f"{old},{new}")).decode_batch(written_during) == BATCH
    assert reason(Envelope(after).decode_batch, written_before) == "unknown_key"
    assert during.key_id == after.key_id != before.key_id


def test_a_message_of_another_key_prefix_is_rejected() -> None:
    """Two deployments on one server may have one key: neither runs what the other allowed."""
    ours, theirs = (Keyring([KEY], prefix) for prefix in ("staging", "production"))
    assert reason(Envelope(theirs).decode_batch, Envelope(ours).encode_batch(BATCH)) == (
        "bad_signature"
    )
    assert Envelope(ours).decode_batch(Envelope(ours).encode_batch(BATCH)) == BATCH


@pytest.mark.parametrize("keys", ["", " , ", "short", f"{'long enough, ' * 2}short"])
def test_a_key_that_protects_nothing_is_refused(keys: str) -> None:
    with pytest.raises(Misconfigured, match="toolpool keygen"):
        Keyring.parse(keys)


def test_what_cannot_be_json_is_refused_before_it_is_sent() -> None:
    batch = replace(BATCH, calls=(replace(CALL, arguments={"a": object()}),))
    with pytest.raises(TypeError):
        ENVELOPE.encode_batch(batch)
