"""What a host may name a session, a turn and its tools, and how long it may want to wait (R62)."""

from typing import Any

import pytest

from toolpool import Settings
from toolpool.dispatcher.turn_options import patience, require_name, tool_names, turn_options


@pytest.mark.parametrize("name", [None, "s", "x" * 256, "会话", "\U0001f600"])
def test_names(name: Any) -> None:
    require_name("session", name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "session must not be empty"),
        ("x" * 257, "session has 257 characters, at most 256"),
        ("x" * 3_000_000, "session has 3000000 characters"),
        ("a\ud800", "session is not valid Unicode"),
        (5, "session must be a string, not int"),
        (b"s", "session must be a string, not bytes"),
    ],
)
def test_no_names(name: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        require_name("session", name)
    assert len(str(raised.value)) < 200


def test_tool_names() -> None:
    assert tool_names("tools", None) is None
    assert tool_names("tools", ["a", "b"]) == {"a", "b"}
    assert tool_names("tools", {"a": 1}) == {"a"}
    for wrong in ("search", 5, [5], [print], [["a"]]):
        with pytest.raises(ValueError, match="tool"):
            tool_names("tools", wrong)


def asked(**given: Any) -> Any:
    plain: dict[str, Any] = {"context": None, "timeout": None, "wait": None}
    plain |= {"settings": Settings(max_argument_bytes=100)}
    return turn_options("t", "s", **(plain | given))


def test_the_host_may_change_its_context_afterwards() -> None:
    context = {"user": {"role": "admin"}}
    options = asked(context=context)
    context["user"]["role"] = "guest"
    assert options.context == {"user": {"role": "admin"}}


@pytest.mark.parametrize("times", [{"timeout": 1}, {"wait": 0}, {"wait": float("inf")}])
def test_times(times: dict[str, Any]) -> None:
    assert asked(**times).session == "s"


@pytest.mark.parametrize("wrong", [-1, float("nan"), "5", True, [1]])
@pytest.mark.parametrize("name", ["timeout", "wait"])
def test_no_times(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number of seconds"):
        asked(**{name: wrong})
    with pytest.raises(ValueError, match="wait must be"):
        patience(wrong)


@pytest.mark.parametrize("wrong", [1e16, 1e300, 10**400])
def test_no_time_that_a_server_could_keep(wrong: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0 and at most"):
        asked(timeout=wrong)
    assert patience(wrong) == float("inf")


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        [("a", 1)],
        5,
        {"a": object()},
        {"a": "b" * 200},
        {1: 2},
        {"a": float("nan")},
        {"a": [{"b": float("inf")}]},
        {"a": {(1, 2): 3}},
        {"a": {1, 2}},
        {"a": b"bytes"},
    ],
)
def test_no_context(wrong: Any) -> None:
    with pytest.raises(ValueError, match="context"):
        asked(context=wrong)


@pytest.mark.parametrize("wrong", [None, "yes", 1, 0.5, [], {}])
def test_again_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(ValueError, match="again must be True or False"):
        asked(again=wrong)
