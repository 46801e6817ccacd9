"""An observer that writes every moment of a worker into the file that TEST_MOMENTS names."""

import json
import os
from typing import Any

from tests.fleets.blocking import block_the_loop, die_writing, echo
from toolpool import WorkerObserver, tool
from toolpool.contract.observer_dispatch import moments

__all__ = ["block_the_loop", "die_writing", "echo"]


@tool
async def fails() -> None:
    """Fail."""
    raise RuntimeError("secret-424242")


class Writing(WorkerObserver):
    """One line a moment: its name, and what it was told."""


def _writing(moment: str) -> Any:
    def write(self: Writing, *facts: Any) -> None:
        told = [fact if isinstance(fact, str | float) else repr(fact) for fact in facts]
        with open(os.environ["TEST_MOMENTS"], "a") as file:
            file.write(json.dumps([moment, os.getpid(), *told]) + "\n")

    return write


for _moment in moments(WorkerObserver):
    if _moment == "content":
        continue  # the one with values in it, for whoever asks for them
    setattr(Writing, _moment, _writing(_moment))


class Raising(WorkerObserver):
    """Fails at every call."""

    def started(self, call: Any) -> None:
        raise ValueError(call.call_id)


def broken() -> WorkerObserver:
    """Makes no observer."""
    raise OSError("no such thing")


nothing = "a string"
