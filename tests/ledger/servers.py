"""The two servers that the model is held against, behind one blocking interface."""

import asyncio
import copy
import time
from typing import Any, Protocol

import redis

from tests.chaos.wall_clock import WallClock
from toolpool.contract.ledger.approval_steps import (
    ApprovalLedger,
    DecisionStep,
    MemoryApprovals,
    RedisApprovals,
    WaitStep,
)
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import (
    Claim,
    ClaimRenewal,
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    Release,
    Settlement,
    SwitchChange,
)
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.dispatcher.transports.redis import RedisTransport

NAMES = RedisKeys()
LONG = 1000.0
KEPT = 100_000.0
"""Of what the server itself ends, by its own clock: much longer than that may jump."""
_OVER = 0.001
_NEAR_SECONDS = 1.5


class Ledger(Protocol):
    """What both kinds of ledger can do."""

    open: Any
    claim: Any
    renew: Any
    settle: Any
    close: Any
    recover: Any
    release: Any
    switches: Any


class Real:
    """Runs each step of the machine on a ledger. Subclasses know what their server has sent."""

    ledger: Ledger

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._versions: dict[int, str] = {}
        """Of the switches, by how often they had changed."""

    def run(self, work: Any) -> Any:
        """The result of a coroutine."""
        return self._runner.run(work)

    def stop(self) -> None:
        """Let go of everything."""
        self._runner.close()

    def open(
        self,
        keys: list[str],
        nonce: str,
        reply: str,
        rerun: bool,
        over: bool,
        message: bytes,
        again: bool = False,
        later: bool = False,
        approved: bool = False,
        exclusive: bool = False,
    ) -> list[bytes]:
        wait = _OVER if over else LONG
        asked_at = time.time() + LONG if later else 0.0
        openings = [
            Opening(key, 1, rerun, wait, LONG, KEPT, asked_at, again, approved, exclusive)
            for key in keys
        ]
        _, answers = self.run(
            self.ledger.open(
                openings,
                nonce=nonce,
                reply=self.reply(reply),
                queue="queue",
                message=message,
                give_up_at=_soon(),
            )
        )
        if over:
            time.sleep(_OVER * 3)
        return list(answers)

    def approvals(self, reply: str) -> ApprovalLedger:
        """What a dispatcher does about approvals."""
        raise NotImplementedError

    def ask(
        self, key: str, nonce: str, reply: str, rerun: bool, again: bool
    ) -> tuple[str, str, str]:
        now = time.time()
        asking = WaitStep(
            key, nonce, b"request", rerun, now + LONG, KEPT, KEPT, now + 2 * LONG, again
        )
        found = self.run(self.approvals(reply).ask(asking, now=now))
        return found.answer, found.state, found.approval

    def decide(
        self, key: str, nonce: str, approved: bool, late: bool, bodies: dict[str, bytes]
    ) -> str:
        now = time.time()
        deciding = DecisionStep(
            key, nonce, bodies["decision"], bodies["notice"], approved, now + LONG,
            no=bodies["no"], doubtful=bodies["unknown"],
        )  # fmt: skip
        now += 2 * LONG if late else 0.0
        return str(self.run(self.approvals("d0").decide(deciding, now=now)))

    def confirm(self, key: str) -> str:
        reading = self.approvals("d0").read(key, now=time.time(), unsent_in=self.epoch)
        found = self.run(reading)
        return str(found.answer or found.state)

    def read_switches(self, changes: int) -> None:
        """Note the version of the switches, which have changed so often."""
        self._versions[changes], _ = self.run(self.ledger.switches())

    def switch(self, field: str, before: bytes, after: bytes) -> dict[str, bytes]:
        _, states = self.run(self.ledger.switches(SwitchChange(field, before, after)))
        return dict(states)

    def claim(
        self, key: str, attempt: int, nonce: str, worker: str, read: int | None, approved: bool
    ) -> str:
        claims = [Claim(key, attempt, nonce, approved=approved)]
        version = None if read is None else self._versions[read]
        (answer,) = self.run(
            self.ledger.claim(claims, worker=worker, give_up_at=_soon(), switches=version)
        )
        return answer if isinstance(answer, str) else "won"

    def renew(self, key: str, attempt: int, nonce: str, worker: str, rerun: bool) -> str:
        renewals = [ClaimRenewal(key, attempt, nonce, rerun)]
        (answer,) = self.run(self.ledger.renew(renewals, worker=worker, give_up_at=_soon()))
        return str(answer)

    def settle(self, key: str, nonce: str, reply: str, body: bytes) -> str:
        settlements = [Settlement(key, nonce, KEPT, self.reply(reply), body)]
        (answer,) = self.run(self.ledger.settle(settlements, give_up_at=_soon()))
        return str(answer)

    def close(
        self,
        key: str,
        nonce: str,
        epoch: str,
        reply: str,
        end: CloseReason,
        bodies: dict[str, bytes],
        unsent: bool = False,
        anew: bool = False,
    ) -> bytes:
        closing = Closing(
            key,
            nonce,
            epoch,
            KEPT,
            unclaimed=bodies["no"],
            claimed=bodies["timeout"],
            doubtful=bodies["unknown"],
            cancel=bodies["cancel"],
            unsent=unsent,
            anew_after=0.0 if anew else None,
        )
        (answer,) = self.run(
            self.ledger.close(
                [closing],
                reply=self.reply(reply),
                end=end,
                give_up_at=_soon(),
            )
        )
        return bytes(answer)

    def recover(
        self,
        key: str,
        nonce: str,
        lost: str,
        attempt: int,
        had_time: bool,
        reply: str,
        epoch: str,
        bodies: dict[str, bytes],
    ) -> bytes:
        recovery = RecoveryRequest(
            key,
            nonce,
            lost_worker=lost,
            attempt=attempt,
            wait=LONG,
            message=bodies["message"],
            next_message=bodies["next message"],
            keep=KEPT,
            lost=bodies["lost"],
            had_time=had_time,
            epoch=epoch,
        )
        (answer,) = self.run(
            self.ledger.recover(
                [recovery], reply=self.reply(reply), queue="queue", give_up_at=_soon()
            )
        )
        return bytes(answer)

    def release(self, key: str, nonce: str, entered: bool, notice: bytes, too_often: bytes) -> str:
        releases = [Release(key, nonce, notice, KEPT, too_often, entered)]
        (answer,) = self.run(self.ledger.release(releases, worker="w", give_up_at=_soon()))
        return str(answer)

    def reply(self, asker: str) -> str:
        """The stream of a dispatcher."""
        return NAMES.reply(asker)


