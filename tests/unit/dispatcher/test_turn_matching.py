"""Which noted turn is a response's of a history (R50): only what is certain."""

import pytest

from toolpool.dispatcher.formats.call_ids import is_unique
from toolpool.dispatcher.transports.base import TurnNote
from toolpool.dispatcher.turn_matching import Notes, ResponseName


def turns(noted: str, history: str, *, distinct: str = "") -> list[str | None]:
    """Notes and a history in letters: `A` is a response, `a` says that the last `A` was told.

    In a history a capital is a response without an answer. Turns are numbered from 1.
    """
    notes: list[TurnNote] = []
    for letter in noted:
        name = letter.upper()
        if letter.isupper():
            count = sum(note.name == name for note in notes)
            notes.append(TurnNote("s", f"{name}{count + 1}", name))
        else:
            turn = [note.turn for note in notes if note.name == name][-1]
            notes.append(TurnNote("s", turn, is_answered=True))
    said = [
        ResponseName(each.upper(), each.upper() in distinct, each.isupper()) for each in history
    ]
    return [note and note.turn for note in Notes(notes).of(said)]


@pytest.mark.parametrize(
    ("noted", "history", "expected"),
    [
        ("", "A", [None]),
        ("A", "A", ["A1"]),  # the host died in it
        ("Aa", "A", [None]),  # it may be another, of which nothing is noted
        ("AaA", "aA", [None, "A2"]),
        ("AaA", "A", ["A2"]),  # the history has lost the first
        ("AaAaA", "aA", [None, "A3"]),
        ("AaAa", "aA", [None, None]),  # the last one was never dispatched, and the first is cut
        ("AB", "AB", ["A1", "B1"]),  # two open turns
        ("AB", "A", [None]),  # the session has gone on without it
        ("ABb", "Ab", ["A1", None]),
        ("AXx", "xA", [None, None]),  # it was dropped, and said again later
        ("AA", "A", [None]),  # which of the two
        ("AA", "AA", ["A1", "A2"]),
        ("A", "AA", [None, None]),
        ("AaB", "aB", [None, "B1"]),
    ],
)
def test_outcomes_of_others_are_known_before_their_replies(
    noted: str, history: str, expected: list[str | None]
) -> None:
    assert turns(noted, history) == expected


@pytest.mark.parametrize(
    ("noted", "history", "expected"),
    [
        ("A", "A", ["A1"]),
        ("Aa", "A", ["A1"]),
        ("AXx", "xA", [None, "A1"]),
        ("A", "aA", ["A1", None]),
        ("AA", "A", [None]),
        ("AA", "aA", ["A1", "A2"]),
    ],
)
def test_what_no_other_is_like_is_known(
    noted: str, history: str, expected: list[str | None]
) -> None:
    assert turns(noted, history, distinct="A") == expected


def test_a_turn_that_is_asked_for_again_has_no_answers_yet() -> None:
    note = TurnNote("s", "t", "A")
    told = TurnNote("s", "t", is_answered=True)
    [known] = Notes([note, told, note]).of([ResponseName("A", False, True)])
    assert known == note
    assert Notes([note, told, note, told]).of([ResponseName("A", False, True)]) == [None]


def test_where_a_note_was_dropped_what_others_are_like_is_unknown() -> None:
    notes = [TurnNote("s", "t", "A", "refusal"), TurnNote("s", "")]
    like_others, distinct = ResponseName("A", False, True), ResponseName("A", True, True)
    assert Notes(notes).of([like_others]) == [None]
    assert Notes(notes).stop_of_equals(like_others, [like_others]) is None
    assert Notes(notes).of([distinct]) == notes[:1]


@pytest.mark.parametrize(
    "id",
    [
        "toolu_01A09q90qw90lq917835lq9",
        "srvtoolu_01Jwxyzy3LFVwA6crNBSM3XD",
        "toolu_bdrk_01VmA9jmWpws4HgPqjhtGo6i",
        "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q",
        "call_9pw1qnYScqvGrCH58HWCvFH6",
        "call_00_6edlnw3Z1MgeMfey687g8451",
        "chatcmpl-tool-3f2b8a1096c84d0f8e",
        "3f2b8a10-96c8-4d0f-8e1a-2b3c4d5e6f70",
        "function-call-12345678901234567890",
        "VvvODy9mT",
        "mcpr_68a1f0c2d3e4b5a69788123456789abc",
        "sevt_011CZkZGOp0iBcp4kaQSihUm",
    ],
)
def test_ids_that_providers_make_at_random_are_unique(id: str) -> None:
    assert is_unique(id)


@pytest.mark.parametrize(
    "id",
    [
        None,
        7,
        "",
        "0",
        "call_0",
        "call_12",
        "toolu_1",
        "mcpr_1",
        "sevt_00000000000000000000001",
        "functions.search2web4all:0",
        "call00000001",
        "call_0000000001",
        "call_00000000000000000000001",
        "0000000000000001",
        "getWeatherForecast_1",
        "turn-0a1b2c3d4e5f-0",
        "readFile1",
        "callNum10",
    ],
)
def test_ids_that_may_be_given_again_are_not_unique(id: object) -> None:
    assert not is_unique(id)
