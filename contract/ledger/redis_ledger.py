"""The ledger on Redis: one record per call, changed only by Lua scripts.

Dispatchers `open` and `close` calls; workers `claim` and `settle` them.
"""

import time
from collections.abc import Iterable, Sequence

from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts, ms_of, new_nonce
from toolpool.contract.ledger.protocols import (
    ATTEMPTS_AT_MOST,
    RELEASES_AT_MOST,
    Claim,
    ClaimRenewal,
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    Refusal,
    Release,
    Settlement,
    SwitchChange,
)
from toolpool.contract.ledger.rate_counters import LONGEST_HOLD_SECONDS, TOLD_SECONDS, window_ms
from toolpool.contract.rates import Limit
from toolpool.contract.redis_keys import RedisKeys

_OUTPUT_SECONDS = 5.0
_OUTPUTS_SHARE = "0.75"
"""The share of the server's memory above which no outputs are stored and the oldest are dropped."""


class RedisLedger:
    """The ledger steps of dispatchers and workers, on Redis.

    A call that may not run twice is remembered for `dedup_ttl` seconds after its claim, even
    without its record. An owner keeps at most `outputs_bytes` of whole outputs.
    """

    def __init__(
        self,
        scripts: LuaScripts,
        names: RedisKeys,
        *,
        dedup_ttl: float = 86_400.0,
        outputs_bytes: int = 32 << 20,
    ) -> None:
        self._scripts = scripts
        self._names = names
        self._marks_ms = ms_of(dedup_ttl)
        self._outputs_bytes = outputs_bytes

    async def open(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        reply: str,
        queue: str,
        message: bytes,
        give_up_at: float,
        tried_in: str | None = None,
    ) -> tuple[str, list[bytes]]:
        """Create or join the records of calls and publish their message."""
        prefix = self._names.call_prefix
        keys = [self._names.epoch, queue, *[prefix + opening.key for opening in openings]]
        arguments: list[str | bytes | int] = [
            self._scripts.epochs.candidate,
            nonce,
            reply,
            message,
            tried_in or "",
            self._names.ran_prefix,
            self._marks_ms,
        ]
        # One string per call: encoding every number by itself dominates the cost.
        arguments += [
            f"{opening.attempt} {_rerun(opening)} "
            f"{max(1, round(opening.wait * 1000))} {max(1, round(opening.deadline * 1000))} "
            f"{max(1, round(opening.keep * 1000))} "
            f"{round(opening.asked_at * 1000)} {opening.again:d} {opening.approved:d}"
            for opening in openings
        ]
        answers = await self._scripts.run(LuaScript.OPEN, keys, arguments, give_up_at=give_up_at)
        epoch = answers.pop(0).decode(errors="replace")
        self._scripts.epochs.saw(epoch)
        return epoch, answers

    async def close(
        self,
        closings: Sequence[Closing],
        *,
        reply: str,
        end: CloseReason,
        give_up_at: float,
        now: float = 0.0,
    ) -> list[bytes]:
        """End calls; answers the outcome or state of each.

        `now` is fleet time as the caller knows it; 0: the server's.
        """
        keys = [self._names.epoch, *(self._names.call(c.key) for c in closings)]
        arguments: list[str | bytes | int] = [
            self._scripts.epochs.candidate,
            reply,
            self._names.cancel(""),
            self._names.ran_prefix,
            end.value,
            self._marks_ms,
            round(now * 1000),
        ]
        for closing in closings:
            arguments += (
                closing.nonce,
                closing.epoch,
                ms_of(closing.keep),
                closing.unclaimed,
                closing.claimed,
                closing.doubtful,
                closing.cancel,
                int(closing.unsent),
                "" if closing.anew_after is None else ms_of(closing.anew_after),
                int(closing.leaves_mark),
            )
        return await self._scripts.run(LuaScript.CLOSE, keys, arguments, give_up_at=give_up_at)

    async def recover(
        self, recoveries: Sequence[RecoveryRequest], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """Restart or settle calls whose message or worker is lost."""
        keys = [self._names.epoch, queue, *(self._names.call(r.key) for r in recoveries)]
        arguments: list[str | bytes | int] = [
            self._scripts.epochs.candidate,
            reply,
            ATTEMPTS_AT_MOST,
            self._names.ran_prefix,
        ]
        for recovery in recoveries:
            arguments += (
                recovery.nonce,
                recovery.lost_worker,
                recovery.attempt,
                ms_of(recovery.wait),
                recovery.message,
                recovery.next_message,
                ms_of(recovery.keep),
                recovery.lost,
                int(recovery.had_time),
                recovery.epoch,
            )
        return await self._scripts.run(LuaScript.RECOVER, keys, arguments, give_up_at=give_up_at)

    async def release(
        self, releases: Sequence[Release], *, worker: str, give_up_at: float
    ) -> list[str]:
        """Give claimed calls back; answers `released` or `late` for each."""
        keys = [self._names.call(r.key) for r in releases]
        arguments: list[str | bytes | int] = [worker, RELEASES_AT_MOST, self._names.ran_prefix]
        for release in releases:
            arguments += (
                release.claim_nonce,
                release.notice,
                ms_of(release.keep),
                release.too_often,
                int(release.entered),
            )
        return await self._words(LuaScript.RELEASE, keys, arguments, give_up_at)

    async def claim(
        self,
        claims: Sequence[Claim],
        *,
        worker: str,
        give_up_at: float,
        switches: str | None = None,
        now: float = 0.0,
    ) -> list[float | Refusal]:
        """Claim calls; answers the seconds left for each, or why it was refused."""
        limits: dict[Limit, int] = {}
        keys = [self._names.epoch, *[self._names.call(claim.key) for claim in claims]]
        for claim in claims:
            for limit in claim.limits:
                limits.setdefault(limit, len(limits) + 1)
        keys += [self._names.rate(limit.name) for limit in limits]
        arguments: list[str | bytes | int] = [
            self._scripts.epochs.candidate,
            worker,
            self._names.ran_prefix,
            self._marks_ms,
            switches or "",
            len(claims),
            _limits(limits, now) if limits else "",
        ]
        for claim in claims:
            nonce = f"{claim.nonce} {claim.rerunnable * (1 + claim.approved)}"
            for limit in claim.limits:
                nonce += f" {limits[limit]}"
            arguments += (claim.attempt, nonce)
        answers = await self._scripts.run(LuaScript.CLAIM, keys, arguments, give_up_at=give_up_at)
        return [_verdict(answer) for answer in answers]

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """The version and states of all switches, after these changes."""
        keys = [self._names.epoch, self._names.switches]
        arguments: list[str | bytes | int] = [self._scripts.epochs.candidate]
        if changes:
            arguments.append(new_nonce())
        for change in changes:
            arguments += (change.field, change.before, change.after)
        found = switch_states(await self._scripts.once(LuaScript.SWITCH, keys, arguments))
        self._scripts.epochs.saw(found[0].partition(" ")[0])
        return found

    async def renew(
        self, renewals: Sequence[ClaimRenewal], *, worker: str, give_up_at: float
    ) -> list[str]:
        """Renew the claims of running calls: `renewed`, `settled`, `absent` or `lost` for each."""
        keys = [self._names.call(renewal.key) for renewal in renewals]
        marks = (self._names.ran_prefix, self._marks_ms)
        arguments: list[str | bytes | int] = [worker, *marks]
        for renewal in renewals:
            arguments += (renewal.attempt, renewal.claim_nonce, int(renewal.rerunnable))
        return await self._words(LuaScript.RENEW, keys, arguments, give_up_at)

    async def settle(self, settlements: Sequence[Settlement], *, give_up_at: float) -> list[str]:
        """Store outcomes; answers `first`, `late` or `gone` for each."""
        keys = [self._names.call(s.key) for s in settlements]
        arguments: list[str | bytes | int] = []
        for settlement in settlements:
            arguments += (
                settlement.nonce,
                ms_of(settlement.keep),
                settlement.reply,
                settlement.body,
            )
        return await self._words(LuaScript.SETTLE, keys, arguments, give_up_at)

    async def _words(
        self,
        step: LuaScript,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
        give_up_at: float,
    ) -> list[str]:
        """Run a step that answers a word for each key."""
        answers = await self._scripts.run(step, keys, arguments, give_up_at=give_up_at)
        return [answer.decode(errors="replace") for answer in answers]

    async def keep_output(self, handle: str, body: bytes, *, owner: str, keep: float) -> bool:
        """Store a whole output. Returns whether there was room."""
        answer = await self._outputs(self._names.output(handle), owner, handle, body, keep)
        return answer == b"kept"

    async def make_room(self) -> None:
        """Drop the oldest outputs if the server is short of memory."""
        await self._outputs("", "", "", b"", 1.0)

    async def _outputs(self, key: str, owner: str, handle: str, body: bytes, keep: float) -> bytes:
        (answer,) = await self._scripts.run(
            LuaScript.OUTPUT,
            [key, self._names.outputs, self._names.outputs_of(owner), self._names.epoch],
            [
                self._names.output(""),
                handle,
                body,
                ms_of(keep),
                self._outputs_bytes,
                _OUTPUTS_SHARE,
            ],
            give_up_at=time.monotonic() + _OUTPUT_SECONDS,
        )
        return bytes(answer)

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Put a message on a reply stream; best effort."""
        await self._scripts.send_reply(stream, body)

    async def note_ended(self, keys: Sequence[str], *, keep: float) -> None:
        """Record that the tools of answered calls have ended."""
        await self._scripts.set_markers(
            [self._names.ended(key) for key in keys], keep_ms=ms_of(keep)
        )


def _rerun(opening: Opening) -> int:
    if not opening.rerunnable:
        return 0
    return 2 if opening.exclusive else 1


def _limits(limits: Iterable[Limit], now: float) -> str:
    words = [f"{limit.rate.most} {window_ms(limit)}" for limit in limits]
    times = f"{round(now * 1000)} {ms_of(LONGEST_HOLD_SECONDS)} {ms_of(TOLD_SECONDS)}"
    return f"{times} {' '.join(words)}"


def switch_states(answers: Sequence[bytes]) -> tuple[str, dict[str, bytes]]:
    """Parse the step's answer: the epoch and the version of the switches, and their states."""
    version, *rest = answers
    fields = (field.decode(errors="replace") for field in rest[::2])
    return version.decode(errors="replace"), dict(zip(fields, rest[1::2], strict=True))


def _verdict(answer: bytes) -> float | Refusal:
    try:
        return int(float(answer)) / 1000
    except ValueError:
        return answer.decode(errors="replace")
