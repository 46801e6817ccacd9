"""Words that make a step repeatable are nobody else's, and what carries one goes back."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from toolpool.contract.errors import CommandRejected, ServerUnavailable
from toolpool.contract.ledger.answers import CallState, LedgerAnswer, decode_answers
from toolpool.contract.ledger.lua_scripts import CommandSend, SeenEpochs, new_nonce, send


def test_a_forked_host_has_words_of_its_own() -> None:
    """As web servers fork it: it would read its parent's calls."""
    known = {new_nonce() for _ in range(3)}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_nonce().encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert said not in known | {new_nonce() for _ in range(3)}
    assert "." not in said


class Pool:
    """One connection, whose answer may be an exception; notes what becomes of it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.said: list[str] = []

    async def get_connection(self) -> "Pool":
        return self

    async def send_command(self, *command: Any) -> None:
        self.said.append("sent")

    async def read_response(self, timeout: float | None) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    async def disconnect(self, *, nowait: bool) -> None:
        self.said.append("disconnected")

    async def release(self, connection: Any) -> None:
        self.said.append("released")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"OK", ["sent", "released"]),
        (ResponseError("no"), ["sent", "released"]),  # an answer: the connection is as good
        (ConnectionError("cut"), ["sent", "disconnected", "released"]),
        (KeyboardInterrupt(), ["sent", "disconnected", "released"]),
    ],
    ids=["answered", "refused", "cut", "interrupted"],
)
async def test_a_connection_goes_back_to_the_pool_whatever_happens(
    answer: Any, said: list[str]
) -> None:
    """Else a dispatcher runs out of them."""
    pool, attempt = Pool(answer), CommandSend()
    client: Any = SimpleNamespace(connection_pool=pool)
    if isinstance(answer, BaseException):
        raised = {ResponseError: CommandRejected, ConnectionError: ServerUnavailable}
        with pytest.raises(raised.get(type(answer), type(answer))):
            await send(client, ["PING"], attempt)
    else:
        assert await send(client, ["PING"], attempt) == answer
    assert pool.said == said
    assert attempt.sent


@pytest.mark.parametrize("attempt", [b"", b"x", b"-1", b"9" * 5000])
def test_an_unsigned_outcome_is_no_attempt(attempt: bytes) -> None:
    answer = b"again " + attempt
    assert decode_answers([answer]) == [LedgerAnswer(CallState.SETTLED, outcome=answer)]


def test_a_step_names_the_last_epochs_that_are_over_and_not_the_current_one() -> None:
    epochs = SeenEpochs("word")
    assert epochs.candidate == "word"
    for epoch in ("a", "a", "b", "c", "a", "x" * 1_000):
        epochs.saw(epoch)
    assert epochs.candidate == "word:8000:cc a b", "and the ends of the current one"
    for number in range(9):
        epochs.saw(str(number))
    assert epochs.candidate == "word:8000:88 4 5 6 7"
