"""Output over the cap is cut in the middle, kept whole, and read in pages (R37)."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from contract.outcome import Code
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from toolpool import Dispatcher
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow") as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet, output_page=400) as connected:
        yield connected


async def test_a_long_text_is_cut_and_read_in_pages(dispatcher: Dispatcher) -> None:
    result = (await dispatcher.dispatch(call("write_much", characters=3000), session="s"))[0]
    assert result.ok
    assert len(result.data) < 1100
    assert "of 3,000 bytes left out" in result.data
    assert result.handle is not None
    assert result.handle in (result.note or "")
    whole = ""
    for number in range(1, 9):
        turn = await dispatcher.dispatch(
            call("task_result", handle=result.handle, page=number), session="s"
        )
        assert turn[0].data["pages"] == 8
        whole += turn[0].data["text"]
    assert whole == "".join(str(number % 10) for number in range(3000))


async def test_a_long_list_is_kept_as_json(dispatcher: Dispatcher) -> None:
    result = (await dispatcher.dispatch(call("list_much", items=1000), session="s"))[0]
    assert result.handle is not None
    first = await dispatcher.output(result.handle, session="s")
    whole = first["text"]
    for number in range(2, first["pages"] + 1):
        whole += (await dispatcher.output(result.handle, session="s", page=number))["text"]
    assert json.loads(whole) == list(range(1000))


async def test_another_session_cannot_read_it(dispatcher: Dispatcher) -> None:
    result = (await dispatcher.dispatch(call("write_much", characters=3000), session="s"))[0]
    assert result.handle is not None
    with pytest.raises(KeyError):
        await dispatcher.output(result.handle, session="another")
    turn = await dispatcher.dispatch(call("task_result", handle=result.handle), session="another")
    assert turn[0].error is not None
    assert "no background task with this handle" in turn[0].error


@pytest.mark.parametrize("page", [0, -1, 9, 10**30, 1.5, True, "1", None])
async def test_a_page_that_there_is_none_of(dispatcher: Dispatcher, page: Any) -> None:
    """The host is told so by ValueError, the model in an answer that it can go by."""
    result = (await dispatcher.dispatch(call("write_much", characters=3000), session="s"))[0]
    with pytest.raises(ValueError, match="page"):
        await dispatcher.output(str(result.handle), session="s", page=page)
    turn = await dispatcher.dispatch(
        call("task_result", handle=result.handle, page=page), session="s"
    )
    if page in ("1", None, True) and page is not True:  # put right, and said so
        assert turn[0].data["page"] == 1
    elif isinstance(page, int) and page > 1:
        assert turn[0].code is Code.REPORTED
        assert f"no page {page}: the output has 8" in (turn[0].error or "")
    else:
        assert turn[0].code is Code.INVALID_ARGUMENTS
