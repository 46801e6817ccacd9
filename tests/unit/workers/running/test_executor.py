"""Claimed calls and their slots, over the in-memory ledger: what is counted, told, and kept."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually
from toolpool.contract.envelope import (
    Batch,
    CallMessage,
    Envelope,
    PolicyVerdict,
    Released,
    Reply,
    RunsEnded,
    Settled,
    Switch,
    Unclaimed,
)
from toolpool.contract.kill_switches import switch_name
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import CloseReason, Closing, Opening
from toolpool.contract.ledger.rate_counters import MemoryRates
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import RunIn
from toolpool.workers.context import ToolContext
from toolpool.workers.credentials.lookup import Credentials
from toolpool.workers.lifespan import Resources
from toolpool.workers.running import slots as slots_module
from toolpool.workers.running.admission import Admission
from toolpool.workers.running.call_runner import CallRunner
from toolpool.workers.running.children import ChildPool
from toolpool.workers.running.executor import Executor
from toolpool.workers.running.limit_notices import LimitNotices
from toolpool.workers.running.message_reader import MessageReader
from toolpool.workers.running.settler import Settler
from toolpool.workers.running.slots import Slots
from toolpool.workers.tool import tool
from toolpool.workers.tool_loading import Catalog
from toolpool.workers.worker_observer import WorkerObserver, WorkerObservers

ENVELOPE = Envelope(Keyring.local())
REPLY = "reply"
TOOLS = "tests.fleets.waiting"


@tool(exclusive=True)
async def wait() -> str:
    """Wait until cancelled."""
    await asyncio.Event().wait()
    return "never"


@tool
async def stay(gate: str) -> str:
    """Stay, whatever is said, until the gate is there."""
    ends_at = time.monotonic() + 10.0
    while not Path(gate).exists() and time.monotonic() < ends_at:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "stayed"


@tool(effects="read")
async def stay_reading(gate: str) -> str:
    """Stay, and read."""
    return str(await stay(gate))


@tool(effects="read", exclusive=True)
async def stay_alone(gate: str) -> str:
    """Stay, and never beside itself."""
    return str(await stay(gate))


@tool(heartbeat=0.1)
async def stay_silent(gate: str, ctx: ToolContext) -> str:
    """Stay, whatever is said, and say nothing."""
    return str(await stay(gate))


@tool(run_in="thread")
def stay_in_thread(gate: str) -> str:
    """Stay, whatever is said, until the gate is there."""
    ends_at = time.monotonic() + 10.0
    while not Path(gate).exists() and time.monotonic() < ends_at:
        time.sleep(0.01)
    return "stayed"


@tool(max_output=100)
async def write_much() -> str:
    """Write more than is shown."""
    return "x" * 1000


@tool
async def touch(path: str) -> None:
    """Leave a trace."""
    Path(path).touch()


@tool(effects="read")
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def touch_path(path: Path) -> None:
    """Leave a trace."""
    path.touch()


class Ledger(MemoryServer):
    """The in-memory ledger; `held` is what its answers wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Event | None = None
        self.before_claim: Callable[[], None] = lambda: None
        self.claims = 0
        self.keeps = True
        self.poison = ""

    async def claim(self, claims: Any, **options: Any) -> Any:
        self.claims += 1
        self.before_claim()
        answers = await super().claim(claims, **options)
        if self.held is not None:
            await self.held.wait()
        return answers

    async def keep_output(self, handle: str, body: bytes, *, owner: str, keep: float) -> bool:
        if not self.keeps:
            await asyncio.Event().wait()
        return await super().keep_output(handle, body, owner=owner, keep=keep)

    async def settle(self, settlements: Any, *, give_up_at: float) -> list[str]:
        if any(settlement.key == self.poison for settlement in settlements):
            raise ValueError("this one cannot be stored")
        return await super().settle(settlements, give_up_at=give_up_at)


@dataclass
class FixedLease:
    """A lease that was always confirmed `age` seconds ago."""

    age: float = 0.0
    is_confirmed: bool = True

    @property
    def renewed_at(self) -> float:
        """See `Lease`."""
        return time.monotonic() - self.age


