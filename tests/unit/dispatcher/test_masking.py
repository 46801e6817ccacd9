"""With `TOOLPOOL_MASK_ERRORS` what a tool raised is for operators, who find it by its id."""

import logging

import pytest

from toolpool import Dispatcher, tool
from toolpool.contract.settings import Settings


@tool
async def leaks() -> str:
    """Fail with a secret."""
    raise ValueError("token=s3cret")


@pytest.mark.parametrize("masks", [False, True])
async def test_the_id_that_the_model_reads_is_in_the_log(
    masks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="toolpool.dispatch"):
        settings = Settings(mask_errors=masks)
        async with Dispatcher.in_memory([leaks], settings=settings) as dispatcher:
            turn = await dispatcher.dispatch({"id": "c", "name": "leaks", "input": {}})
    [result] = turn
    if not masks:
        assert result.error == "Error executing tool 'leaks': ValueError: token=s3cret"
        assert not caplog.records
        return
    assert result.details is not None
    error_id = result.details["error_id"]
    assert result.error == f"Error executing tool 'leaks': ValueError, error id {error_id}"
    assert "s3cret" not in str(turn.messages())
    [record] = caplog.records
    assert f"tool_raised error_id={error_id} tool=leaks" in record.getMessage()
    assert "token=s3cret" in record.getMessage()
