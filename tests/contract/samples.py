"""One fixed value of everything that goes over the wire, and the golden files that pin its bytes.

A golden file is never changed: bytes like these are on queues and in records of fleets that run
while they are upgraded. When what we write changes, `python -m tests.contract.samples` adds the
next number of it; every number must still be read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from toolpool.contract.approval_messages import (
    ApprovalDecision,
    ApprovalReader,
    ApprovalRequest,
    digest_of,
)
from toolpool.contract.credentials import MissingReason, MissingSecret, missing_secret_outcome
from toolpool.contract.envelope import (
    BackgroundCall,
    Batch,
    CallMessage,
    Cancel,
    CatalogEntry,
    Decided,
    Envelope,
    PolicyVerdict,
    Progress,
    Question,
    Released,
    RunsEnded,
    Settled,
    Started,
    StoredOutput,
    Switch,
    Toolset,
    Unclaimed,
    WorkerLease,
)
from toolpool.contract.event_entries import EventBatch, EventEntry
from toolpool.contract.operator_messages import (
    Answer,
    CallStatus,
    DispatcherReport,
    EndedCalls,
    WaitingCalls,
)
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.rates import Limit, rate_of
from toolpool.contract.schema.problem import Problem
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import Effects, RunIn, ToolSpec, sealed
from toolpool.dispatcher.calls.fleet_circuits import CircuitState
from toolpool.dispatcher.transports import celery_message

FOLDER = Path(__file__).parent / "golden"

KEY = "a golden key, for tests alone"
ENVELOPE = Envelope(Keyring([KEY]))

CALL = CallMessage(
    key="9c1f0e6a2b7d4c58a1e3f5b7d9c2e4f6",
    id="toolu_01",
    tool="search_orders",
    digest="4be0a1b2c3d4e5f60718293a4b5c6d7e",
    arguments={"customer_id": "C-104", "limit": 10},
    index=1,
    session="s-1",
    turn="msg_01",
    context={"user": "u-7"},
    attempt=2,
    timeout=20.0,
    rerunnable=True,
    trace={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    extensions={"example": 1},
)
BATCH = Batch(
    id="b-1",
    reply="toolpool:reply:d-1",
    calls=(CALL, CallMessage(key="k-2", id="toolu_02", tool="clock", digest="", arguments={})),
    tenant="acme",
)
REQUEST = ApprovalRequest(
    tenant="acme",
    prefix="toolpool",
    message=CallMessage(
        key="9b2d1c4e5f60718293a4b5c6d7e8f901",
        id="toolu_01",
        tool="refund",
        digest="ce56a9521c59f5c205b39347f446ff81",
        arguments={"order": "O-7", "amount": 900},
        session="s-1",
        turn="msg_01",
    ),
    digest=digest_of("refund", {"order": "O-7", "amount": 900}, "b0c4"),
    asked_at=1767225600.5,
    expires_at=1767312000.5,
    start_within=90.0,
    reason="Refunds above 100 need a person.",
    approvers=("anna", "finance"),
    by="refunds",
)
READER = ApprovalReader(ENVELOPE, "acme", "toolpool")
DECISION = ApprovalDecision(
    key=REQUEST.id,
    tenant="acme",
    prefix="toolpool",
    digest=REQUEST.digest,
    approved=True,
    by="anna",
    at=1767225660.5,
    ends_at=1767312090.5,
    reason="as agreed",
)
SPEC = sealed(
    ToolSpec(
        name="search_orders",
        description="Find a customer's orders.",
        input_schema={
            "type": "object",
            "properties": {"customer_id": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["customer_id"],
            "additionalProperties": False,
        },
        run_in=RunIn.LOOP,
        effects=Effects.READ,
        timeout=20.0,
        recommendations=("Ask for the customer's number.",),
        injected=("ctx",),
    )
)


@dataclass(frozen=True)
class Sample:
    """A value, and the two functions of the envelope that it goes through."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _reply(value: Any) -> Sample:
    return Sample(value, ENVELOPE.encode_reply, ENVELOPE.decode_reply)