class RealRedis(Real):
    """The Lua on a real server. `change_epoch` and the like are done as operators' faults do."""

    def __init__(self, url: str, clock: WallClock | None = None) -> None:
        super().__init__()
        settings = Settings(redis_url=url)
        self._sync = redis.Redis.from_url(url)
        self._clock = clock
        self._client = self.run(_made(settings))
        self._steps = LuaScripts(self._client)
        self.ledger = RedisLedger(self._steps, NAMES)
        self._kept: dict[bytes, bytes] = {}
        self._copies: dict[str, bytes] = {}
        self._transport = self.run(_transport(settings))
        self._set_clock(0.0)
        self._sync.flushall()
        self._agree()

    @property
    def epoch(self) -> str:
        """As `open` answers it."""
        return self.run(_epoch(self.ledger))  # type: ignore[no-any-return]

    def approvals(self, reply: str) -> ApprovalLedger:
        return RedisApprovals(self._steps, NAMES, self.reply(reply), "default")

    def jump(self, seconds: float) -> bool:
        """The server's clock is set, and a process undoes it. Nothing that was sent is lost.

        Whether refusals for a time are forgotten, which are remembered for a quarter of an hour.
        """
        if self._clock is None:
            return False
        is_forward = seconds > self._clock.offset
        for kind in (self.reply("*"), NAMES.cancel("*"), "queue"):
            for key in self._sync.scan_iter(kind):
                self._sync.persist(key)
        for key in self._sync.scan_iter(f"{NAMES.ran_prefix}*") if is_forward else ():
            if (self._sync.get(key) or b"").startswith(b"-"):  # type: ignore[union-attr]
                self._sync.delete(key)
        self._set_clock(seconds)
        self._agree()
        return is_forward

    def _set_clock(self, seconds: float) -> None:
        if self._clock is not None:
            self._clock.offset = seconds
            while abs(self._sync.time()[0] - time.time() - seconds) > _NEAR_SECONDS:  # type: ignore[index]
                pass

    def _agree(self) -> None:
        """As a dispatcher does once a second."""
        while self.run(self._transport.survey([])).clock_jumped:
            pass

    def change_epoch(self, word: str) -> None:
        """A failover, or a restart, that kept the data."""
        self._sync.set(NAMES.epoch, word)
        self._agree()

    def await_reports(self, is_early: bool) -> None:
        """Let processes have to report for some seconds from now on, or have reported."""
        words = [*self._sync.get(NAMES.epoch).decode().split(" "), *[""] * 6][:7]  # type: ignore[union-attr]
        seconds, micros = self._sync.time()  # type: ignore[misc]
        offset = int(words[1]) if words[1] else 0
        until = seconds * 1000 + micros // 1000 + offset + 2_900
        words[1:3] = str(offset), words[2] or "0"
        self._sync.set(NAMES.epoch, " ".join([*words[:6], str(until if is_early else 0)]))

    def lose_data(self) -> None:
        """FLUSHALL; queue and streams are left, because the model does not forget them."""
        for key in [*self._records(), NAMES.epoch, NAMES.switches]:
            self._sync.delete(key)
        self._agree()

    def replicate(self) -> None:
        """What a replica has now."""
        self._kept = {key: self._sync.dump(key) for key in self._records()}

    def fail_over(self, word: str) -> None:
        """Go back to what the replica has, in another epoch."""
        for key in self._records():
            self._sync.delete(key)
        for key, value in self._kept.items():
            self._sync.restore(key, int(KEPT * 1000), value)
        self.change_epoch(word)

    def spoil(self, key: str, how: str) -> None:
        """Delete a record, or put something else in its place."""
        self._sync.delete(NAMES.call(key))
        if how == "junk":
            self._sync.set(NAMES.call(key), b"junk")
        elif how == "emptied":
            self._sync.hset(NAMES.call(key), "x", "")

    def copy_record(self, key: str) -> None:
        """Remember a record."""
        self._copies[key] = self._sync.dump(NAMES.call(key))

    def put_back(self, key: str) -> None:
        """Let a record be as it was."""
        self._sync.restore(NAMES.call(key), int(KEPT * 1000), self._copies[key], replace=True)

    def end_record(self, key: str, is_marked: bool) -> None:
        """The record's time is over, and that of its mark if it `is_marked` as ended."""
        self._sync.delete(NAMES.call(key))
        if is_marked:
            self._sync.set(NAMES.ran(key), "1", px=int(KEPT * 1000))

    def hand_over(self, key: str) -> None:
        """Give the call a handle."""
        handle = self._transport.keep_handle(
            f"h{key}", b"call", owner=None, call=key, keep=KEPT, outcome_kept=KEPT
        )
        self.run(handle)

    def lapse(self, key: str) -> None:
        """The time of a call's approval passes."""
        name = NAMES.call(key)
        is_record = self._sync.type(name) == b"hash"
        if is_record and self._sync.hget(name, "state") in (b"waiting", b"approved"):
            self._sync.hset(name, "expires", 1)

    def _records(self) -> list[bytes]:
        found: list[bytes] = []
        for prefix in (NAMES.call_prefix, NAMES.ran_prefix):
            found += self._sync.scan_iter(f"{prefix}*")
        return found

    def live(self, asker: str, alive: bool) -> None:
        """A dispatcher takes its lease, or lets it go."""
        key = NAMES.dispatcher(asker)
        self._sync.set(key, b"1", px=int(KEPT * 1000)) if alive else self._sync.delete(key)

    def sent(self, name: str) -> list[bytes]:
        """What went to a queue, a dispatcher or a worker, oldest first."""
        if name == "queue":
            return list(reversed(self._sync.lrange("queue", 0, -1)))  # type: ignore[arg-type]
        kind, _, who = name.partition(":")
        if kind == "cancel":
            return list(self._sync.lrange(NAMES.cancel(who), 0, -1))  # type: ignore[arg-type]
        entries: Any = self._sync.xrange(self.reply(name))
        return [fields[b"b"] for _, fields in entries]

    def stop(self) -> None:
        self._set_clock(0.0)
        self.run(self._transport.close())
        self.run(self._client.aclose())
        self._sync.close()
        super().stop()


