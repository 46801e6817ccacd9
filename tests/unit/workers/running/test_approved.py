"""What a person has to approve is started only with a decision about this very call (R66, R69)."""

from typing import Any

import pytest

from toolpool.contract.approval_messages import ApprovalDecision, digest_of
from toolpool.contract.envelope import CallMessage, Envelope
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.workers.credentials.lookup import Credentials
from toolpool.workers.lifespan import Resources
from toolpool.workers.running.admission import Admission
from toolpool.workers.running.call_runner import CallRunner
from toolpool.workers.tool import tool
from toolpool.workers.tool_loading import Catalog

ENVELOPE = Envelope(Keyring.local())
NOW = 1_000_000.0
RAN: list[int] = []


@tool(effects="write", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(amount)
    return "paid"


CATALOG = Catalog([pay])
SPEC = CATALOG.tools["pay"].spec


def decision(envelope: Envelope = ENVELOPE, **changed: Any) -> bytes:
    """Somebody approves the payment of 5, until a minute from now, with these changes."""
    fields: dict[str, Any] = {
        "key": "k",
        "tenant": "default",
        "prefix": "toolpool",
        "digest": digest_of("pay", {"amount": 5}, SPEC.bound_digest),
        "approved": True,
        "by": "anna",
        "at": NOW - 1.0,
        "ends_at": NOW + 60.0,
    }
    return envelope.encode(ApprovalDecision(**{**fields, **changed}))


async def run(approval: bytes | None, amount: int = 5) -> tuple[Code | None, Executed, list[int]]:
    """How the call ends, and what ran."""
    RAN.clear()
    admission = Admission(CATALOG, ENVELOPE, Settings(), MemoryServer())
    admission.server_time = lambda: NOW
    runner = CallRunner(
        worker="w",
        catalog=CATALOG,
        max_result_bytes=1 << 20,
        children=None,
        resources=Resources(()),
        credentials=Credentials(None, Settings()),
        admission=admission,
    )
    call = CallMessage(
        key="k",
        id="c",
        tool="pay",
        digest=SPEC.digest,
        arguments={"amount": amount},
        approval=approval,
    )
    done = await runner.run(call, 30.0, lambda *_: None, tenant="default")
    outcome = done.outcome
    return outcome.code, outcome.executed, list(RAN)


async def test_a_call_that_was_approved_runs() -> None:
    assert await run(decision()) == (None, Executed.YES, [5])


@pytest.mark.parametrize(
    "approval",
    [
        None,
        b"",
        b"junk",
        decision(approved=False),
        decision(key="other"),
        decision(tenant="other"),
        decision(prefix="other"),
        decision(digest=digest_of("pay", {"amount": 500}, SPEC.bound_digest)),
        decision(digest=digest_of("pay", {"amount": 5}, "another version")),
        decision(Envelope(Keyring(["a key of somebody else"]))),
    ],
)
async def test_a_call_without_a_decision_about_it_is_denied(approval: bytes | None) -> None:
    assert await run(approval) == (Code.DENIED, Executed.NO, [])


async def test_other_arguments_than_those_that_were_approved_are_denied() -> None:
    assert await run(decision(), amount=500) == (Code.DENIED, Executed.NO, [])


async def test_a_call_whose_approval_is_over_is_expired_and_not_unapproved() -> None:
    """Somebody did approve it."""
    assert await run(decision(ends_at=NOW)) == (Code.EXPIRED, Executed.NO, [])
