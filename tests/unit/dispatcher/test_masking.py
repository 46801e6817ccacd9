"""With `TOOLPOOL_MASK_ERRORS` what a tool raised is for operators, who find it by its id."""

import logging

import pydantic
import pytest

from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings


@tool
async def leaks() -> str:
    """Fail with a secret."""
    raise ValueError("token=s3cret")


class Leaking(pydantic.BaseModel):
    """What cannot be sent, and says why."""

    value: int = 1

    @pydantic.field_serializer("value")
    def _leak(self, value: int) -> int:
        raise ValueError("token=s3cret")


@tool
async def returns_what_leaks() -> Leaking:
    """Return what raises when it is sent."""
    return Leaking()


@pytest.mark.parametrize("masks", [False, True])
async def test_what_a_result_raises_is_masked_too(masks: bool) -> None:
    settings = Settings(mask_errors=masks)
    async with Dispatcher.in_memory([returns_what_leaks], settings=settings) as dispatcher:
        turn = await dispatcher.dispatch({"id": "c", "name": "returns_what_leaks", "input": {}})
    [result] = turn
    assert result.code is Code.BAD_RESULT
    assert ("s3cret" in str(turn.messages())) is not masks
    assert "s3cret" in str(result.details)


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("masks", [False, True])
async def test_the_id_that_the_model_reads_is_in_the_log(
    masks: bool, texts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="toolpool.dispatch"):
        settings = Settings(mask_errors=masks, error_texts=texts)
        async with Dispatcher.in_memory([leaks], settings=settings) as dispatcher:
            turn = await dispatcher.dispatch({"id": "c", "name": "leaks", "input": {}})
    [result] = turn
    if not masks:
        assert result.error == "Error executing tool 'leaks': ValueError: token=s3cret"
        assert not [record for record in caplog.records if "error_id" in record.getMessage()]
        return
    assert result.details is not None
    error_id = result.details["error_id"]
    assert result.error == f"Error executing tool 'leaks': ValueError, error id {error_id}"
    assert "s3cret" not in str(turn.messages())
    [line] = [r.getMessage() for r in caplog.records if "error_id" in r.getMessage()]
    assert f"tool_raised error_id={error_id} tool=leaks" in line
    assert "in leaks" in line, "where it was raised"
    assert ("token=s3cret" in line) is texts