class RealMemory(Real):
    """The in-memory server."""

    def __init__(self) -> None:
        super().__init__()
        self._server = MemoryServer()
        self.ledger = self._server
        self._kept: Any = ({}, {})
        self._copies: dict[str, Any] = {}

    @property
    def epoch(self) -> str:
        """As `open` answers it."""
        return self._server.epoch

    def approvals(self, reply: str) -> ApprovalLedger:
        return MemoryApprovals(self._server, self.reply(reply))

    def jump(self, seconds: float) -> bool:
        """It follows no clock that is set, and remembers all."""
        return False

    def change_epoch(self, word: str) -> None:
        """See `RealRedis`."""
        self._server.begin_epoch(word)

    def await_reports(self, is_early: bool) -> None:
        """See `RealRedis`."""
        self._server.reports_until = time.monotonic() + LONG if is_early else 0.0

    def lose_data(self) -> None:
        """See `RealRedis`."""
        self._server.forget()

    def replicate(self) -> None:
        """See `RealRedis`."""
        self._kept = copy.deepcopy((self._server.records, self._server.marks))

    def fail_over(self, word: str) -> None:
        """See `RealRedis`."""
        self._server.records, self._server.marks = copy.deepcopy(self._kept)
        self.change_epoch(word)

    def spoil(self, key: str, how: str) -> None:
        """See `RealRedis`."""
        self._server.records.pop(key, None)

    def copy_record(self, key: str) -> None:
        """See `RealRedis`."""
        self._copies[key] = copy.deepcopy(self._server.records[key])

    def put_back(self, key: str) -> None:
        """See `RealRedis`."""
        self._server.records[key] = copy.deepcopy(self._copies[key])

    def end_record(self, key: str, is_marked: bool) -> None:
        """See `RealRedis`."""
        self._server.records.pop(key, None)
        if is_marked:
            self._server.marks[key] = time.monotonic()

    def hand_over(self, key: str) -> None:
        """See `RealRedis`."""
        self._server.hand_over(key, KEPT)

    def lapse(self, key: str) -> None:
        """See `RealRedis`."""
        record = self._server.records.get(key)
        if record is not None and record.state in ("waiting", "approved"):
            record.expires = 0.001

    def live(self, asker: str, alive: bool) -> None:
        """See `RealRedis`."""
        change = self._server.dispatchers.add if alive else self._server.dispatchers.discard
        change(self.reply(asker))

    def sent(self, name: str) -> list[bytes]:
        """See `RealRedis`."""
        name = name if name == "queue" or ":" in name else self.reply(name)
        return list(self._server._inboxes[name].items)


async def _made(settings: Settings) -> Any:
    return connection.open_async(settings)


async def _transport(settings: Settings) -> RedisTransport:
    return RedisTransport(settings)


async def _epoch(ledger: Ledger) -> str:
    epoch, _ = await ledger.open(
        [], nonce="", reply="", queue="queue", message=b"", give_up_at=_soon()
    )
    return str(epoch)


def _soon() -> float:
    return time.monotonic() + 10.0
