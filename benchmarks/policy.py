"""`python -m benchmarks.policy`: what deciding about calls costs, and calls that wait for a person.

Dispatchers with and without a policy share a server and a worker, and take turns: throughput as the
ratio of the pairs, and the processor's time of a dispatcher's process for each call.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import redis

from benchmarks import toolpool_calls
from benchmarks.memory import resident
from toolpool import AskApproval, Dispatcher, Hooks, ProposedCall
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet

_RULES = """
[[rule]]
tool = "refund*"
argument = "amount"
above = 100
action = "deny"

[[rule]]
tool = "echo*"
argument = "text"
matches = "^(rm|dd) "
action = "deny"
"""


def _sync(_: ProposedCall) -> None:
    return None


async def _async(_: ProposedCall) -> None:
    return None


def _kinds(folder: Path) -> dict[str, Hooks]:
    rules = folder / "policy.toml"
    rules.write_text(_RULES)
    return {
        "nothing, once more": Hooks(),
        "a sync before_call": Hooks(before_call=_sync),
        "an async before_call": Hooks(before_call=_async),
        "two rules": Hooks(policy=rules),
        "a sync after_result": Hooks(after_result=lambda *_: None),
    }


_LOOKS = 300


async def _round(dispatcher: Dispatcher, options: argparse.Namespace) -> tuple[float, float, float]:
    began = time.process_time()
    rate = await toolpool_calls.throughput(
        dispatcher, "echo_loop", options.calls, options.in_flight
    )
    used = (time.process_time() - began) / options.calls * 1e6
    found = await toolpool_calls.latencies(dispatcher, "echo_loop", options.singles)
    return rate, used, statistics.median(found) * 1000


async def deciding(fleet: LocalFleet, name: str, hooks: Hooks, options: argparse.Namespace) -> None:
    """Paired rounds with and without, printed."""
    rounds: tuple[list[tuple[float, float, float]], ...] = ([], [])
    async with AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(
                Dispatcher.connect(settings=fleet.settings, hooks=given)
            )
            for given in (Hooks(), hooks)
        ]
        for number in range(options.rounds + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                done = await _round(sides[which], options)
                if number:  # the first warms up
                    rounds[which].append(done)
    pairs = list(zip(*rounds, strict=True))
    print(
        f"{name:24} throughput {statistics.median(b[0] / a[0] for a, b in pairs):.3f}  "
        f"p50 {statistics.median(b[2] - a[2] for a, b in pairs):+.3f} ms  "
        f"cpu of the dispatcher {statistics.median(b[1] - a[1] for a, b in pairs):+.1f} us a call"
    )


async def waiting(fleet: LocalFleet, calls: int) -> None:
    """Calls that wait for approval: what each takes, and a new call's pace beside them."""
    room = {"waiting_per_dispatcher": 2 * calls, "background_wait": 0.0}
    settings = fleet.settings.model_copy(update=room)
    ask = Hooks(before_call=lambda call: AskApproval() if call.arguments["text"] == "ask" else None)
    client: Any = redis.Redis.from_url(str(settings.redis_url))
    async with Dispatcher.connect(settings=settings, hooks=ask) as dispatcher:
        idle = statistics.median(await toolpool_calls.latencies(dispatcher, "echo_loop", 500))
        own, theirs = resident(), client.info("memory")["used_memory"]
        gate = asyncio.Semaphore(500)

        async def one(number: int) -> None:
            response = [{"id": f"c{number}", "name": "echo_loop", "input": {"text": "ask"}}]
            async with gate:
                await dispatcher.dispatch(response, session=f"s{number}", turn="t")

        await asyncio.gather(*(one(number) for number in range(calls)))
        for _ in range(_LOOKS):
            if len(await dispatcher.approvals.waiting()) == calls:
                break
            await asyncio.sleep(0.2)
        own, theirs = resident() - own, client.info("memory")["used_memory"] - theirs
        beside = statistics.median(await toolpool_calls.latencies(dispatcher, "echo_loop", 500))
        print(
            f"{calls:,} calls that wait for approval: {own / calls / 1024:.1f} KiB a call in the "
            f"dispatcher, {theirs / calls:.0f} bytes on the server; a new call's p50 "
            f"{beside * 1000:.2f} ms, {beside / idle:.2f} of idle"
        )
        await dispatcher.cancel("s0")


def main() -> None:
    """Measure deciding, then waiting."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=8_000)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--waiting", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-policy-") as folder:
        fleet = LocalFleet(["benchmarks.tools"], Settings())
        try:
            if options.rounds:
                for name, hooks in _kinds(Path(folder)).items():
                    asyncio.run(deciding(fleet, name, hooks, options))
            if options.waiting:
                asyncio.run(waiting(fleet, options.waiting))
        finally:
            fleet.close()


if __name__ == "__main__":
    main()
