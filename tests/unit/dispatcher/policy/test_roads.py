"""R66, R67: whatever people, models and hosts do to one call, in any order."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.integration.twins import second
from toolpool import ApprovalRefused, Code, Dispatcher, Executed, Settings, ToolResult, tool
from toolpool.contract.approval import ApprovalState

RAN: list[int] = []
ENDS = (Code.CANCELLED, Code.DENIED, Code.EXPIRED)
CALL = {"id": "c-1", "name": "pay", "input": {"amount": 5}}
OPTIONS = {"background_wait": 0.02, "queue_wait": 5.0}


@tool(effects="write", approval=True, timeout=5)
async def pay(amount: int) -> str:
    """Pay."""
    await asyncio.sleep(0)
    RAN.append(amount)
    return f"paid {amount}"


who = st.integers(0, 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), who),
        st.tuples(st.sampled_from(["approve", "approve", "deny"]), who),
        st.tuples(st.just("cancel handle"), who),
        st.tuples(st.just("cancel session"), who),
        st.tuples(st.just("result"), who),
        st.tuples(st.just("restart"), who),
        st.tuples(st.just("fill"), who),
        st.tuples(st.just("wait"), who),
    ),
    min_size=2,
    max_size=12,
)


class Roads:
    """Two dispatchers of one call, and what each road said of it."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.hosts: list[Any] = []
        self.stacks: list[AsyncExitStack] = []
        self.handles: list[str] = []
        self.told: list[ToolResult] = []
        self.decided: list[str] = []
        self.asking: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        for _ in range(2):
            stack = AsyncExitStack()
            self.hosts.append(await stack.enter_async_context(second(self.worker, **OPTIONS)))
            self.stacks.append(stack)

    async def close(self) -> None:
        for stack in self.stacks:
            await stack.aclose()
        await asyncio.gather(*self.asking, return_exceptions=True)

    def note(self, result: ToolResult | None) -> None:
        if result is None:
            return
        if result.handle is not None and result.is_running:
            self.handles.append(result.handle)
        elif not result.is_running:
            self.told.append(result)

    async def step(self, what: str, number: int) -> None:
        host = self.hosts[number]
        match what:
            case "ask":
                self.note((await host.dispatch([CALL], session="s", turn="t"))[0])
            case "approve" | "deny":
                await self.decide(host, what)
            case "cancel handle" if self.handles:
                self.note(await host.task_cancel(self.handles[-1], session="s"))
            case "cancel session":
                await host.cancel("s")
            case "result" if self.handles:
                self.note(await host.task_result(self.handles[-1], session="s", wait=0.05))
            case "restart":
                await self.stacks[number].aclose()
                stack = AsyncExitStack()
                self.hosts[number] = await stack.enter_async_context(second(self.worker, **OPTIONS))
                self.stacks[number] = stack
            case "fill":
                pump = host._traffic._pump
                pump.server_is_full = not pump.server_is_full
            case "wait":
                await asyncio.sleep(0.02)

    async def decide(self, host: Any, what: str) -> None:
        waiting = await host.approvals.waiting()
        if waiting:
            try:
                await getattr(host.approvals, what)(waiting[0].id, by="anna")
            except ApprovalRefused:
                return
            self.decided.append(what)

    async def hold(self) -> None:
        """What must hold at any time."""
        assert len(RAN) <= 1
        ends = [r for r in self.told if r.code in ENDS and r.executed is Executed.NO]
        if RAN:
            assert "approve" in self.decided and "deny" not in self.decided
            assert not ends, ends
        finals = {(r.code, r.data) for r in self.told if r.code is not Code.OVERLOADED}
        assert len(finals) <= 1, finals


async def walk(chosen: list[tuple[str, int]]) -> None:
    RAN.clear()
    async with Dispatcher.in_memory([pay], settings=Settings(**OPTIONS)) as worker:
        roads = Roads(worker)
        await roads.connect()
        try:
            for what, number in chosen:
                await roads.step(what, number)
                await roads.hold()
            for host in roads.hosts:
                host._traffic._pump.server_is_full = False
            await asyncio.sleep(0.05)
            for handle in roads.handles:
                roads.note(await roads.hosts[0].task_result(handle, session="s", wait=0.1))
            await roads.hold()
            for record in worker._server.records.values():
                if record.approval in (ApprovalState.DENIED, ApprovalState.CANCELLED):
                    assert not RAN
        finally:
            await roads.close()
        await roads.hold()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(steps)
def test_r66_whatever_is_done_in_any_order_it_runs_once_if_it_was_approved(
    chosen: list[tuple[str, int]],
) -> None:
    asyncio.run(walk(chosen))
