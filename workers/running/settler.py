"""Sends outcomes and start notices to the ledger in batches."""

import asyncio
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.envelope import (
    Batch,
    CallMessage,
    Envelope,
    Progress,
    Released,
    RunsEnded,
    Settled,
    Started,
    StoredOutput,
    Unclaimed,
)
from toolpool.contract.errors import CommandRejected, ServerUnavailable
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import Release, Settlement, WorkerLedger
from toolpool.contract.outcome import Code, Executed, Outcome, failure, may_still_run
from toolpool.contract.rates import Limit

log = logs.logger("settler")

_GROUP_CALLS = 128
_GROUP_BYTES = 1 << 20
_KEEP_OUTPUT_SECONDS = 3.0
_RECENT_BYTES = 16 << 20
_GATHER_SECONDS = 0.002
_REJECTED_PAUSE_SECONDS = 0.25
_RELEASE_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 5.0
_REJECTED_FLUSH_SECONDS = 10.0
_NOTICE_SECONDS = 0.02
"""Calls that end within this time are not announced as started: their outcome shows it."""


@dataclass(slots=True, eq=False)
class _Notice:
    batch: Batch
    keys: set[str]


_OUTPUT_SECONDS = 3_600.0
"""How many seconds whole outputs are kept: long enough for a model to read them in pages."""


