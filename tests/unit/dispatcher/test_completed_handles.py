"""The handles of ended calls, as hosts follow them."""

import pytest

from toolpool.dispatcher import completed_handles
from toolpool.dispatcher.completed_handles import CompletedHandles


def test_a_handle_is_told_once() -> None:
    """A `task_cancel` after the end adopts the call, which has ended then, once more."""
    completed = CompletedHandles()
    followed = completed.follow("s")
    for handle in ("a", "b", "a", "b", "a"):
        completed.add(handle, "s")
    assert [followed.get_nowait() for _ in range(followed.qsize())] == ["a", "b"]


def test_only_so_many_handles_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completed_handles, "_HANDLES_REMEMBERED", 2)
    completed = CompletedHandles()
    followed = completed.follow("s")
    for handle in ("a", "b", "c", "a"):
        completed.add(handle, "s")
    assert followed.qsize() == 4


def test_every_follower_is_told_of_the_end() -> None:
    completed = CompletedHandles()
    followed = [completed.follow(session) for session in ("s", None)]
    completed.close()
    completed.close()
    assert [inbox.get_nowait() for inbox in followed] == ["", ""]
