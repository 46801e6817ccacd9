"""Every step and its repeat, in every order, with epochs that change and data that is lost."""

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.ledger.model import Model
from tests.ledger.servers import Real
from toolpool.contract.ledger.protocols import CloseReason

KEYS = ("a", "b", "a.1")
ASKERS = tuple(f"d{number}" for number in range(20))
WORKERS = ("w1", "w2")
HALF_AN_HOUR = 1800.0

keys = st.sampled_from(KEYS)
askers = st.one_of(st.just("d0"), st.sampled_from(ASKERS[:3]), st.sampled_from(ASKERS))
workers = st.sampled_from(WORKERS)
attempts = st.sampled_from((1, 1, 1, 2, 2, 3))


@dataclass
class History:
    """What happened to the calls of one key, whatever the records say by now."""

    asked: dict[str, str] = field(default_factory=dict)
    """By asker: the epoch in which it first asked."""
    starts: int = 0
    """Since the record was made, though a failover may have forgotten it."""
    starts_here: int = 0
    """In this epoch."""
    outcome: bytes | None = None
    is_spoilt: bool = False
    """Whether somebody without the key has put an earlier record back: it may end again."""
    was_sent: bool = False
    """Whether somebody may have sent it after it was approved."""


class LedgerMachine(RuleBasedStateMachine):
    """Subclasses say what `real` is."""

    steps_taken: ClassVar[int] = 0

    def make(self) -> Real:
        """The server under test, empty."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.real: Any = self.make()
        self.model = Model(self.real.epoch)
        self._replica = copy.deepcopy((self.model.records, self.model.marks))
        self._words = itertools.count()
        self._copies: dict[str, Any] = {}
        self._done: list[tuple[str, dict[str, Any]]] = []
        self._claims: dict[str, tuple[str, bool]] = {}
        """Claims by nonce: their key, and whether their worker has not given them back."""
        self._held: dict[str, tuple[int, str]] = {}
        """Claims by nonce: their attempt and worker."""
        self._read: dict[str, int] = {}
        """How often switches had changed when a worker read them last."""
        self._rerun: dict[str, bool] = dict.fromkeys(KEYS, False)
        self.histories = {key: History() for key in KEYS}

    # The steps

    @rule(
        some=st.sets(keys, min_size=1),
        asker=askers,
        rerun=st.booleans(),
        over=st.booleans(),
        later=st.booleans(),
        exclusive=st.booleans(),
    )
    def open(
        self,
        some: set[str],
        asker: str,
        rerun: bool,
        over: bool,
        later: bool = True,
        exclusive: bool = False,
    ) -> None:
        rerun = self._kind(sorted(some), rerun)
        names = sorted(key for key in some if self._kind([key], rerun) is rerun)
        over = over and self._number() % 4 == 0
        message = self._word("m")
        self._do(
            "open",
            keys=names,
            nonce=self._nonce(),
            reply=asker,
            rerun=rerun,
            over=over,
            message=message,
            later=later,
            exclusive=exclusive,
        )

    @rule(key=keys, asker=askers, rerun=st.booleans())
    def ask_again(self, key: str, asker: str, rerun: bool) -> None:
        """By a host that says that it may have asked before."""
        self._do(
            "open",
            keys=[key],
            nonce=self._nonce(),
            reply=asker,
            rerun=self._kind([key], rerun),
            over=False,
            message=self._word("m"),
            again=True,
            later=True,
        )

    @rule(key=keys, asker=askers, rerun=st.booleans(), again=st.booleans())
    def ask(self, key: str, asker: str, rerun: bool, again: bool) -> None:
        """Have a person approve a call, before it is sent."""
        again = again and self._number() % 4 == 0
        rerun = self._kind([key], rerun)
        self._do("ask", key=key, nonce=self._nonce(), reply=asker, rerun=rerun, again=again)

    @rule(key=keys, approved=st.booleans(), late=st.booleans())
    def decide(self, key: str, approved: bool, late: bool) -> None:
        """By a person, who may be too late."""
        self._do(
            "decide",
            key=key,
            nonce=self._nonce(),
            approved=approved,
            late=late and self._number() % 3 == 0,
            bodies={word: self._word(word) for word in ("no", "unknown", "decision", "notice")},
        )

    @rule(key=keys, asker=askers)
    def send_approved(self, key: str, asker: str) -> None:
        """By a dispatcher that knows that it was approved, or did."""
        self._do(
            "open",
            keys=[key],
            nonce=self._nonce(),
            reply=asker,
            rerun=self._kind([key], False),
            over=False,
            message=self._word("m"),
            later=True,
            approved=True,
        )

    @rule(
        key=keys,
        asker=askers,
        approved=st.sampled_from((None, True, False)),
        end=st.sampled_from((None, None, *CloseReason)),
        sender=st.sampled_from((None, "knows", "does not know")),
        worker=workers,
        lapses=st.sampled_from((False, False, True)),
    )
    def ask_and_decide(
        self,
        key: str,
        asker: str,
        approved: bool | None,
        end: CloseReason | None,
        sender: str | None,
        worker: str,
        lapses: bool,
    ) -> None:
        """The whole way of an approval, or a part of it, more often than chance finds it."""
        self.ask(key, asker, rerun=False, again=False)
        if approved is not None:
            self.decide(key, approved, late=False)
        if lapses:
            self._do("lapse", key=key)
        if end is not None:
            self.close(key, 0, end)
        if sender == "knows":
            self.send_approved(key, asker)
        elif sender is not None:
            self.open({key}, asker, rerun=False, over=False)
        self.claim_what_waits(key, worker)

    @rule(key=keys)
    def lapse(self, key: str) -> None:
        """The time of an approval passes, decided or not."""
        self._do("lapse", key=key)

    @rule(key=keys)
    def confirm(self, key: str) -> None:
        """Only whoever knows that nobody has sent it says so."""
        if not self.histories[key].was_sent:
            self._do("confirm", key=key)

    @rule(key=keys, how=st.sampled_from(("deleted", "emptied", "junk")))
    def spoil(self, key: str, how: str) -> None:
        """By somebody who can write to the server: as if its time were over."""
        self.real.spoil(key, how)
        record = self.model.records.pop(key, None)
        history = self.histories[key]
        history.outcome = None
        if record is not None and record.rerun:
            history.starts_here = history.starts = 0

    @rule(key=keys)
    def copy_record(self, key: str) -> None:
        """By the same, for later."""
        if key in self.model.records:
            self.real.copy_record(key)
            self._copies[key] = copy.deepcopy(self.model.records[key])

    @rule(key=keys)
    def put_back(self, key: str) -> None:
        """What was copied is there again, whatever has happened since."""
        if key in self._copies:
            self.real.put_back(key)
            self.model.records[key] = copy.deepcopy(self._copies[key])
            self.histories[key].is_spoilt = True

    @rule(
        key=keys,
        asker=askers,
        worker=workers,
        is_approved=st.booleans(),
        end=st.sampled_from((None, *CloseReason)),
    )
    def put_back_after_its_end(
        self, key: str, asker: str, worker: str, is_approved: bool, end: CloseReason | None
    ) -> None:
        """As it was when it could be claimed; it has run, or was closed, since."""
        if is_approved:
            self.ask(key, asker, rerun=False, again=False)
            self.decide(key, approved=True, late=False)
            self.send_approved(key, asker)
        else:
            self.open({key}, asker, rerun=False, over=False)
        self.copy_record(key)
        if end is not None:
            self.close(key, 0, end)
        else:
            self.claim_what_waits(key, worker)
            self.settle(key, asker)
        self.put_back(key)
        self.claim_what_waits(key, worker)
        self.close(key, 0, CloseReason.CANCEL)

    @rule(key=keys)
    def end_record(self, key: str) -> None:
        """The time that an outcome is kept is over; what may not run twice is remembered."""
        record = self.model.records.get(key)
        if record is None or record.outcome is None:
            return
        is_over = self.model.marks.get(key) == "ended"
        self.real.end_record(key, is_over)
        del self.model.records[key]
        if is_over:
            self.model.marks[key] = "over"
        self.histories[key].outcome = None
        if record.rerun:  # nothing of it is remembered, and asking again begins anew
            self.histories[key].starts_here = 0

    @rule(key=keys, asker=askers, anew=st.booleans())
    def refuse(self, key: str, asker: str, anew: bool) -> None:
        """By a dispatcher that has not sent it, and accepted it in this epoch."""
        self._do(
            "close",
            key=key,
            nonce=self._nonce(),
            epoch=self.model.epoch,
            reply=asker,
            end=CloseReason.REFUSED,
            bodies=self._bodies(),
            unsent=True,
            anew=anew,
        )

    @rule(key=keys, attempt=attempts, worker=workers)
    def claim(self, key: str, attempt: int, worker: str) -> None:
        """By a worker that has read the switches once, and by one that looks at none."""
        record = self.model.records.get(key)
        self._do(
            "claim",
            key=key,
            attempt=attempt,
            nonce=self._nonce(),
            worker=worker,
            read=self._read.get(worker),
            approved=record is not None and bool(record.approval),
        )

    @rule(worker=workers)
    def read_switches(self, worker: str) -> None:
        """By a worker, whose claims are good until one is set."""
        self._read[worker] = self.model.changes
        self.real.read_switches(self.model.changes)

    @rule(field=st.sampled_from(("s", "t")), knows=st.booleans())
    def switch(self, field: str, knows: bool) -> None:
        """By an operator, who knows the state it has now or does not."""
        before = self.model.switches.get(field, b"") if knows else self._word("other")
        self._do("switch", field=field, before=before, after=self._word("switch"))

    @rule(key=keys, worker=workers)
    def claim_what_waits(self, key: str, worker: str) -> None:
        """More often than chance finds it."""
        record = self.model.records.get(key)
        if record is not None:
            self.claim(key, record.attempt, worker)

    @rule(key=keys, asker=askers)
    def settle(self, key: str, asker: str) -> None:
        body = self._word("done")
        self._do("settle", key=key, nonce=self._nonce(), reply=asker, body=body)

    @rule(asker=askers, alive=st.booleans())
    def live(self, asker: str, alive: bool) -> None:
        """A dispatcher starts, or dies."""
        self.real.live(asker, alive)
        (self.model.alive.add if alive else self.model.alive.discard)(asker)

    @rule(key=keys, who=st.integers(0, 2))
    def lose_asker(self, key: str, who: int) -> None:
        """One that asked dies."""
        if asked := list(self.histories[key].asked):
            self.live(asked[-1 - who % len(asked)], alive=False)

    @rule(seconds=st.sampled_from((-HALF_AN_HOUR, 0.0, HALF_AN_HOUR)))
    def jump(self, seconds: float) -> None:
        """The server's clock is set, by an hour at most; nothing that is decided rests on it."""
        if self.real.jump(seconds):
            marks = self.model.marks
            self.model.marks = {key: mark for key, mark in marks.items() if mark != "refused"}

    @rule(
        key=keys,
        asker=askers,
        worker=workers,
        seconds=st.sampled_from((-HALF_AN_HOUR, HALF_AN_HOUR)),
    )
    def jump_meanwhile(self, key: str, asker: str, worker: str, seconds: float) -> None:
        """While a call waits to be started."""
        self.open({key}, asker, rerun=False, over=False)
        self.jump(seconds)
        self.claim_what_waits(key, worker)

    @rule(key=keys)
    def hand_over(self, key: str) -> None:
        """Answer the call with a handle."""
        self._do("hand_over", key=key)

    @rule(key=keys, who=st.integers(0, 2), end=st.sampled_from(CloseReason))
    def close(self, key: str, who: int, end: CloseReason) -> None:
        """By somebody who asked, with the epoch it was told."""
        asked = self.histories[key].asked
        if not asked:
            return
        asker = list(asked)[-1 - who % len(asked)]
        self._do(
            "close",
            key=key,
            nonce=self._nonce(),
            epoch=asked[asker],
            reply=asker,
            end=end,
            bodies=self._bodies(),
        )

    @rule(key=keys, asker=askers, worker=workers, is_claimed=st.booleans())
    def deny(self, key: str, asker: str, worker: str, is_claimed: bool) -> None:
        """A call that was sent may not be started any more; a worker may have been faster."""
        self.open({key}, asker, rerun=True, over=False)
        if is_claimed:
            self.claim_what_waits(key, worker)
        self.close(key, 0, CloseReason.DENIED)

    @rule(
        key=keys,
        attempt=attempts,
        who=st.integers(0, 2),
        lost=st.sampled_from(("", *WORKERS)),
        had_time=st.booleans(),
    )
    def recover(self, key: str, attempt: int, who: int, lost: str, had_time: bool) -> None:
        """`had_time` is said only when every worker has renewed its claims: see `trouble`."""
        if had_time:
            self.renew_all()
        asked = self.histories[key].asked
        if not asked:
            return
        asker = list(asked)[-1 - who % len(asked)]
        bodies = {word: self._word(word) for word in ("message", "next message", "lost")}
        if self._number() % 4 == 0:
            bodies["next message"] = b""  # a switch denies it
        self._do(
            "recover",
            key=key,
            nonce=self._nonce(),
            lost=lost,
            attempt=attempt,
            had_time=had_time,
            reply=asker,
            epoch=asked[asker],
            bodies=bodies,
        )

    @rule()
    def renew_all(self) -> None:
        """Every worker says which calls it has and has not given back."""
        for nonce, (key, held) in list(self._claims.items()):
            if held:
                attempt, worker = self._held[nonce]
                rerun = self._rerun[key]
                self._do("renew", key=key, attempt=attempt, nonce=nonce, worker=worker, rerun=rerun)

    @precondition(lambda self: self._claims)
    @rule(data=st.data(), entered=st.booleans())
    def release(self, data: st.DataObject, entered: bool) -> None:
        """By the worker of a claim, which may have lost it; only a read is given back entered."""
        self._release(data.draw(st.sampled_from(sorted(self._claims))), entered)

    def _release(self, nonce: str, entered: bool) -> None:
        key, _ = self._claims[nonce]
        self._do(
            "release",
            key=key,
            nonce=nonce,
            entered=entered and self._rerun[key],
            notice=self._word("notice"),
            too_often=self._word("often"),
        )

    @rule(key=keys, worker=workers, times=st.integers(1, 5))
    def give_back(self, key: str, worker: str, times: int) -> None:
        """A worker claims a call and gives it back, again and again."""
        for _ in range(times):
            self.claim_what_waits(key, worker)
            record = self.model.records.get(key)
            if record is None or not record.claimed:
                return
            self._release(record.claimed, entered=False)

    @rule(key=keys, asker=askers, worker=workers, times=st.integers(1, 4))
    def lose_worker(self, key: str, asker: str, worker: str, times: int) -> None:
        """A worker claims a call and is lost with it, and so is the next."""
        self.open({key}, asker, rerun=True, over=False)
        for _ in range(times):
            self.claim_what_waits(key, worker)
            record = self.model.records.get(key)
            self.recover(key, record.attempt if record else 1, 0, worker, had_time=False)

    @precondition(lambda self: self._done)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A reply was lost, or a step comes late: the very same once more."""
        back = data.draw(st.integers(1, min(len(self._done), 6)))
        name, arguments = self._done[-back]
        self._do(name, **arguments)

    @rule(key=keys)
    def crowd(self, key: str) -> None:
        """More ask for one call than are told."""
        for asker in ASKERS:
            self.open({key}, asker, rerun=False, over=False)

    @precondition(lambda self: self._done)
    @rule()
    def repeat_the_last(self) -> None:
        """The commonest repeat of all."""
        name, arguments = self._done[-1]
        self._do(name, **arguments)

    @rule(what=st.sampled_from(("epoch", "data", "replicate", "fail over", "fail back")))
    def trouble(self, what: str) -> None:
        """What happens to the server."""
        match what:
            case "epoch":
                self.real.change_epoch(self._word("epoch").decode())
            case "data":
                self.real.lose_data()
                self.model.records.clear()
                self.model.marks.clear()
                self.model.switches.clear()
                self.real.replicate()  # a replica loses them too
                self._replica = ({}, {})
            case "replicate":
                self.real.replicate()
                self._replica = copy.deepcopy((self.model.records, self.model.marks))
                return
            case "fail over":  # to a replica that lags
                self.real.fail_over(self._word("epoch").decode())
                self.model.records, self.model.marks = copy.deepcopy(self._replica)
            case "fail back":  # to the old primary, which has taken over what the replica had
                self.real.fail_over(self._word("epoch").decode())
                self.model.records, self.model.marks = copy.deepcopy(self._replica)
                self._new_epoch()
                self.real.replicate()
                self._replica = copy.deepcopy((self.model.records, self.model.marks))
                self.real.fail_over(self._word("epoch").decode())
        self._new_epoch()

    # What must hold

    @invariant()
    def the_same_was_sent(self) -> None:
        """To every dispatcher, worker and queue: each attached one is told once."""
        for name, sent in self.model.sent.items():
            assert self.real.sent(name) == sent, name

    def teardown(self) -> None:
        self.real.stop()

    def _do(self, name: str, **arguments: Any) -> None:
        type(self).steps_taken += 1
        before, marks = set(self.model.records), set(self.model.marks)
        anew = [key for key, record in self.model.records.items() if record.anew]
        expected = getattr(self.model, name)(**arguments)
        if self.model.is_early:  # for some seconds more
            self.real.await_reports(is_early=True)
        answer = getattr(self.real, name)(**arguments)
        assert answer == expected, f"{name} {arguments}: {answer!r}, not {expected!r}"
        self._done.append((name, arguments))
        for key in anew:  # it was refused for a time, and may be asked again or cancelled
            if key not in self.model.records or not self.model.records[key].anew:
                self.histories[key].outcome = None
        match name:
            case "open":
                self._after_open(arguments, answer, before, marks)
            case "ask":
                self._after_ask(arguments, answer)
            case "claim":
                self._after_claim(arguments, answer)
            case "settle" if answer == "first":
                self._check_outcome(arguments["key"], arguments["body"])
            case "release":
                self._after_release(arguments, answer)
            case "close" | "recover":
                self._check_outcome(arguments["key"], answer)

    def _after_open(
        self, arguments: dict[str, Any], answers: list[bytes], before: set[str], marks: set[str]
    ) -> None:
        for key, answer in zip(arguments["keys"], answers, strict=True):
            history = self.histories[key]
            history.was_sent = history.was_sent or arguments.get("approved", False)
            if answer == b"ran":
                was_approved = arguments.get("approved", False)  # so it had a record
                is_read = self._rerun[key] and arguments["rerun"]  # a repeated step may be older
                may_run = is_read and history.asked and not was_approved
                assert not may_run or key in marks, f"{key} may run twice"
                history.outcome = None  # it was refused, if it had one, and is asked anew
                continue
            if answer == b"new" and self.model.records[key].opened == arguments["nonce"]:
                self._rerun[key] = self.model.records[key].rerun
                if key not in before or history.outcome is not None:  # refused, and asked anew
                    history.starts, history.outcome = 0, None
            history.asked.setdefault(arguments["reply"], self.model.epoch)
            self._check_outcome(key, answer)

    def _after_ask(self, arguments: dict[str, Any], answer: tuple[str, str, str]) -> None:
        key, history = arguments["key"], self.histories[arguments["key"]]
        record = self.model.records.get(key)
        if answer[0] == "ran":
            history.outcome = None
            return
        if record is not None and record.opened == arguments["nonce"]:
            self._rerun[key] = record.rerun
            history.starts, history.outcome, history.was_sent = 0, None, False
        history.asked.setdefault(arguments["reply"], self.model.epoch)

    def _after_claim(self, arguments: dict[str, Any], answer: str) -> None:
        nonce, key = arguments["nonce"], arguments["key"]
        if answer != "won" or nonce in self._claims:
            return
        self._claims[nonce] = (key, True)
        self._held[nonce] = (arguments["attempt"], arguments["worker"])
        history = self.histories[key]
        history.starts += 1
        history.starts_here += 1
        assert history.starts_here <= 1 or self._rerun[key], f"{key} was started twice"
        approval = self.model.records[key].approval
        assert approval in ("", "approved"), f"{key} was started, and is {approval}"

    def _after_release(self, arguments: dict[str, Any], answer: str) -> None:
        key, held = self._claims[arguments["nonce"]]
        if held and answer == "released" and not arguments["entered"]:
            self._claims[arguments["nonce"]] = (key, False)
            history = self.histories[key]
            history.starts = max(0, history.starts - 1)  # it may be of a record that was lost
            history.starts_here = max(0, history.starts_here - 1)

    def _check_outcome(self, key: str, answer: bytes) -> None:
        """The first outcome stays, and `no` is only said of what was never started."""
        record = self.model.records.get(key)
        if record is None or record.outcome is None or answer != record.outcome:
            return
        history = self.histories[key]
        if history.is_spoilt:
            return
        assert history.outcome in (None, answer), f"{key}: {history.outcome!r}, then {answer!r}"
        history.outcome = answer
        if answer.startswith(b"no:"):
            # A dispatcher that never sent it cannot know what a server forgot before it was asked.
            starts = history.starts_here if record.never_sent else history.starts
            assert not starts, f"{key} was started"

    @rule(is_early=st.booleans())
    def await_reports(self, is_early: bool) -> None:
        """Of processes that come from another epoch."""
        self.model.is_early = is_early
        self.real.await_reports(is_early)

    def _new_epoch(self) -> None:
        self.model.epoch = self.real.epoch
        self.real.await_reports(is_early=self.model.is_early)
        self.model.changes += 1
        for key, history in self.histories.items():
            record = self.model.records.get(key)
            history.starts_here = 0
            history.outcome = record.outcome if record is not None else None

    def _kind(self, names: list[str], rerun: bool) -> bool:
        """The same call is the same tool: once asked, it stays a read or does not."""
        known = [self._rerun[key] for key in names if self.histories[key].asked]
        return known[0] if known else rerun

    def _bodies(self) -> dict[str, bytes]:
        return {word: self._word(word) for word in ("no", "timeout", "unknown", "cancel")}

    def _number(self) -> int:
        return next(self._words)

    def _nonce(self) -> str:
        return f"n{self._number()}"

    def _word(self, word: str) -> bytes:
        return f"{word}:{self._number()}".encode()