class Settler:
    """Collects the next batch while one is being sent."""

    def __init__(
        self,
        *,
        worker: str,
        ledger: WorkerLedger,
        envelope: Envelope,
        keep: float,
    ) -> None:
        self._worker = worker
        self.server_time: Callable[[], float] = time.time
        """Fleet time, in seconds since 1970."""
        self._ledger = ledger
        self._envelope = envelope
        self._keep = keep
        self._outcomes: deque[tuple[Settlement, bool]] = deque()
        """The settlements to send, each with whether its tool has ended."""
        self._recent: deque[tuple[float, Settlement]] = deque()
        """Recent settlements with their time: a server may lose its last writes."""
        self._recent_bytes = 0
        self._notices: dict[str, _Notice] = {}
        self._sending: asyncio.Task[None] | None = None
        self._rejected: list[tuple[float, tuple[Settlement, bool]]] = []
        """Outcomes that the server rejected, with the time until which they are sent again."""
        self._retrying: asyncio.Task[None] | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._background = BackgroundTasks()
        self._again = BackgroundTasks()

    def settle(
        self, batch: Batch, call: CallMessage, outcome: Outcome, *, busy: bool = False
    ) -> None:
        """Send the outcome of a call, and retry until the server has stored it.

        If the worker is `busy`, with calls waiting for a slot, outcomes are batched for a moment:
        sending each alone would cost as much as running the calls.
        """
        self.cancel_start_notice(batch, call.key)
        settlement = self.settlement(batch, call, outcome)
        self._outcomes.append((settlement, not may_still_run(outcome)))
        self._remember(settlement)
        if self._sending is not None:
            return
        if not busy:
            self._send_now()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(_GATHER_SECONDS, self._send_now)

    def settlement(self, batch: Batch, call: CallMessage, outcome: Outcome) -> Settlement:
        """The settlement for an outcome; thread-safe."""
        at = self.server_time() if call.keep is not None else 0.0
        body = self._encode(call.key, outcome, at)
        return Settlement(call.key, new_nonce(), call.keep or self._keep, batch.reply, body)

    def _remember(self, settlement: Settlement) -> None:
        self._recent.append((time.monotonic(), settlement))
        self._recent_bytes += len(settlement.body)
        while self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft()[1].body)

    def forget_before(self, when: float) -> None:
        """Drop settlements before this (monotonic) time, which the server can no longer lose."""
        while self._recent and self._recent[0][0] < when:
            self._recent_bytes -= len(self._recent.popleft()[1].body)

    def send_again(self) -> None:
        """Settle the recent calls again: a restarted server may have lost their outcomes."""
        self._outcomes.extend((settlement, False) for _, settlement in self._recent)
        self._send_now()

    def started(self, batch: Batch, key: str) -> None:
        """Tell the dispatcher that the call started, unless the call ends within 20 ms."""
        notice = self._notices.get(batch.id)
        if notice is None:
            notice = self._notices[batch.id] = _Notice(batch, set())
            asyncio.get_running_loop().call_later(_NOTICE_SECONDS, self._announce, notice)
        notice.keys.add(key)

    async def keep_whole(
        self, batch: Batch, call: CallMessage, outcome: Outcome, whole: str, *, within: float
    ) -> Outcome:
        """Store the whole output, and return the outcome with its handle.

        The outcome is unchanged if that fails or takes longer than `within` seconds.
        """
        output = StoredOutput(
            handle=secrets.token_hex(16),
            tenant=batch.tenant,
            session=call.session,
            tool=call.tool,
            text=whole,
        )
        try:
            async with asyncio.timeout(min(within, _KEEP_OUTPUT_SECONDS)):
                is_kept = await self._ledger.keep_output(
                    output.handle,
                    self._envelope.encode(output),
                    owner=encoding.digest([batch.tenant, call.session]),
                    keep=_OUTPUT_SECONDS,
                )
        except Exception as error:  # noqa: BLE001 - the shortened output is an answer without it
            log.warning("output_not_kept call=%s: %s", call.id, error)
            return outcome
        if not is_kept:
            log.warning("output_not_kept call=%s: there is no room for it", call.id)
            return outcome
        return msgspec.structs.replace(outcome, output=output.handle)

    def progress(
        self, batch: Batch, key: str, done: float, total: float | None, message: str | None
    ) -> None:
        """Send the dispatcher a progress report; best effort."""
        said = Progress(key=key, done=done, total=total, message=message)
        self._background.start(self._send_notice(batch.reply, self._envelope.encode_reply(said)))

    def ended(self, reply: str, keys: Iterable[str]) -> None:
        """Report that the tools of answered calls have ended; best effort.

        The dispatcher is notified, and the ledger records it for later requests.
        """
        said = RunsEnded(worker=self._worker, keys=tuple(keys))
        self._background.start(self._send_notice(reply, self._envelope.encode_reply(said)))
        self._background.start(self._note_ended(said.keys))

    def unclaimed(
        self,
        batch: Batch,
        call: CallMessage,
        reason: str = "",
        limits: tuple[Limit, ...] = (),
    ) -> None:
        """Tell the dispatcher that a call is not claimed (see `Unclaimed`); best effort."""
        said = Unclaimed(
            key=call.key,
            attempt=call.attempt,
            worker=self._worker,
            reason=reason,
            limits=limits,
        )
        self._background.start(self._send_notice(batch.reply, self._envelope.encode_reply(said)))

    def cancel_start_notice(self, batch: Batch, key: str) -> None:
        """Cancel the start notice of a call."""
        notice = self._notices.get(batch.id)
        if notice is not None:
            notice.keys.discard(key)

    def release(
        self, call: CallMessage, *, claim_nonce: str, too_often: Outcome, entered: bool
    ) -> None:
        """Give a claimed call back, and retry until the server has stored it."""
        notice = Released(key=call.key, attempt=call.attempt, worker=self._worker)
        release = Release(
            key=call.key,
            claim_nonce=claim_nonce,
            notice=self._envelope.encode_reply(notice),
            keep=call.keep or self._keep,
            too_often=self._encode(call.key, too_often),
            entered=entered,
        )
        self._background.start(self._send_release(release, time.monotonic() + self._keep))

    async def flush(self) -> None:
        """Return when everything submitted so far has been sent.

        Outcomes and releases that the server rejects are waited for during ten seconds.
        """
        while self._outcomes or self._sending is not None or self._background.running:
            self._send_now()
            waits = {
                *self._background.running,
                *([self._sending] if self._sending is not None else []),
            }
            if waits:
                await asyncio.wait(waits)
        retrying = {*self._again.running, *([self._retrying] if self._retrying else [])}
        if retrying:
            await asyncio.wait(retrying, timeout=_REJECTED_FLUSH_SECONDS)

    async def _send_release(self, release: Release, give_up_at: float) -> None:
        try:
            await self._ledger.release([release], worker=self._worker, give_up_at=give_up_at)
        except Exception as error:  # noqa: BLE001 - dispatchers also see the lease expire
            log.error("release_failed: %s", error)
            if isinstance(error, CommandRejected):
                self._again.start(self._release_again(release, give_up_at))

    async def _release_again(self, release: Release, give_up_at: float) -> None:
        """Give a call back once more: the server may reject commands only for a while."""
        await asyncio.sleep(_RELEASE_PAUSE_SECONDS)
        if time.monotonic() < give_up_at:
            await self._send_release(release, give_up_at)

    def _send_now(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._sending is None and self._outcomes:
            self._sending = asyncio.ensure_future(self._send())

    def _encode(self, key: str, outcome: Outcome, at: float = 0.0) -> bytes:
        try:
            return self._envelope.encode_reply(Settled(key=key, outcome=outcome, at=at))
        except (TypeError, ValueError, RecursionError) as error:
            log.error("outcome_not_json key=%s: %s", key, type(error).__name__)
            reason, details = "the outcome could not be encoded", {"cause": "not encodable"}
            bad = failure(Code.BAD_RESULT, reason, Executed.YES, details=details)
            return self._envelope.encode_reply(Settled(key=key, outcome=bad))

    def _announce(self, notice: _Notice) -> None:
        self._notices.pop(notice.batch.id, None)
        if notice.keys:
            started = Started(
                batch=notice.batch.id, worker=self._worker, keys=tuple(sorted(notice.keys))
            )
            self._background.start(
                self._send_notice(notice.batch.reply, self._envelope.encode_reply(started))
            )

    async def _send_notice(self, reply: str, body: bytes) -> None:
        try:
            await self._ledger.send_reply(reply, body)
        except Exception as error:  # noqa: BLE001 - best effort: the outcome says it too
            log.info("notice_not_sent: %s", error)

    async def _note_ended(self, keys: tuple[str, ...]) -> None:
        try:
            await self._ledger.note_ended(keys, keep=self._keep)
        except Exception as error:  # noqa: BLE001 - best effort: dispatchers time out
            log.info("end_not_noted: %s", error)

    async def _send(self) -> None:
        try:
            while self._outcomes:
                await self._send_group(self._next_group())
        finally:
            self._sending = None
            self._send_now()

    def _next_group(self) -> list[tuple[Settlement, bool]]:
        group: list[tuple[Settlement, bool]] = []
        size = 0
        while self._outcomes and len(group) < _GROUP_CALLS and size < _GROUP_BYTES:
            group.append(self._outcomes.popleft())
            size += len(group[-1][0].body)
        return group

    def _report_late(self, late: list[tuple[Settlement, bool]]) -> None:
        """Handle calls that were answered elsewhere: report that their writes have ended."""
        if late:
            log.info("outcomes_late calls=%d", len(late))
        ended: defaultdict[str, list[str]] = defaultdict(list)
        for settlement, has_ended in late:
            if has_ended:
                ended[settlement.reply].append(settlement.key)
        for reply, keys in ended.items():
            self.ended(reply, keys)

    async def _send_group(self, group: list[tuple[Settlement, bool]]) -> None:
        settlements = [settlement for settlement, _ in group]
        give_up_at = time.monotonic() + self._keep
        try:
            answers = await self._ledger.settle(settlements, give_up_at=give_up_at)
        except ServerUnavailable:
            log.error("outcomes_lost calls=%d: the server stayed unreachable", len(group))
        except Exception:
            if len(group) > 1:  # one bad outcome must not lose the others
                for one in group:
                    await self._send_group([one])
            else:
                log.exception("settle_failed: trying again for %.0f s", self._keep)
                self._rejected.append((give_up_at, group[0]))
                if self._retrying is None:
                    self._retrying = asyncio.ensure_future(self._settle_again())
        else:
            self._answered(group, answers)

    async def _settle_again(self) -> None:
        """Settle calls whose outcomes the server rejected: it may do so only for a while."""
        pause = _REJECTED_PAUSE_SECONDS
        while self._rejected:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            waiting, self._rejected = self._rejected, []
            lost = 0
            for give_up_at, sent in waiting:
                try:
                    answers = await self._ledger.settle([sent[0]], give_up_at=give_up_at)
                except Exception:  # noqa: BLE001 - logged when it is given up
                    if time.monotonic() > give_up_at:
                        lost += 1
                    else:
                        self._rejected.append((give_up_at, sent))
                else:
                    self._answered([sent], answers)
                    pause = _REJECTED_PAUSE_SECONDS
            if lost:
                log.error("outcomes_lost calls=%d: the server rejected them", lost)
        self._retrying = None

    def _answered(self, group: list[tuple[Settlement, bool]], answers: list[str]) -> None:
        answered = zip(group, answers, strict=True)
        self._report_late([sent for sent, answer in answered if answer == "late"])
