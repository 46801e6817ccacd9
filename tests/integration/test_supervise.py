"""The supervisor and the watchdog, with real workers that really end and really stall."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.chaos.processes import children_of
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.processes import is_running
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long

QUICK = {
    "lease_ttl": 2.0,
    "event_loop_timeout": 1.5,
    "slots_thread": 4,
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.blocking", **QUICK) as started:
        yield started


async def answers(dispatcher: Dispatcher) -> bool:
    turn = await dispatcher.dispatch(call("echo", text="there"), timeout=1.0)
    return turn.ok


async def test_a_read_whose_worker_died_is_run_again(fleet: LocalFleet, tmp_path: Path) -> None:
    """R8: a read goes again, in its second attempt, on the worker that was started anew."""
    async with fleets.connected(fleet) as dispatcher:
        turn = await dispatcher.dispatch(call("die_once", flag=str(tmp_path / "died")))
    assert (turn[0].data, turn[0].attempts) == ("survived", 2)


async def test_a_write_whose_worker_died_is_not(fleet: LocalFleet) -> None:
    """R8: nobody saw its end."""
    async with fleets.connected(fleet) as dispatcher:
        result = (await dispatcher.dispatch(call("die_writing")))[0]
        assert (result.code, result.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
        assert result.retryable is False
        assert "check before you repeat it" in (result.error or "")
        await eventually(lambda: answers(dispatcher), "the worker is back", 20.0)


async def test_a_tool_that_blocks_the_loop_for_too_long_ends_the_worker(fleet: LocalFleet) -> None:
    async with fleets.connected(fleet) as dispatcher:
        result = (await dispatcher.dispatch(call("block_the_loop", seconds=20)))[0]
        assert (result.code, result.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
        assert "blocked its worker's event loop" in (result.error or "")
        await eventually(lambda: answers(dispatcher), "the worker is back", 20.0)
    assert "loop_blocked tool=block_the_loop" in fleet.log()
    assert "loop_blocked_too_long" in fleet.log()


async def test_a_read_that_blocks_the_loop_is_not_run_again_and_costs_the_reads_beside_it_nothing(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    async with fleets.connected(fleet) as dispatcher:
        beside = [call("take_and_read", f"c{n}", seconds=1.0)[0] for n in range(20)]
        innocent = asyncio.ensure_future(dispatcher.dispatch(beside, session="innocent"))
        await eventually(lambda: dispatcher.in_flight("innocent") == 20, "they are on their way")
        blocking = (await dispatcher.dispatch(call("block_and_read", log=str(log))))[0]
        results = await innocent
    assert (blocking.code, blocking.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert blocking.attempts == 1
    assert log.read_text() == "start\n"
    assert [result.data for result in results] == ["done"] * 20
    assert max(result.attempts for result in results) <= 2


async def test_no_call_is_blamed_where_many_short_ones_block_the_loop_together(
    fleet: LocalFleet,
) -> None:
    async with fleets.connected(fleet) as dispatcher:
        calls = [call("compute", f"c{n}", seconds=0.3)[0] for n in range(16)]
        results = list(await dispatcher.dispatch(calls, session="s"))
    assert [result.code for result in results] == [None] * 16


async def test_a_worker_worn_out_by_threads_that_do_not_end_loses_no_other_call() -> None:
    """R33: abandoned threads are counted; at half the slots another worker takes over.

    What the first one runs besides ends well, long after its grace.
    """
    calls = [call("take", f"c{n}", seconds=12)[0] for n in range(50)]
    with fleets.running("tests.fleets.blocking", **QUICK, drain_timeout=0.5) as own:
        async with fleets.connected(own) as dispatcher:
            first = (await dispatcher.dispatch(call("whoami")))[0].data
            unrelated = asyncio.ensure_future(dispatcher.dispatch(calls))
            turn = await dispatcher.dispatch(call("never_end") + call("never_end", "d"))
            assert [result.code for result in turn] == [Code.TIMEOUT] * 2
            await eventually(lambda: "worker_worn_out" in own.log(), "it is worn out", 10.0)

            async def has_successor() -> bool:
                result = (await dispatcher.dispatch(call("whoami"), timeout=1.0))[0]
                return result.ok and result.data != first

            await eventually(has_successor, "another worker takes calls", 20.0)
            assert not unrelated.done()
            assert [result.data for result in await unrelated] == ["done"] * 50
            await eventually(lambda: not is_running(first), "the worn-out one ends", 20.0)


async def test_a_worn_out_worker_is_stopped_with_its_supervisor() -> None:
    """A stop that was asked for does not wait for calls past the grace."""
    with fleets.running("tests.fleets.blocking", **QUICK, drain_timeout=0.5) as own:
        async with fleets.connected(own) as dispatcher:
            unrelated = asyncio.ensure_future(dispatcher.dispatch(call("take", seconds=18)))
            await dispatcher.dispatch(call("never_end") + call("never_end", "d"))
            await eventually(lambda: "worker_replaced" in own.log(), "it has a successor", 20.0)
            for pid in own.worker_pids:
                os.kill(pid, signal.SIGTERM)
            assert (await unrelated)[0].code == Code.WORKER_LOST
            await eventually(
                lambda: not any(is_running(pid) for pid in own.worker_pids), "all ends", 15.0
            )


async def test_a_frozen_worker_is_ended_and_started_again(fleet: LocalFleet) -> None:
    async with fleets.connected(fleet) as dispatcher:
        pid = (await dispatcher.dispatch(call("whoami")))[0].data
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: not is_running(pid), "it is ended", 20.0)
        await eventually(lambda: answers(dispatcher), "another takes calls", 20.0)
    assert "worker_stalled" in fleet.log()


async def test_a_worker_whose_main_thread_hangs_is_replaced_and_its_calls_end_well() -> None:
    with fleets.running("tests.fleets.blocking", **QUICK, worker_stall_timeout=2.0) as own:
        async with fleets.connected(own) as dispatcher:
            pid = (await dispatcher.dispatch(call("whoami")))[0].data
            running = asyncio.ensure_future(dispatcher.dispatch(call("take", seconds=15)))
            await eventually(lambda: dispatcher.in_flight() == 1, "it is under way")
            await eventually(lambda: _is_running(dispatcher), "a worker has it")
            await dispatcher.dispatch(call("hang_the_main_thread"))
            await eventually(lambda: answers(dispatcher), "another takes calls", 30.0)
            assert (await running)[0].data == "done"
            await eventually(lambda: not is_running(pid), "the first one ends", 20.0)
        assert "worker_replaced" in own.log()


async def test_a_stopped_fleet_finishes_what_it_runs() -> None:
    """TERM drains: the running call ends, and its result arrives."""
    with fleets.running("tests.fleets.blocking", **QUICK) as own:
        async with fleets.connected(own) as dispatcher:
            turn = asyncio.ensure_future(dispatcher.dispatch(call("take", seconds=1.0)))
            await eventually(lambda: dispatcher.in_flight() == 1, "it is under way")
            await eventually(lambda: _is_running(dispatcher), "a worker has it")
            for pid in own.worker_pids:
                os.kill(pid, signal.SIGTERM)
            assert (await turn)[0].data == "done"


async def _is_running(dispatcher: Dispatcher) -> bool:
    listed = [pending.worker for pending in dispatcher._in_flight.all_open()]
    return all(listed)


async def test_a_killed_worker_s_tools_leave_no_program_behind(tmp_path: Path) -> None:
    """The kernel ends its child processes, and not what these have started."""
    file = tmp_path / "pids"
    with fleets.running("tests.fleets.straying", slots_process=1) as own:
        async with fleets.connected(own) as dispatcher:
            asked = asyncio.ensure_future(
                dispatcher.dispatch(call("run_two_programs", pids=str(file)))
            )
            await eventually(
                lambda: file.exists() and len(file.read_text().split()) == 2, "it runs"
            )
            started = [int(pid) for pid in file.read_text().split()]
            assert all(map(is_running, started))
            for supervisor in own.worker_pids:
                (worker,) = children_of(supervisor)
                os.kill(worker, signal.SIGKILL)
            [result] = await asked
            assert (result.code, result.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
            assert not any(map(is_running, started)), "they ended before the call was answered"


async def test_a_worker_that_is_told_to_stop_does_not_report_its_end_while_a_call_runs() -> None:
    """Else an exclusive call, or one with a place in the fleet, begins beside it."""
    patient = {"drain_timeout": 0.5, "event_loop_timeout": 60.0, "worker_stall_timeout": 60.0}

    def has_reported_its_end(fleet: LocalFleet) -> bool:
        with redis.Redis.from_url(fleet.settings.redis_url or "") as client:
            leases = [client.get(key) or b"" for key in client.scan_iter(RedisKeys().worker("*"))]
        return any(b'"ended":true' in lease for lease in leases)

    with fleets.running("tests.fleets.blocking", **patient) as fleet:
        supervisor = fleet.worker_pids[0]
        [worker] = children_of(supervisor)
        async with fleets.connected(fleet) as dispatcher:
            asked = asyncio.ensure_future(dispatcher.dispatch(call("block_the_loop", seconds=30)))
            await eventually(lambda: "loop_blocked" in fleet.log(), "it blocks", 20.0)
            os.kill(supervisor, signal.SIGTERM)
            while is_running(worker):
                reported = has_reported_its_end(fleet)
                assert not reported or not is_running(worker)
                await asyncio.sleep(0.05)
            assert "drain_unfinished" in fleet.log()
            assert (await asked)[0].executed is Executed.UNKNOWN
