"""What a person reads before approving: nothing in it moves the cursor or hides text."""

import pytest

from toolpool.cli import approvals
from toolpool.contract.approval_messages import ApprovalState
from toolpool.dispatcher.policy.approval_view import Approval

HOSTILE = "a\x1b[2J\x9b1A\u202eb"


def test_the_list_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    approval = Approval(
        id="4f0c2a91d3",
        state=ApprovalState.WAITING,
        tool="pay",
        arguments={},
        digest="d",
        session=HOSTILE,
        turn=None,
        call_id="c-1",
        tenant="default",
        reason=HOSTILE,
        approvers=(HOSTILE,),
        asked_by="rule 1",
        asked_at=0.0,
        expires_at=0.0,
    )
    approvals._show_all([approval])
    out = capsys.readouterr().out
    assert "a?[2J?1A?b" in out
    assert not {"\x1b", "\x9b", "\u202e"} & set(out)
