"""The bytes on the wire: what was ever written is read, and what is written does not drift."""

from typing import Any

import msgspec
import pytest

from tests.contract.samples import BATCH, ENVELOPE, KEY, SAMPLES, body_of, celery_element, golden
from toolpool.contract import encoding
from toolpool.contract.envelope import Batch, CallMessage
from toolpool.contract.errors import MessageRejected
from toolpool.contract.outcome import Executed, Outcome
from toolpool.contract.schema.problem import Problem
from toolpool.contract.signing import Keyring

KEYRING = Keyring([KEY])
PURPOSES = (
    "batch",
    "reply",
    "cancel",
    "catalog",
    "lease",
    "toolset",
    "switch",
    "circuit",
    "report",
    "answer",
    "output",
    "background",
    "events",
    "approval",
    "decision",
)


def purpose(name: str) -> str:
    """What a sample's signature is for."""
    signed = golden(name)[-1]
    body = body_of(signed)
    return next(purpose for purpose in PURPOSES if KEYRING.sign(purpose, body) == signed)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_ever_written_is_read(name: str) -> None:
    forms = golden(name)
    assert forms, f"no golden file for {name}: run python -m tests.contract.samples"
    for form in forms:
        assert SAMPLES[name].decode(form) == SAMPLES[name].value


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_is_the_newest_form_to_the_byte(name: str) -> None:
    assert SAMPLES[name].encode(SAMPLES[name].value) == golden(name)[-1]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_field_of_a_later_version_is_passed_over(name: str) -> None:
    """Old and new run side by side for minutes in every upgrade, at any depth of a message."""
    later = KEYRING.sign(purpose(name), encoding.encode(_with_more(_decoded(name))))
    assert SAMPLES[name].decode(later) == SAMPLES[name].value


def _decoded(name: str) -> Any:
    return encoding.decode(body_of(golden(name)[-1]))


_DATA = (
    "arguments", "context", "data", "details", "trace", "extensions", "input_schema", "slots",
    "circuits", "failures",
    "free", "value", "tools", "output_schema", "input_examples", "detail",
)  # fmt: skip


def _with_more(value: Any) -> Any:
    """Every object with one more field, except where the objects are the users' own."""
    if isinstance(value, list):
        return [_with_more(item) for item in value]
    if not isinstance(value, dict):
        return value
    more = {k: v if k in _DATA else _with_more(v) for k, v in value.items()}
    return more | {"from_the_future": {"a": 1}}


@pytest.mark.parametrize(
    "changed",
    [{"version": 2}, {"version": 99, "calls": {"another": "form"}}, {"version": 2, "calls": []}],
)
def test_a_newer_version_is_refused_by_its_number(changed: dict[str, Any]) -> None:
    """Also where its form changed: the operator must read "upgrade", not "malformed"."""
    newer = KEYRING.sign("batch", encoding.encode(_decoded("batch") | changed))
    with pytest.raises(MessageRejected, match="upgrade workers before dispatchers") as caught:
        ENVELOPE.decode_batch(newer)
    assert caught.value.reason == "version"


def test_a_message_without_a_version_is_of_the_first() -> None:
    """`version` is left out while it is 1, so the bytes say it by saying nothing."""
    assert "version" not in _decoded("batch")
    assert ENVELOPE.decode_batch(golden("batch")[-1]).version == 1


def test_the_celery_element_is_written_to_the_byte() -> None:
    """That Celery takes it is proved with a real worker."""
    assert celery_element() == golden("celery")[-1]


def test_the_batch_is_found_in_every_celery_element_ever_written() -> None:
    for element in golden("celery"):
        body = encoding.decode(encoding.decode(element)["body"])
        assert ENVELOPE.decode_batch(body[0][0].encode()) == BATCH


def test_a_decoded_message_can_be_encoded_again() -> None:
    """Whatever is read is whole: nothing is dropped on the way through."""
    for sample in SAMPLES.values():
        assert sample.encode(sample.decode(sample.encode(sample.value))) == sample.encode(
            sample.value
        )
        assert msgspec.json.encode(sample.value) == body_of(sample.encode(sample.value))


@pytest.mark.parametrize(
    ("least", "meaning"),
    [
        (
            CallMessage(key="k", id="c", tool="t", digest="", arguments={}),
            {
                "key": "k", "id": "c", "tool": "t", "digest": "", "arguments": {}, "index": 0,
                "session": None, "turn": None, "context": None, "attempt": 1, "timeout": 60.0,
                "rerunnable": False, "final": False, "trace": None, "approval": None,
                "extensions": None, "keep": None, "retries": 0, "verdict": None, "limits": (),
                "idempotency": "",
            },
        ),
        (
            Batch(id="b", reply="r", calls=()),
            {
                "id": "b", "reply": "r", "calls": (), "tenant": "default", "version": 1,
                "sent_at": 0.0, "ends_at": 0.0,
            },
        ),
        (
            Outcome(ok=True),
            {
                "ok": True, "data": None, "code": None, "error": "", "executed": Executed.YES,
                "problems": (), "details": None, "recommendations": (), "retry_after": None,
                "note": None, "duration": 0.0, "worker": "", "attempt": 1, "output": None,
                "output_bytes": 0, "still_running": False,
                "silence": 0.0,
            },
        ),
        (
            Problem((), "type"),
            {
                "path": (), "kind": "type", "expected": "", "received": "", "allowed": (),
                "closest": None, "shape": None, "more": 0, "is_optional": False, "holds": "",
                "place": (), "is_unsure": False, "also": 0,
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_left_out_means_what_it_always_meant(
    least: msgspec.Struct, meaning: dict[str, Any]
) -> None:
    """Defaults are not written, so changing one changes every message that is on a queue.

    A field that is new is added here with its default: what was written before it never had it.
    """
    assert msgspec.structs.asdict(least) == meaning
