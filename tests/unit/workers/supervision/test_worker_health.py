"""When a worker is ended, when another takes its place, and when it is left alone: no I/O."""

from toolpool.workers.supervision.supervisor_link import LoopTurned, MainTurned
from toolpool.workers.supervision.worker_health import Action, WorkerHealth

STALL = 10.0
QUEUE = "toolpool.default.loop"


def watch(**options: bool) -> WorkerHealth:
    return WorkerHealth(started_at=0.0, stall_seconds=STALL, loop_seconds=10.0, **options)


def turns(watching: WorkerHealth, now: float, *, free: int = 4, consumed: int = 7) -> None:
    watching.receive(LoopTurned(consumed=consumed, free={QUEUE: free}), now)
    watching.receive(MainTurned(), now)


def actions(
    watching: WorkerHealth, seconds: range, depth: int | None = 3, **said: int
) -> list[Action]:
    """What is decided over a time in which both loops turn."""
    depths = None if depth is None else {QUEUE: depth}
    found = []
    for second in seconds:
        turns(watching, float(second), **said)
        verdict = watching.judge(depths, float(second))
        found += [verdict.action] if verdict else []
    return found


def test_a_worker_that_says_nothing_is_ended() -> None:
    watching = watch()
    turns(watching, 1.0)
    assert watching.judge({}, 5.0) is None
    assert watching.judge({}, 10.0) is None
    verdict = watching.judge({}, 11.5)
    assert verdict is not None and verdict.action is Action.END


def test_also_while_the_server_does_not_answer() -> None:
    watching = watch()
    turns(watching, 1.0)
    assert watching.judge(None, 8.0) is None
    assert watching.judge(None, 11.5) is not None


def test_a_blocked_event_loop_is_left_to_the_worker_that_can_name_the_tool() -> None:
    watching = watch()
    watching.receive(LoopTurned(), 1.0)
    for second in range(1, 21):
        watching.receive(MainTurned(), float(second))
        assert watching.judge({}, float(second)) is None
    watching.receive(MainTurned(), 22.0)
    verdict = watching.judge({}, 22.0)
    assert verdict is not None and verdict.action is Action.END


def test_a_worker_that_starts_has_time_to_load_its_tools() -> None:
    watching = watch()
    assert [watching.judge({}, float(second)) for second in range(0, 90, 5)] == [None] * 18
    verdict = watching.judge({}, 91.0)
    assert verdict is not None and verdict.action is Action.END


def test_a_main_thread_that_hangs_is_replaced_and_its_calls_go_on() -> None:
    watching = watch()
    turns(watching, 0.0)
    for second in range(1, 21):
        watching.receive(LoopTurned(), float(second))
        assert watching.judge({}, float(second)) is None
    verdict = watching.judge({}, 21.0)
    assert verdict is not None and verdict.action is Action.REPLACE


def test_but_not_while_the_server_it_may_wait_for_is_away() -> None:
    watching = watch()
    turns(watching, 0.0)
    for second in range(1, 100):
        watching.receive(LoopTurned(), float(second))
        assert watching.judge(None, float(second)) is None
    for second in range(100, 109):
        watching.receive(LoopTurned(), float(second))
        assert watching.judge({}, float(second)) is None


def test_messages_left_lying_for_long_with_slots_free_have_it_replaced() -> None:
    assert actions(watch(), range(31)) == []
    assert set(actions(watch(), range(35))) == {Action.REPLACE}


def test_a_long_backlog_is_worked_off_in_peace() -> None:
    watching = watch()
    for second in range(200):
        assert actions(watching, range(second, second + 1), 5000, consumed=second) == []


def test_full_slots_an_empty_queue_or_no_server_are_no_fault_of_the_worker() -> None:
    assert actions(watch(), range(200), 5000, free=0) == []
    assert actions(watch(), range(200), 0) == []
    assert actions(watch(), range(200), None) == []


def test_a_broker_that_is_not_our_server_cannot_be_looked_into() -> None:
    watching = watch(knows_depths=False)
    for second in range(200):  # and may have no loop that says anything
        watching.receive(LoopTurned(free={QUEUE: 4}), float(second))
        assert watching.judge(None, float(second)) is None


def test_a_worn_out_worker_is_replaced_at_once() -> None:
    watching = watch()
    watching.receive(LoopTurned(worn_out=True), 1.0)
    verdict = watching.judge(None, 1.0)
    assert verdict is not None and verdict.action is Action.REPLACE


def test_what_is_leaving_is_ended_only_when_it_is_frozen() -> None:
    watching = watch()
    for second in range(200):  # its main thread waits for its calls
        watching.receive(LoopTurned(worn_out=True), float(second))
        assert watching.judge({QUEUE: 3}, float(second), is_leaving=True) is None
    assert watching.judge({}, 209.0, is_leaving=True) is None
    verdict = watching.judge({}, 210.0, is_leaving=True)
    assert verdict is not None and verdict.action is Action.END


def test_a_machine_that_stood_still_ends_no_worker() -> None:
    watching = watch()
    turns(watching, 0.0)
    assert watching.judge({}, 1.0) is None
    assert watching.judge({}, 3600.0) is None
    turns(watching, 3601.0)
    assert watching.judge({}, 3601.0) is None


def test_a_worker_whose_broker_was_away_from_the_start_is_alive_for_probes() -> None:
    """Its main loop has not said anything yet, and nothing says that it should have."""
    watching = watch(knows_depths=False)
    for second in range(200):
        watching.receive(LoopTurned(free={QUEUE: 4}), float(second))
        assert watching.fault(float(second)) == ""