SAMPLES = {
    "batch": Sample(BATCH, ENVELOPE.encode_batch, ENVELOPE.decode_batch),
    "batch_judged": Sample(
        Batch(
            id="b-3",
            reply="toolpool:reply:d-1",
            calls=(
                CallMessage(
                    key="k-4",
                    id="toolu_04",
                    tool="refund",
                    digest="ce56a9521c59f5c205b39347f446ff81",
                    arguments={"order": "O-7", "amount": 90, "lines": []},
                    verdict=PolicyVerdict(
                        policy="0d4f1c2b3a495867768594a3b2c1d0ef",
                        by="small refunds",
                        tool="5c6d7e8f90a1b2c3d4e5f60718293a4b",
                        paths=(("amount",), ("lines", None, "sku")),
                        is_whole=True,
                    ),
                ),
            ),
        ),
        ENVELOPE.encode_batch,
        ENVELOPE.decode_batch,
    ),
    "batch_idempotent": Sample(
        Batch(
            id="b-4",
            reply="toolpool:reply:d-1",
            calls=(
                CallMessage(
                    key="k-5",
                    id="toolu_05",
                    tool="charge",
                    digest="",
                    arguments={},
                    idempotency="0d4f1c2b3a495867768594a3b2c1d0ef",
                ),
            ),
        ),
        ENVELOPE.encode_batch,
        ENVELOPE.decode_batch,
    ),
    "batch_dated": Sample(
        Batch(
            id="b-2",
            reply="toolpool:reply:d-1",
            calls=(
                CallMessage(
                    key="k-3", id="toolu_03", tool="clock", digest="", arguments={}, final=True
                ),
            ),
            sent_at=1767225600.5,
            ends_at=1767225630.5,
        ),
        ENVELOPE.encode_batch,
        ENVELOPE.decode_batch,
    ),
    "started": _reply(Started(batch="b-1", worker="w-1", keys=(CALL.key, "k-2"))),
    "settled": _reply(
        Settled(
            key=CALL.key,
            outcome=Outcome(
                ok=True,
                data=[{"id": "O-9", "total": 12.5}],
                note="The output was 70,000 bytes; the middle was left out.",
                duration=0.012,
                worker="w-1",
                attempt=2,
            ),
        )
    ),
    "settled_raised": _reply(
        Settled(
            key=CALL.key,
            outcome=failure(
                Code.RAISED,
                "no tariff for Norway",
                Executed.YES,
                details={"exception": "builtins.KeyError", "stack": "Traceback …"},
                recommendations=("Ask for another country.",),
                retry_after=30.0,
                worker="w-1",
            ),
        )
    ),
    "settled_refused": _reply(
        Settled(
            key=CALL.key,
            outcome=failure(
                Code.INVALID_ARGUMENTS,
                "",
                Executed.NO,
                problems=(
                    Problem(("edits", 0, "path"), "required"),
                    Problem(("limit",), "type", "integer", "string"),
                    Problem(("unit",), "enum", "", "string", ('"kg"', '"lb"'), "kg"),
                    Problem(("span",), "type", "object", "string", shape="{start: integer}"),
                ),
                worker="w-1",
            ),
        )
    ),
    "settled_lacking": _reply(
        Settled(
            key=CALL.key,
            outcome=replace(
                missing_secret_outcome(
                    MissingSecret(
                        lack=MissingReason.SIGN_IN,
                        name="github",
                        url="https://shop.example/connect/github",
                    ),
                    Executed.NO,
                ),
                worker="w-1",
            ),
        )
    ),
    "settled_cut": _reply(
        Settled(
            key=CALL.key,
            outcome=Outcome(
                ok=True, data="the head … the tail", output="o-1", output_bytes=70_000, worker="w-1"
            ),
        )
    ),
    "passed": _reply(Unclaimed(key=CALL.key, attempt=1, worker="w-1")),
    "ended": _reply(RunsEnded(worker="w-1", keys=(CALL.key,))),
    "released": _reply(Released(key=CALL.key, attempt=1, worker="w-1")),
    "progress": _reply(Progress(key=CALL.key, done=3.0, total=10.0, message="reading")),
    "switch": Sample(
        Switch(tool="bash", reason="switched off for tonight", argument="command", value="reboot"),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, Switch),
    ),
    "output": Sample(
        StoredOutput(handle="o-1", tenant="acme", session="s-1", tool="fs_read", text="all of it"),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, StoredOutput),
    ),
    "background": Sample(
        BackgroundCall(
            handle="h-1",
            tenant="acme",
            session="s-1",
            queue="toolpool.default.loop",
            message=replace(CALL, keep=86_400.0),
            started_at=1767225600.5,
            deadline=1767312000.5,
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, BackgroundCall),
    ),
    "lease_busy": Sample(
        WorkerLease(
            id="w-1",
            host="worker-0",
            pid=4242,
            version="0.1.0",
            started_at=1767225600.5,
            slots={"toolpool.default.loop": 256},
            free={"toolpool.default.loop": 250},
            received=77,
            running=6,
            abandoned=1,
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, WorkerLease),
    ),
    "toolset": Sample(
        Toolset(
            digest="5d41402abc4b2a76b9719d911017c592",
            tools={"search_orders": "ce56a9521c59f5c205b39347f446ff81"},
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, Toolset),
    ),
    "lease_beating": Sample(
        WorkerLease(
            id="w-1",
            host="worker-0",
            pid=4242,
            version="0.1.0",
            started_at=1767225600.5,
            slots={"toolpool.default.loop": 256},
            beat=7,
            toolset="5d41402abc4b2a76b9719d911017c592",
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, WorkerLease),
    ),
    "lease_leaving": Sample(
        WorkerLease(
            id="w-1",
            host="worker-0",
            pid=4242,
            version="0.1.0",
            started_at=1767225600.5,
            slots={"toolpool.default.loop": 256},
            beat=8,
            toolset="5d41402abc4b2a76b9719d911017c592",
            leaving=True,
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, WorkerLease),
    ),
    "lease_ended": Sample(
        WorkerLease(
            id="w-1",
            host="worker-0",
            pid=4242,
            version="0.1.0",
            started_at=1767225600.5,
            slots={},
            ended=True,
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, WorkerLease),
    ),
    "entry_removed": Sample(
        CatalogEntry(spec=SPEC, published_at=1767225601.5, version="0.1.0", removed=True),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, CatalogEntry),
    ),
    "switch_taken_back": Sample(
        Switch(tool="bash", reason="", set_at=1767225601.5, on=False),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, Switch),
    ),
    "switch_bound": Sample(
        Switch(
            tool="bash",
            reason="switched off for tonight",
            set_at=1767225601.5,
            prefix="toolpool",
            tenant="acme",
            number=2,
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, Switch),
    ),
    "passed_denied": _reply(Unclaimed(key=CALL.key, attempt=1, worker="w-1", reason="switch")),
    "passed_limited": _reply(
        Unclaimed(
            key=CALL.key,
            attempt=1,
            worker="w-1",
            limits=(Limit("3f0c", rate_of("100/min"), "tool"),),
        )
    ),
    "approval": Sample(REQUEST, ENVELOPE.encode, partial(READER.request, REQUEST.id)),
    "decision": Sample(
        DECISION,
        ENVELOPE.encode,
        lambda data: READER.decision(REQUEST.id, data, REQUEST.digest),
    ),
    "decided": _reply(Decided(key=REQUEST.id, decision=ENVELOPE.encode(DECISION))),
    "cancel": Sample(Cancel(key=CALL.key), ENVELOPE.encode, partial(ENVELOPE.decode, Cancel)),
    "entry": Sample(
        CatalogEntry(spec=SPEC, published_at=1767225600.5, version="0.1.0"),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, CatalogEntry),
    ),
    "entry_heartbeat": Sample(
        CatalogEntry(
            spec=sealed(replace(SPEC, heartbeat=5.0)), published_at=1767225600.5, version="0.1.0"
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, CatalogEntry),
    ),
    "entry_declared": Sample(
        CatalogEntry(
            spec=sealed(
                replace(
                    SPEC,
                    output_schema={"type": "array", "items": {"type": "object"}},
                    title="Search orders",
                    strict=True,
                    defer_loading=True,
                    allowed_callers=("direct", "programmatic"),
                    input_examples=({"customer_id": "C-101"},),
                )
            ),
            published_at=1767225600.5,
            version="0.1.0",
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, CatalogEntry),
    ),
    "entry_rated": Sample(
        CatalogEntry(
            spec=sealed(replace(SPEC, rate="100/min", rate_per="session")),
            published_at=1767225600.5,
            version="0.1.0",
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, CatalogEntry),
    ),
    "circuit": Sample(
        CircuitState(tool="search_orders", open_until=1767225630.5, set_at=1767225600.5),
        lambda state: ENVELOPE.encode(state),
        lambda data: ENVELOPE.decode(CircuitState, data),
    ),
    "circuit_bound": Sample(
        CircuitState(
            tool="search_orders", open_until=1767225630.5, set_at=1767225600.5, prefix="toolpool"
        ),
        lambda state: ENVELOPE.encode(state),
        lambda data: ENVELOPE.decode(CircuitState, data),
    ),
    "entry_shared": Sample(
        CatalogEntry(
            spec=sealed(
                replace(SPEC, effects=Effects.READ, single_flight=True, cache_seconds=30.0)
            ),
            published_at=1767225600.5,
            version="0.1.0",
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, CatalogEntry),
    ),
    "settled_broken": Sample(
        Settled(
            key="k-1",
            outcome=failure(
                Code.BAD_RESULT,
                "the tool returned something other than it declares",
                Executed.YES,
                problems=(Problem(("orders", 0, "id"), "type", "integer", "string"),),
            ),
        ),
        ENVELOPE.encode_reply,
        ENVELOPE.decode_reply,
    ),
    "events": Sample(
        EventBatch(
            source="6f1d2c3b4a59",
            number=7,
            notes=(
                EventEntry(
                    kind="start",
                    at=1767225600500,
                    tool="search_orders",
                    call_id="call_1",
                    session="s-1",
                    turn="msg_1",
                ),
                EventEntry(
                    kind="error",
                    at=1767225600620,
                    tool="search_orders",
                    call_id="call_1",
                    session="s-1",
                    turn="msg_1",
                    events=3,
                    detail={
                        "seconds": 0.12,
                        "code": "runtime.raised",
                        "executed": "yes",
                        "retryable": True,
                    },
                ),
            ),
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, EventBatch),
    ),
    "events_at_once": Sample(
        EventBatch(
            source="6f1d2c3b4a59",
            number=8,
            notes=(
                EventEntry(
                    kind="end",
                    at=1767225600700,
                    tool="search_orders",
                    call_id="call_2",
                    session="s-1",
                    turn="msg_1",
                    starts=True,
                    events=3,
                    detail={"seconds": 0.004},
                ),
            ),
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, EventBatch),
    ),
    "report": Sample(
        DispatcherReport(
            id="d-1",
            host="host-0",
            pid=4711,
            version="0.1.0",
            tenant="default",
            started_at=1767225600.5,
            open=3,
            running=1,
            waiting=[
                WaitingCalls(tool="search_orders", waits_for="slot", count=2, oldest=1.5),
            ],
            circuits={"send_mail": 12.0},
            ended=[
                EndedCalls(
                    minute=29453760, tool="send_mail", calls=9, failures={"runtime.raised": 8}
                )
            ],
            ended_since=1767225600.5,
        ),
        lambda report: ENVELOPE.encode(report),
        lambda data: ENVELOPE.decode(DispatcherReport, data),
    ),
    "question": Sample(
        Question(id="q-1", ends_at=1767225604.0, call="call_1", session="s-1"),
        ENVELOPE.encode_reply,
        ENVELOPE.decode_reply,
    ),
    "answer": Sample(
        Answer(
            question="q-1",
            dispatcher="d-1",
            calls=[
                CallStatus(
                    call="call_1",
                    tool="search_orders",
                    key="0123abcd",
                    state="QUEUED",
                    age=1.5,
                    deadline_in=29.5,
                    session="s-1",
                    turn="msg_1",
                    queue="toolpool.default.loop",
                    waits_for="slot",
                    start_within=28.5,
                )
            ],
        ),
        lambda answer: ENVELOPE.encode(answer),
        lambda data: ENVELOPE.decode(Answer, data),
    ),
    "lease": Sample(
        WorkerLease(
            id="w-1",
            host="worker-0",
            pid=4242,
            version="0.1.0",
            started_at=1767225600.5,
            slots={"toolpool.default.loop": 256, "toolpool.default.thread": 16},
        ),
        ENVELOPE.encode,
        partial(ENVELOPE.decode, WorkerLease),
    ),
}


def celery_element() -> bytes:
    """The batch as it lies on a Redis list for Celery, with a fixed id."""
    with mock.patch.object(celery_message, "new_nonce", return_value="b-1"):
        return celery_message.redis_message("toolpool.default.loop", ENVELOPE.encode_batch(BATCH))


def golden(name: str) -> list[bytes]:
    """Every form in which this message was ever written, the newest last."""
    files = sorted(FOLDER.glob(f"{name}.*.txt"), key=lambda file: int(file.suffixes[0][1:]))
    return [file.read_bytes().removesuffix(b"\n") for file in files]


def body_of(signed: bytes) -> bytes:
    """What stands behind the key id and the signature."""
    return signed.split(b".", 2)[2]


def add(name: str, data: bytes) -> None:
    """Write `data` as the next golden file, unless the newest has it already."""
    known = golden(name)
    if not known or known[-1] != data:
        (FOLDER / f"{name}.{len(known) + 1}.txt").write_bytes(data + b"\n")


if __name__ == "__main__":
    for sample_name, sample in SAMPLES.items():
        add(sample_name, sample.encode(sample.value))
    add("celery", celery_element())
