"""Resources of a tools module on real workers: one opening a process, closed as it ends."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Settings, ToolsUnimportable
from toolpool.local import LocalFleet


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace"
    monkeypatch.setenv("LIFESPAN_TRACE", str(path))
    return path


@pytest.fixture
def fleet(trace: Path) -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.resourceful", slots_process=2) as running:
        yield running


def told(trace: Path, what: str) -> list[int]:
    lines = [line.split() for line in trace.read_text().splitlines()]
    return sorted(int(pid) for kind, pid in lines if kind == what)


async def test_each_process_opens_once_and_closes_at_its_end(
    fleet: LocalFleet, trace: Path
) -> None:
    opened = told(trace, "open")
    assert len(opened) == len(set(opened)) == 3, "the worker of the loop, and two children"
    async with fleets.connected(fleet) as dispatcher:
        counted: dict[int, list[int]] = {}
        for name in ("count_on_loop", "count_in_thread", "count_in_child") * 4:
            [result] = await dispatcher.dispatch(call(name), session="s")
            pid, number = result.data
            counted.setdefault(pid, []).append(number)
    assert set(counted) <= set(opened)
    for numbers in counted.values():
        assert numbers == list(range(1, len(numbers) + 1)), "all calls of a process share it"
    fleet.close()
    assert told(trace, "close") == opened


async def test_a_child_that_is_replaced_closes_its_resources(
    fleet: LocalFleet, trace: Path
) -> None:
    async with fleets.connected(fleet) as dispatcher:
        [result] = await dispatcher.dispatch(call("leave_a_thread"), session="s")
        await eventually(lambda: told(trace, "close") == [result.data], "it has closed")
        await eventually(lambda: len(told(trace, "open")) == 4, "another child has opened")


async def test_a_killed_child_is_replaced_by_one_with_resources_of_its_own(
    fleet: LocalFleet, trace: Path
) -> None:
    async with fleets.connected(fleet) as dispatcher:
        [result] = await dispatcher.dispatch(call("count_in_child"), session="s")
        os.kill(result.data[0], 9)
        await eventually(lambda: len(told(trace, "open")) == 4, "another child has opened")
        for _ in range(4):
            [result] = await dispatcher.dispatch(call("count_in_child"), session="t")
            assert result.ok


def test_a_worker_whose_resources_cannot_be_opened_does_not_start(tmp_path: Path) -> None:
    module = tmp_path / "unopened.py"
    module.write_text(
        "from toolpool import lifespan, tool\n"
        "@lifespan\n"
        "def pool():\n"
        "    raise ConnectionError('password=hunter2')\n"
        "    yield\n"
        "@tool\n"
        "def look() -> str:\n"
        "    'Look.'\n"
        "    return 'seen'\n"
    )
    with pytest.raises(ToolsUnimportable, match=r"unopened.pool failed while it was opened") as why:
        LocalFleet([str(module)], Settings())
    assert "ConnectionError" in str(why.value)
    assert "hunter2" not in str(why.value), "its text is for a terminal alone"