class Bench:
    """An executor with its ledger, and what a dispatcher would be told."""

    def __init__(
        self,
        slots: dict[RunIn, int],
        children: ChildPool | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self.ledger = Ledger()
        tools = [
            wait,
            stay,
            stay_alone,
            stay_reading,
            stay_silent,
            stay_in_thread,
            write_much,
            touch,
            touch_path,
            look,
        ]
        catalog = catalog or Catalog(tools)
        self.observers = WorkerObservers(settings=Settings(), tools=catalog.tools)
        self.slots = Slots(slots)
        self.admission = Admission(catalog, ENVELOPE, Settings(), self.ledger)
        self.message_reader = MessageReader(ENVELOPE, self.observers)
        self.lease = FixedLease()
        self.settler = Settler(worker="w", ledger=self.ledger, envelope=ENVELOPE, keep=60.0)
        self.runner = CallRunner(
            worker="w",
            catalog=catalog,
            max_result_bytes=1 << 20,
            children=children,
            resources=Resources(()),
            credentials=Credentials(None, Settings()),
            admission=self.admission,
        )
        self.executor = Executor(
            worker="w",
            catalog=catalog,
            runner=self.runner,
            ledger=self.ledger,
            settler=self.settler,
            message_reader=self.message_reader,
            observers=self.observers,
            slots=self.slots,
            admission=self.admission,
            limit_notices=LimitNotices(MemoryRates(lambda _: False), "w"),
        )
        self.executor.lease = self.lease

    async def call(
        self,
        key: str,
        name: str,
        /,
        *,
        timeout: float = 30.0,
        spare: float = 9.0,
        rerunnable: bool = False,
        **arguments: Any,
    ) -> None:
        opening = Opening(
            key, 1, rerunnable=rerunnable, wait=9.0, deadline=timeout + spare, keep=60.0
        )
        await self.ledger.open(
            [opening], nonce=new_nonce(), reply=REPLY, queue="", message=b"", give_up_at=0.0
        )
        call = CallMessage(
            key=key, id=key, tool=name, digest="", arguments=arguments, timeout=timeout,
            rerunnable=rerunnable,
        )  # fmt: skip
        batch = Batch(id=key, reply=REPLY, calls=(call,))
        self.executor.receive(ENVELOPE.encode_batch(batch), lambda: None)

    async def cancel(self, key: str) -> None:
        """As a dispatcher does: end the call in the ledger, and tell its worker."""
        ended = failure(Code.CANCELLED, "", Executed.UNKNOWN)
        body = ENVELOPE.encode_reply(Settled(key=key, outcome=ended))
        closing = Closing(
            key, new_nonce(), self.ledger.epoch, 60.0, unclaimed=body, claimed=body,
            doubtful=body, cancel=b"",
        )  # fmt: skip
        await self.ledger.close([closing], reply="", end=CloseReason.CANCEL, give_up_at=0.0)
        self.executor.cancel(key)

    def switch(self, tool: str = "touch", number: int = 1, **fields: Any) -> None:
        """Let an operator deny a tool, or allow it again."""
        switch = Switch(tool=tool, reason="closed", number=number, prefix="toolpool", **fields)
        self.ledger.switch_states[switch_name(switch)] = ENVELOPE.encode(switch)
        self.ledger.switch_version = new_nonce()

    def unclaimed(self) -> list[tuple[str, str]]:
        return [(said.key, said.reason) for said in self.said() if isinstance(said, Unclaimed)]

    def said(self) -> list[Reply]:
        return [ENVELOPE.decode_reply(item) for item in self.ledger._inboxes[REPLY].items]

    def outcomes(self) -> dict[str, Outcome]:
        return {said.key: said.outcome for said in self.said() if isinstance(said, Settled)}

    def ended(self) -> list[str]:
        return [key for said in self.said() if isinstance(said, RunsEnded) for key in said.keys]

    async def running(self, count: int) -> None:
        await eventually(lambda: self.executor.running == count, f"{count} run")


@pytest.fixture(autouse=True)
def soon_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_STUCK_SECONDS", 0.2)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gate"
    yield path
    path.touch()


async def test_calls_that_end_when_their_lease_is_lost_wear_nothing_out() -> None:
    bench = Bench({RunIn.LOOP: 4, RunIn.THREAD: 4})
    for number in range(4):
        await bench.call(f"k{number}", "wait")
    await bench.running(4)
    bench.lease.age = time.monotonic()
    bench.executor.end_exclusive_without_lease()
    assert bench.slots.stuck == 0
    await bench.running(0)
    assert not bench.slots.are_worn_out
    assert bench.slots.free()[RunIn.LOOP] == 4


async def test_what_runs_goes_on_without_a_lease(gate: Path) -> None:
    """Losing the server stops what would start, and of what runs only what asks for it."""
    bench = Bench({RunIn.LOOP: 4})
    await bench.call("a", "stay", gate=str(gate))
    await bench.call("b", "wait")
    await bench.running(2)
    bench.lease.age = time.monotonic()
    bench.executor.end_exclusive_without_lease()
    await bench.running(1)
    await bench.call("c", "stay", gate=str(gate))
    gate.touch()
    await bench.running(0)
    await bench.settler.flush()
    outcomes = bench.outcomes()
    assert outcomes["a"].ok
    assert outcomes["b"].code is Code.WORKER_LOST
    assert "c" not in outcomes, "nothing starts"


async def test_an_attempt_that_was_started_here_is_not_started_again() -> None:
    """Whoever can write to the server may replay a message, with a record made for it."""
    bench = Bench({RunIn.LOOP: 4})
    await bench.call("a", "touch", path="/dev/null")
    await bench.settler.flush()
    await eventually(lambda: bench.outcomes(), "it has run")
    assert bench.outcomes()["a"].ok
    bench.ledger.records.clear()
    bench.ledger.marks.clear()
    await bench.call("a", "touch", path="/dev/null")
    await eventually(lambda: bench.outcomes()["a"].code, "it is answered")
    assert bench.outcomes()["a"].executed is Executed.UNKNOWN


async def test_arguments_that_fit_the_tool_as_it_was_offered_are_not_the_models_fault() -> None:
    """No worker has the version of the tool that they are for: the release changed it (R6)."""
    bench = Bench({RunIn.LOOP: 1}, None)
    call = CallMessage(key="k", id="k", tool="stay", digest="old", arguments={}, final=True)
    run = await bench.runner.run(call, 9.0, lambda *_: None, tenant="default")
    outcome = run.outcome
    assert (outcome.code, outcome.error) == (Code.EXPIRED, "changed")
    assert outcome.executed is Executed.NO


@pytest.mark.parametrize("name", ["stay_silent", "stay_in_thread"])
async def test_a_tool_is_not_entered_when_the_place_of_its_call_may_be_gone(
    name: str, tmp_path: Path
) -> None:
    bench, entered = Bench({RunIn.LOOP: 1, RunIn.THREAD: 1}, None), asyncio.Event()
    arguments = {"gate": str(tmp_path / "gate")} if name == "stay_in_thread" else {}
    call = CallMessage(key="k", id="k", tool=name, digest="", arguments=arguments, final=True)
    late = time.monotonic() - 0.001
    run = await bench.runner.run(
        call, 9.0, lambda *_: None, on_entered=entered.set, tenant="default", enter_by=late
    )
    outcome = run.outcome
    assert (outcome.code, outcome.executed) == (Code.EXPIRED, Executed.NO)
    assert not entered.is_set()


async def test_a_call_under_a_limit_has_less_time_to_enter_its_tool_than_its_place_is_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And any other call may be entered at any time until its deadline."""

    @tool(rate="9/min")
    async def rare(path: str) -> None:
        """Be under a limit."""
        Path(path).touch()

    monkeypatch.setattr("toolpool.workers.running.executor.ENTERED_WITHIN_SECONDS", -1.0)
    bench = Bench({RunIn.LOOP: 2}, catalog=Catalog([rare, touch]))
    await bench.call("a", "rare", path=str(tmp_path / "a"))
    await bench.call("b", "touch", path=str(tmp_path / "b"))
    await eventually(lambda: len(bench.outcomes()) == 2, "both are answered")
    assert (bench.outcomes()["a"].code, bench.outcomes()["b"].ok) == (Code.EXPIRED, True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("is_bound", [True, False])
async def test_a_call_that_was_judged_runs_only_in_the_tool_that_it_was_judged_for(
    tmp_path: Path, is_bound: bool
) -> None:
    bench = Bench({RunIn.LOOP: 1}, None)
    verdict = PolicyVerdict(policy="p", tool=touch.spec.bound_digest if is_bound else "other")
    call = CallMessage(
        key="k", id="k", tool="touch", digest="old", arguments={"path": str(tmp_path / "x")},
        final=True, verdict=verdict,
    )  # fmt: skip
    run = await bench.runner.run(call, 9.0, lambda *_: None, tenant="default")
    outcome = run.outcome
    assert (outcome.code, outcome.error) == ((None, "") if is_bound else (Code.EXPIRED, "changed"))
    assert (tmp_path / "x").exists() is is_bound


async def test_a_message_is_refused_after_its_end() -> None:
    bench = Bench({RunIn.LOOP: 4})
    refused: list[str] = []

    class Watching(WorkerObserver):
        def refused(self, reason: str) -> None:
            refused.append(reason)

    bench.observers.add(Watching())
    done: list[str] = []
    bench.message_reader.server_time = lambda: 1000.0
    for end in (994.0, 996.0):
        batch = Batch(id="b", reply=REPLY, calls=(), sent_at=end - 9.0, ends_at=end)
        bench.executor.receive(ENVELOPE.encode_batch(batch), lambda: done.append("acknowledged"))
    assert refused == ["late"]
    assert len(done) == 2


async def test_a_call_for_a_tool_that_is_not_here_is_passed_on() -> None:
    """Unclaimed, so that another worker may have it in the same attempt."""
    bench = Bench({RunIn.LOOP: 4})
    await bench.call("a", "elsewhere")
    await eventually(
        lambda: any(isinstance(said, Unclaimed) for said in bench.said()), "it is said"
    )
    assert bench.ledger.state("a") == "open"


async def test_coroutines_that_swallow_their_cancellation_wear_a_worker_out(gate: Path) -> None:
    """Against the slots of their own kind, and only once they had time to end."""
    bench = Bench({RunIn.LOOP: 4, RunIn.THREAD: 2})
    await bench.call("a", "stay", timeout=0.05, gate=str(gate))
    await bench.call("b", "stay", timeout=30.0, gate=str(gate))
    await bench.running(2)

    async def is_counted(count: int) -> bool:
        bench.executor.answer_overdue()
        return bench.slots.stuck == count

    await eventually(lambda: is_counted(1), "the one that overran is counted")
    assert not bench.slots.are_worn_out, "one of four"
    await bench.cancel("b")
    await eventually(lambda: is_counted(2), "the one that was cancelled is counted")
    assert bench.slots.are_worn_out
    gate.touch()
    await eventually(lambda: is_counted(0), "they have ended")
    assert not bench.slots.are_worn_out
    assert bench.slots.free()[RunIn.LOOP] == 4


async def test_a_silent_coroutine_that_cannot_be_stopped_is_answered(gate: Path) -> None:
    """Long before its timeout."""
    bench = Bench({RunIn.LOOP: 4})
    await bench.call("a", "stay_silent", timeout=30.0, gate=str(gate))

    async def is_answered() -> bool:
        bench.executor.answer_overdue()
        return "a" in bench.outcomes()

    await eventually(is_answered, "it is answered", 5.0)
    assert bench.outcomes()["a"].code is Code.TIMEOUT
    gate.touch()


async def test_threads_that_do_not_end_are_counted_against_threads(gate: Path) -> None:
    bench = Bench({RunIn.LOOP: 256, RunIn.THREAD: 2})
    await bench.call("a", "stay_in_thread", timeout=0.3, gate=str(gate))
    await eventually(lambda: bench.slots.are_worn_out, "half the threads are stuck")
    assert bench.outcomes()["a"].code is Code.TIMEOUT
    gate.touch()
    await eventually(lambda: bench.slots.free()[RunIn.THREAD] == 2, "its slot is free")
    assert bench.slots.stuck == 0


async def test_the_end_of_a_thread_is_reported_after_it_ended(gate: Path) -> None:
    """A turn's next write waits for this word."""
    bench = Bench({RunIn.THREAD: 2})
    await bench.call("a", "stay_in_thread", gate=str(gate))
    await bench.running(1)
    bench.executor._give_up("it is to end", list(bench.executor._running.values()))
    await eventually(lambda: "a" in bench.outcomes(), "it is answered")
    await bench.running(0)
    await bench.settler.flush()
    assert bench.ended() == [], "its thread goes on"
    assert bench.slots.free()[RunIn.THREAD] == 1
    gate.touch()
    await eventually(lambda: bench.ended() == ["a"], "its end is told")


async def test_a_cancel_that_overtakes_the_claims_answer_is_heeded(tmp_path: Path) -> None:
    bench = Bench({RunIn.LOOP: 2})
    await bench.admission.follow_switches()
    bench.ledger.held = asyncio.Event()
    await bench.call("a", "touch", path=str(tmp_path / "trace"))
    await eventually(lambda: bench.ledger.state("a") == "claimed", "it is claimed")
    await bench.cancel("a")
    bench.ledger.held.set()
    await eventually(lambda: bench.ended() == ["a"], "nothing of it runs, and that is told")
    assert not (tmp_path / "trace").exists()
    assert bench.slots.free()[RunIn.LOOP] == 2


async def test_cancels_are_not_remembered_without_end() -> None:
    bench = Bench({RunIn.LOOP: 2})
    for number in range(5_000):
        bench.executor.cancel(f"k{number}")
    assert len(bench.executor._cancels._came_at) <= 1_000
    assert "k4999" in bench.executor._cancels._came_at


@pytest.mark.parametrize("spare", [0.0, 1.0])
async def test_an_output_that_cannot_be_kept_does_not_cost_the_result(spare: float) -> None:
    """The call has ended: it says so before its deadline, without a handle."""
    bench = Bench({RunIn.LOOP: 2})
    bench.ledger.keeps = False
    await bench.call("a", "write_much", timeout=0.5, spare=spare)

    async def is_settled() -> bool:
        bench.executor.answer_overdue()
        return "a" in bench.outcomes()

    await eventually(is_settled, "it is answered")
    outcome = bench.outcomes()["a"]
    assert (outcome.ok, outcome.executed, outcome.output) == (True, Executed.YES, None)


async def test_a_worker_that_stops_gives_up_an_output_and_not_its_result() -> None:
    bench = Bench({RunIn.LOOP: 2})
    bench.ledger.keeps = False
    await bench.call("a", "write_much")
    await bench.running(1)
    await bench.executor.drain(0.1)
    outcome = bench.outcomes()["a"]
    assert (outcome.ok, outcome.executed) == (True, Executed.YES)


async def test_one_outcome_that_cannot_be_stored_takes_no_other_with_it() -> None:
    bench = Bench({RunIn.LOOP: 4})
    bench.ledger.poison = "k1"
    keys = [f"k{number}" for number in range(4)]
    openings = [Opening(key, 1, rerunnable=False, wait=9, deadline=9, keep=9) for key in keys]
    await bench.ledger.open(
        openings, nonce=new_nonce(), reply=REPLY, queue="", message=b"", give_up_at=0.0
    )
    batch = Batch(id="b", reply=REPLY, calls=())
    for key in keys:
        call = CallMessage(key=key, id=key, tool="wait", digest="", arguments={})
        bench.settler.settle(batch, call, Outcome(ok=True), busy=True)
    await bench.settler.flush()
    assert sorted(bench.outcomes()) == ["k0", "k2", "k3"]


@pytest.mark.parametrize(("age", "starts", "goes_on"), [(1.0, True, True), (2.6, False, False)])
async def test_how_old_a_lease_may_be_follows_from_when_it_is_gone(
    age: float, starts: bool, goes_on: bool
) -> None:
    """A lease that is gone after 2 s is old after 1.25 s, and lost after 1.5 s."""
    bench = Bench({RunIn.LOOP: 2})
    bench.executor = Executor(
        worker="w",
        catalog=Catalog([wait]),
        runner=bench.runner,
        ledger=bench.ledger,
        settler=bench.settler,
        message_reader=bench.message_reader,
        observers=bench.observers,
        slots=Slots({RunIn.LOOP: 2}),
        admission=bench.admission,
        limit_notices=LimitNotices(MemoryRates(lambda _: False), "w"),
        lease_ttl=2.0,
    )
    await bench.call("a", "wait")
    await bench.running(1)
    bench.executor.lease = FixedLease(age)
    await bench.call("b", "wait")
    bench.executor.end_exclusive_without_lease()
    assert (bench.executor.running == 2 or bool(bench.executor._claiming.running)) is starts
    await bench.settler.flush()
    assert ("a" not in bench.outcomes()) is goes_on
    await bench.executor.drain(0.0)


async def test_a_recycling_worker_lets_its_other_calls_end(gate: Path, tmp_path: Path) -> None:
    """R8, R33: what is stuck is given up, and costs nobody else their call."""
    bench = Bench({RunIn.LOOP: 4, RunIn.THREAD: 2})
    await bench.call("stuck", "stay_in_thread", timeout=0.2, gate=str(gate))
    await bench.call("deaf", "stay", timeout=0.2, gate=str(gate))
    other = tmp_path / "other"
    await bench.call("well", "stay", timeout=30.0, gate=str(other))
    await bench.running(3)

    async def are_answered() -> bool:
        bench.executor.answer_overdue()
        return {"stuck", "deaf"} <= bench.outcomes().keys()

    await eventually(are_answered, "what is stuck is answered")
    draining = asyncio.ensure_future(bench.executor.drain(0.1, recycling=True))
    await bench.call("late", "touch", path=str(tmp_path / "trace"))
    await asyncio.sleep(0.5)
    assert not draining.done(), "the grace is over, and the well one still has its time"
    assert "well" not in bench.outcomes()
    other.touch()
    await asyncio.wait_for(draining, 5.0)
    outcomes = bench.outcomes()
    assert (outcomes["well"].ok, outcomes["well"].executed) == (True, Executed.YES)
    assert outcomes["stuck"].code is outcomes["deaf"].code is Code.TIMEOUT
    assert not (tmp_path / "trace").exists(), "nothing more is claimed"
    assert "late" not in outcomes
    gate.touch()
    await eventually(lambda: not bench.slots.stuck, "what was stuck has ended")


async def test_a_recycling_drain_is_bounded_by_the_deadlines_of_its_calls(gate: Path) -> None:
    bench = Bench({RunIn.LOOP: 4})
    await bench.call("deaf", "stay", timeout=0.3, gate=str(gate))
    await bench.running(1)
    await asyncio.wait_for(bench.executor.drain(0.1, recycling=True), 10.0)
    assert bench.outcomes()["deaf"].code is Code.TIMEOUT
    gate.touch()


async def test_a_stop_that_comes_while_recycling_has_its_grace_alone() -> None:
    bench = Bench({RunIn.LOOP: 4})
    await bench.call("a", "wait")
    await bench.running(1)
    recycling = asyncio.ensure_future(bench.executor.drain(0.1, recycling=True))
    await asyncio.sleep(0.3)
    assert not recycling.done()
    await asyncio.wait_for(bench.executor.drain(0.1), 5.0)
    await asyncio.wait_for(recycling, 5.0)
    assert bench.outcomes()["a"].code is Code.WORKER_LOST


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RuntimeError])
async def test_every_outcome_of_a_run_settles_its_call(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: and its slot is free again."""
    bench = Bench({RunIn.LOOP: 1})

    async def run(*_: Any) -> None:
        raise error

    monkeypatch.setattr(bench.runner, "run", run)
    await bench.call("a", "wait")
    await eventually(lambda: "a" in bench.outcomes(), "it is settled")
    outcome = bench.outcomes()["a"]
    assert (outcome.code, outcome.executed) == (Code.INTERNAL, Executed.UNKNOWN)
    assert bench.slots.free()[RunIn.LOOP] == 1


async def test_a_call_that_is_stopped_before_its_first_step_is_answered(tmp_path: Path) -> None:
    """R1, R34: its task would end without a word, and keep its slot."""
    bench = Bench({RunIn.LOOP: 1})
    start, told = bench.executor._start, []

    def start_and_cancel(*args: Any) -> None:
        start(*args)
        bench.executor.cancel("a")
        told.append("a")

    bench.executor._start = start_and_cancel  # type: ignore[method-assign]
    await bench.call("a", "touch", path=str(tmp_path / "trace"))
    await eventually(lambda: told and bench.executor.running == 0, "it has ended")
    await bench.settler.flush()
    outcome = bench.outcomes()["a"]
    assert (outcome.code, outcome.executed) == (Code.CANCELLED, Executed.NO)
    assert bench.slots.free()[RunIn.LOOP] == 1
    assert not (tmp_path / "trace").exists()


@pytest.fixture
async def children() -> AsyncIterator[ChildPool]:
    """One process for two slots."""
    pool = ChildPool(size=1, tools=[TOOLS], max_result_bytes=1 << 20, calls_per_child=100)
    await pool.start()
    yield pool
    await pool.close()


async def waiting_for_a_process(children: ChildPool, **times: float) -> Bench:
    """A call "first" in the only process, and "second" claimed and not begun."""
    bench = Bench({RunIn.PROCESS: 2}, children, Catalog.load([TOOLS]))
    await bench.call("first", "sleep", seconds=3.0)
    await eventually(lambda: not children._idle, "the first has the process")
    await bench.call("second", "sleep", seconds=0.0, **times)
    await eventually(lambda: len(children._waiters) == 1, "the second waits for it")
    return bench


async def test_a_call_that_waits_for_its_process_in_vain_was_not_executed(
    children: ChildPool,
) -> None:
    """R8: though another child-process call, or an import, held the process."""
    bench = await waiting_for_a_process(children, timeout=0.1, spare=1.0)

    async def is_settled() -> bool:
        bench.executor.answer_overdue()
        return "second" in bench.outcomes()

    await eventually(is_settled, "it is answered", 5.0)
    outcome = bench.outcomes()["second"]
    assert (outcome.code, outcome.executed) == (Code.EXPIRED, Executed.NO)
    await eventually(lambda: "first" in bench.outcomes(), "the first ends as ever")
    assert bench.outcomes()["first"].ok


async def test_a_call_that_waits_for_its_process_has_its_whole_timeout(
    children: ChildPool,
) -> None:
    """It began late, within its deadline."""
    bench = await waiting_for_a_process(children, timeout=1.0, spare=9.0)

    async def is_settled() -> bool:
        bench.executor.answer_overdue()
        return "second" in bench.outcomes()

    await eventually(is_settled, "it is answered")
    assert bench.outcomes()["second"].ok


async def test_a_stopping_worker_gives_back_what_waits_for_a_process(children: ChildPool) -> None:
    """R8: it goes to another worker, though it may not run twice: it never began."""
    bench = await waiting_for_a_process(children)
    await bench.executor.drain(0.1)
    assert [said.key for said in bench.said() if isinstance(said, Released)] == ["second"]
    assert list(bench.outcomes()) == ["first"]
    assert bench.outcomes()["first"].code is Code.WORKER_LOST


def made_to_wait(bench: Bench) -> None:
    """Let a second pass for all claimed calls, and look at them."""
    for running in bench.executor._running.values():
        running.claimed_at -= 1.0
    bench.executor.give_back_waiting()


async def test_a_read_that_waits_long_for_its_process_is_given_back(children: ChildPool) -> None:
    """Another worker may have a process for it, and nothing says that it may have run."""
    bench = Bench({RunIn.PROCESS: 1}, children, Catalog.load([TOOLS]))
    for _ in range(60):
        bench.slots.claimed(0.002)
        bench.slots._ahead.ran(0.001)
    await bench.call("first", "look", rerunnable=True, seconds=3.0)
    await eventually(lambda: not children._idle, "the first has the process")
    await bench.call("second", "look", rerunnable=True, seconds=0.0)
    await eventually(lambda: len(children._waiters) == 1, "the second is claimed ahead")
    made_to_wait(bench)
    await eventually(lambda: bench.ledger.state("second") == "open", "its dispatcher has it again")
    assert [said.key for said in bench.said() if isinstance(said, Released)] == ["second"]


async def test_a_call_with_a_slot_of_its_own_is_not_given_back(children: ChildPool) -> None:
    """It waits for a secret, or for a process that starts: no other worker has it sooner."""
    bench = Bench({RunIn.PROCESS: 2}, children, Catalog.load([TOOLS]))
    await bench.call("first", "look", rerunnable=True, seconds=1.0)
    await eventually(lambda: not children._idle, "the first has the process")
    await bench.call("second", "look", rerunnable=True, seconds=0.0)
    await eventually(lambda: len(children._waiters) == 1, "the second waits for it")
    made_to_wait(bench)
    await eventually(lambda: "second" in bench.outcomes(), "it ran")
    assert not [said for said in bench.said() if isinstance(said, Released)]


# Switches.


async def is_unclaimed(bench: Bench, key: str) -> None:
    """A call was not claimed, its dispatcher knows why, and its slot is free."""
    await eventually(lambda: bench.unclaimed() == [(key, "switch")], "its dispatcher is told")
    assert bench.ledger.state(key) == "open"
    assert bench.slots.free() == {RunIn.LOOP: 1}


async def test_a_worker_claims_nothing_that_a_switch_denies(tmp_path: Path) -> None:
    """R67: whatever the dispatcher that sent it knows of switches."""
    bench = Bench({RunIn.LOOP: 1})
    bench.switch()
    await bench.call("a", "touch", path=str(tmp_path / "ran"))
    await is_unclaimed(bench, "a")
    assert not (tmp_path / "ran").exists()


async def test_nothing_is_claimed_after_the_step_in_which_a_switch_was_set(tmp_path: Path) -> None:
    """R67: also not by a worker whose claim was on its way meanwhile."""
    bench = Bench({RunIn.LOOP: 1})
    await bench.admission.follow_switches()
    bench.ledger.before_claim = lambda: bench.switch() if bench.ledger.claims == 1 else None
    await bench.call("a", "touch", path=str(tmp_path / "ran"))
    await is_unclaimed(bench, "a")
    assert not (tmp_path / "ran").exists()


async def test_a_switch_with_a_value_denies_the_calls_that_have_it(tmp_path: Path) -> None:
    bench = Bench({RunIn.LOOP: 1})
    closed, other = str(tmp_path / "closed"), str(tmp_path / "other")
    bench.switch(argument="path", value=closed)
    await bench.call("a", "touch", path=closed)
    await bench.call("b", "touch", path=other)
    await eventually(lambda: "b" in bench.outcomes(), "the other call has ended")
    assert bench.unclaimed() == [("a", "switch")] and not Path(closed).exists()


async def test_a_switch_with_a_value_is_held_against_what_the_tool_reads(tmp_path: Path) -> None:
    bench = Bench({RunIn.LOOP: 1})
    closed = tmp_path / "closed"
    bench.switch(tool="touch_path", argument="path", value=f"{tmp_path}//closed")
    await bench.call("a", "touch_path", path=f"{tmp_path}/./closed")
    await bench.call("b", "touch_path", path=f"{tmp_path}/other")
    await eventually(lambda: {"a", "b"} <= bench.outcomes().keys(), "both have ended")
    denied, ran = bench.outcomes()["a"], bench.outcomes()["b"]
    assert (denied.code, denied.error, denied.executed) == (Code.DENIED, "closed", Executed.NO)
    assert ran.ok and not closed.exists()


async def test_a_switch_that_no_call_can_meet_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench({RunIn.LOOP: 1})
    bench.switch(tool="touch_path", argument="path", value=5)
    await bench.admission.follow_switches()
    await bench.admission.follow_switches()
    (record,) = [r for r in caplog.records if "switch_without_effect" in r.message]
    assert "tool=touch_path argument=path" in record.message


async def test_a_switch_that_was_taken_back_denies_nothing_at_a_worker(tmp_path: Path) -> None:
    bench = Bench({RunIn.LOOP: 1})
    bench.switch()
    await bench.admission.follow_switches()
    bench.switch(number=2, on=False)
    await bench.call("a", "touch", path=str(tmp_path / "ran"))
    await eventually(lambda: "a" in bench.outcomes(), "it has run")


@pytest.mark.parametrize("bound", [{"prefix": "staging"}, {"tenant": "them"}])
async def test_a_switch_of_another_place_denies_nothing_at_a_worker(
    tmp_path: Path, bound: dict[str, Any]
) -> None:
    """R69."""
    bench = Bench({RunIn.LOOP: 1})
    switch = msgspec.structs.replace(
        Switch(tool="touch", reason="closed", number=1, prefix="toolpool"), **bound
    )
    bench.ledger.switch_states[switch_name(switch)] = ENVELOPE.encode(switch)
    await bench.call("a", "touch", path=str(tmp_path / "ran"))
    await eventually(lambda: "a" in bench.outcomes(), "it has run")


async def test_a_worker_sets_a_switch_again_that_somebody_removed_without_a_key() -> None:
    """R69: no dispatcher is there any more that knows it."""
    bench = Bench({RunIn.LOOP: 1})
    bench.switch()
    await bench.admission.follow_switches()
    known, version = dict(bench.ledger.switch_states), bench.ledger.switch_version
    bench.ledger.switch_states.clear()
    await bench.admission.follow_switches()
    assert bench.ledger.switch_states == known
    assert bench.ledger.switch_version != version, "other workers read them"


async def test_a_claim_waits_while_switches_cannot_be_read(tmp_path: Path) -> None:
    bench = Bench({RunIn.LOOP: 1})
    bench.switch()
    failing, read = iter((True, False)), bench.ledger.switches

    async def switches(*changes: Any) -> Any:
        if next(failing):
            raise OSError("the server is away")
        return await read(*changes)

    bench.ledger.switches = switches  # type: ignore[method-assign]
    await bench.call("a", "touch", path=str(tmp_path / "ran"))
    await is_unclaimed(bench, "a")


async def test_a_drain_waits_for_a_run_that_is_about_to_free_its_places_and_be_settled() -> None:
    @tool(rate="9/min")
    async def quick() -> str:
        """End at once."""
        return "done"

    bench = Bench({RunIn.LOOP: 2}, catalog=Catalog([quick]))
    is_freed = asyncio.Event()

    async def free(*_: Any) -> None:
        await is_freed.wait()

    bench.executor._limit_notices.ended = free  # type: ignore[method-assign]
    await bench.call("k", "quick")
    await eventually(lambda: bool(bench.executor._ending), "it has ended")
    draining = asyncio.ensure_future(bench.executor.drain(5.0))
    await asyncio.wait([draining], timeout=0.1)
    assert not draining.done()
    is_freed.set()
    await draining
    assert bench.ledger.records["k"].state == "settled"


@pytest.mark.parametrize(("key", "runs"), [("k", True), ("k.1", False)])
async def test_a_release_that_withdrew_that_a_tool_may_run_twice_decides(
    key: str, runs: bool, tmp_path: Path
) -> None:
    """The dispatcher still has the older declaration. Its retry of a failed call does not run."""
    bench = Bench({RunIn.LOOP: 2})
    opening = Opening(key, 1, rerunnable=True, wait=9.0, deadline=30.0, keep=60.0)
    await bench.ledger.open(
        [opening], nonce=new_nonce(), reply=REPLY, queue="", message=b"", give_up_at=0.0
    )
    path = tmp_path / "ran"
    call = CallMessage(
        key=key, id="c", tool="touch", digest="older", arguments={"path": str(path)},
        timeout=20.0, rerunnable=True, retries=2, final=True,
    )  # fmt: skip
    bench.executor.receive(
        ENVELOPE.encode_batch(Batch(id="b", reply=REPLY, calls=(call,))), lambda: None
    )
    await eventually(lambda: bench.outcomes(), "it is answered")
    assert path.exists() is runs
    assert bench.ledger.is_marked(key)
    if not runs:
        assert bench.outcomes()[key].executed is Executed.NO


@pytest.mark.parametrize("tool", ["stay_reading", "stay_alone"])
async def test_only_an_exclusive_call_is_marked_when_the_server_has_lost_it(
    tool: str, tmp_path: Path
) -> None:
    """Else another dispatcher that is asked for it would have it run beside itself."""
    bench = Bench({RunIn.LOOP: 1})
    gate = tmp_path / "gate"
    await bench.call("k", tool, rerunnable=True, gate=str(gate))
    await eventually(lambda: bench.executor._running, "it runs")
    bench.ledger.forget()
    await bench.executor._renew_claims()
    assert bench.ledger.is_marked("k") is (tool == "stay_alone")
    gate.touch()
    await eventually(lambda: bench.outcomes(), "it has ended")


@pytest.mark.parametrize("rerunnable", [False, True])
async def test_what_the_server_lost_of_an_end_is_told_again(rerunnable: bool) -> None:
    """Also of a call that may run twice: its worker is alive, so nobody would start it again."""
    bench = Bench({RunIn.LOOP: 1})
    await bench.call("k", "look", rerunnable=rerunnable)
    await eventually(lambda: bench.outcomes(), "it has ended")
    record = bench.ledger.records["k"]
    record.state, record.outcome, record.settled_by = "claimed", b"", ""
    bench.executor.report_again()
    await eventually(lambda: record.state == "settled", "its end is told again")


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._timer = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.count += 1
        self._timer = asyncio.get_running_loop().call_soon(self._next)

    def close(self) -> None:
        self._timer.cancel()


@pytest.mark.parametrize(("size", "is_large"), [(40_000, True), (10, False)])
async def test_large_calls_start_in_turns_of_the_loop_of_their_own(
    size: int, is_large: bool
) -> None:
    """Typing their arguments takes long, and the lease and other calls have to go on meanwhile."""
    turns, started = Turns(), list[int]()

    @tool
    async def read(text: str) -> None:
        """Read a text."""
        started.append(turns.count)

    bench = Bench({RunIn.LOOP: 64}, catalog=Catalog([read]))
    for number in range(20):
        await bench.call(f"k{number}", "read", text="x" * size)
    await eventually(lambda: len(started) == 20, "all have started")
    turns.close()
    assert (len(set(started)) == 20) is is_large
    await bench.running(0)


async def test_a_large_call_does_not_start_when_the_lease_ran_out_meanwhile() -> None:
    bench, started = Bench({RunIn.LOOP: 64}), list[str]()

    @tool
    async def read(name: str, text: str) -> None:
        """Read a text, for longer than the lease lasts."""
        started.append(name)
        bench.lease.age = 100.0

    bench = Bench({RunIn.LOOP: 64}, catalog=Catalog([read]))
    for name in "abc":
        await bench.call(name, "read", name=name, text="x" * 40_000, rerunnable=True)
    await eventually(lambda: started, "one starts")
    await bench.running(0)
    released = [each.key for each in bench.said() if isinstance(each, Released)]
    assert len(started) == 1 and sorted(released + started) == ["a", "b", "c"]
