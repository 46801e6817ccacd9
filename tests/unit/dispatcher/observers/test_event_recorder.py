"""What is noted of each moment, and the events that readers make of it (R41)."""

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.facts import call_ended, call_facts
from toolpool.contract.event_entries import BEGINNING, EventEntry, Position
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.events import events_of
from toolpool.dispatcher.observer import CallFacts, Ended, Loop, Observers, Progressed
from toolpool.dispatcher.observers.event_recorder import EventRecorder


class Noted:
    """Notes, and the events that a reader makes of them."""

    def __init__(self) -> None:
        self.notes: list[EventEntry] = []
        self.observers = Observers()
        self.observers.add(EventRecorder(self.notes.append, dict))

    def events(self, after: Position = BEGINNING) -> list[tuple[str, str | None, int]]:
        """Kind, call and number of each event after a place."""
        place, found = Position(1, 0), []
        for note in self.notes:
            place = Position(1, place.number + note.events)
            for event in events_of(note, place, "here", after=after):
                number = Position.parse(event.bookmark).number
                found.append((event.kind, event.call_id, number))
        return found


@pytest.mark.parametrize(
    ("end", "kinds"),
    [
        (call_ended(), ["tool:start", "tool:end", "tool_executed"]),
        (call_ended(shared="joined"), ["tool:start", "tool:end"]),
        (call_ended(Code.RAISED), ["tool:start", "tool:error", "error", "tool_executed"]),
        (call_ended(Code.RAISED, shared="joined"), ["tool:start", "tool:error", "error"]),
        (
            call_ended(Code.WORKER_LOST, executed=Executed.UNKNOWN),
            ["tool:start", "tool:error", "error"],
        ),
        (call_ended(Code.EXPIRED, executed=Executed.NO), ["tool:start", "tool:error", "error"]),
    ],
)
async def test_one_note_tells_a_start_and_an_end_that_came_together(
    end: Ended, kinds: list[str]
) -> None:
    noted, one = Noted(), call_facts(call_id="1")
    noted.observers.notify("started", one, "w")
    noted.observers.notify("ended", one, end)
    await asyncio.sleep(0)
    assert len(noted.notes) == 1
    assert noted.events() == [(kind, "1", number) for number, kind in enumerate(kinds, 1)]
    rest = [(kind, "1", number) for number, kind in enumerate(kinds, 1)][1:]
    assert noted.events(after=Position(1, 1)) == rest, "and each event is resumed after"


async def test_the_start_of_a_call_that_goes_on_is_noted_at_once() -> None:
    noted, one = Noted(), call_facts(call_id="1")
    noted.observers.notify("started", one, "w")
    await asyncio.sleep(0)
    assert [kind for kind, *_ in noted.events()] == ["tool:start"]
    noted.observers.notify("ended", one, call_ended())
    await asyncio.sleep(0)
    assert [kind for kind, *_ in noted.events()] == ["tool:start", "tool:end", "tool_executed"]


Tells = Callable[[Observers, CallFacts, CallFacts], None]


def another_starts(observers: Observers, one: CallFacts, other: CallFacts) -> None:
    observers.notify("started", other, "w")


def it_progresses(observers: Observers, one: CallFacts, other: CallFacts) -> None:
    observers.notify("progressed", one, Progressed(done=1.0, total=2.0, message=None))


def another_ends(observers: Observers, one: CallFacts, other: CallFacts) -> None:
    observers.notify("ended", other, call_ended())


@pytest.mark.parametrize("between", [another_starts, it_progresses, another_ends])
async def test_what_comes_between_a_start_and_an_end_stays_between_them(between: Tells) -> None:
    noted, one, other = Noted(), call_facts(call_id="1"), call_facts(call_id="2")
    noted.observers.notify("started", one, "w")
    between(noted.observers, one, other)
    noted.observers.notify("ended", one, call_ended())
    await asyncio.sleep(0)
    found = [(kind, name) for kind, name, _ in noted.events()]
    assert found[0] == ("tool:start", "1")
    assert found[-2:] == [("tool:end", "1"), ("tool_executed", "1")]
    assert len(found) > 3
    assert [number for *_, number in noted.events()] == [*range(1, len(found) + 1)]


async def test_the_loop_guard_reports_a_call_with_its_turn() -> None:
    noted = Noted()
    caught = Loop(session="s", tool="t", call_id="c", failures=3, alternates=False, turn="m")
    noted.observers.notify("looped", caught)
    await asyncio.sleep(0)
    [note] = noted.notes
    assert (note.kind, note.session, note.turn, note.call_id) == ("loop", "s", "m", "c")
