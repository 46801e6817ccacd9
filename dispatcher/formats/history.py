"""Reads and completes a conversation as a host stores it.

Providers refuse a history in which a call has no answer, or an answer is in the wrong place.
`Blocks` is for providers that take the answers of a response as blocks of the next message,
`Messages` for providers that take one message per answer, `Items` for a flat list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Message = dict[str, Any]
Holder = Callable[[Message], Any]


class HistoryAnswer(NamedTuple):
    """What an answer in a history names: the call's id, or the tool's name if it has none."""

    id: str | None
    name: str | None = None


class PlacedAnswer(NamedTuple):
    """An answer in a history, with its message or block, and the position of its message."""

    answer: HistoryAnswer
    at: int
    block: Message


@dataclass(frozen=True, slots=True)
class PastResponse:
    """One response in a history, by the positions of its messages.

    `response` is in the form that the format's `parse` takes. Its answers belong between the
    response and `until`; None if they may stand anywhere. `joins`: only answers separate this
    response from the previous one.
    """

    at: tuple[int, ...]
    response: Any
    until: int | None
    joins: bool

    def is_astray(self, placed: PlacedAnswer) -> bool:
        """Whether an answer stands where the response's provider does not accept it."""
        return self.until is not None and not self.at[-1] < placed.at < self.until


class Edit:
    """A history being edited. Positions remain those of the original messages."""

    def __init__(self, messages: Sequence[Any], plain: Sequence[Message]) -> None:
        self.plain = plain
        self._messages = messages
        self._changed: dict[int, Message | None] = {}
        self._added: dict[int, list[Any]] = {}

    def now(self, at: int) -> Message | None:
        """A message in its current form; None if it was removed."""
        return self._changed.get(at, self.plain[at])

    def change(self, at: int, message: Message | None) -> None:
        """Replace or remove a message."""
        self._changed[at] = message

    def add(self, after: int, messages: Sequence[Any]) -> None:
        """Add messages after a position, behind messages that were added there before."""
        self._added.setdefault(after, []).extend(messages)

    def done(self) -> list[Any]:
        """The edited history."""
        made: list[Any] = []
        for at, message in enumerate(self._messages):
            message = self._changed.get(at, message)
            if message is not None or at not in self._changed:
                made.append(message)  # the message may be unchanged
            made += self._added.get(at, ())
        return made


def _as_it_is(message: Message, beside: Message) -> Message:
    return message


class History(Protocol):
    """How a provider's history is read and completed.

    `has_ids`: each call in it has an id, given or made up.
    """

    has_ids: bool

    def knows(self, message: Message) -> bool:
        """Whether a message of the model, or an answer to it, has this form."""
        ...

    def past_responses(self, messages: Sequence[Message]) -> list[PastResponse]:
        """The responses in a history that have calls, in order."""
        ...

    def placed_answers(self, messages: Sequence[Message]) -> list[PlacedAnswer]:
        """The answers in a history, in order."""
        ...

    @property
    def as_kept(self) -> Callable[[Message, Message], Message]:
        """Converts a message into the form in which the host stores the message beside it."""
        ...

    def place(
        self,
        edit: Edit,
        past: PastResponse,
        found: Sequence[PlacedAnswer | None],
        answers: Sequence[Any],
    ) -> None:
        """Put the answers of a response in place.

        `found` has the existing answer of each call, at any position, or None; `answers` are the
        rendered answers of the other calls.
        """
        ...


@dataclass(frozen=True, slots=True)
class Blocks:
    """Answers are blocks of the message after the response.

    `to_response` converts the model's message to a response, `answer` reads a block that is an
    answer, and `blocks` is the field with a message's blocks.
    """

    role: str
    blocks: str
    is_call: Callable[[Message], bool]
    to_response: Holder
    answer: Callable[[Message], HistoryAnswer | None]
    as_block: Callable[[str], Message]
    has_ids: bool = True
    as_kept: Callable[[Message, Message], Message] = _as_it_is
    role_field: str = "role"
    """The field that says whose a message is: `role`, the model's, or `host`."""
    host: str = "user"

    def knows(self, message: Message) -> bool:
        """Whether a message has blocks of this form."""
        return any(self.is_call(b) or self.answer(b) for b in self._blocks(message))

    def _is_models(self, message: Message) -> bool:
        return message.get(self.role_field) == self.role

    def _blocks(self, message: Message) -> list[Message]:
        held = message.get(self.blocks)
        return [b for b in held if isinstance(b, dict)] if isinstance(held, list) else []

    def past_responses(self, messages: Sequence[Message]) -> list[PastResponse]:
        """The responses in a history that have calls, in order."""
        found: list[PastResponse] = []
        joins = False
        for at, message in enumerate(messages):
            blocks = self._blocks(message)
            if self._is_models(message) and any(map(self.is_call, blocks)):
                follows = at + 1 < len(messages) and not self._is_models(messages[at + 1])
                found.append(
                    PastResponse((at,), self.to_response(message), at + 1 + follows, joins)
                )
                joins = True
            else:
                joins = joins and bool(blocks) and all(map(self.answer, blocks))
        return found

    def placed_answers(self, messages: Sequence[Message]) -> list[PlacedAnswer]:
        """The answers in a history, in order."""
        return [
            PlacedAnswer(answer, at, block)
            for at, message in enumerate(messages)
            if not self._is_models(message)
            for block in self._blocks(message)
            if (answer := self.answer(block)) is not None
        ]

    def place(
        self,
        edit: Edit,
        past: PastResponse,
        found: Sequence[PlacedAnswer | None],
        answers: Sequence[Any],
    ) -> None:
        """Put the answers before the content of the next message, or in a message of their own."""
        new = iter([block for answer in answers for block in answer[self.blocks]])
        blocks = [next(new) if placed is None else placed.block for placed in found]
        for placed in found:
            if placed is not None:
                self._take_out(edit, placed)
        [at] = past.at
        if past.until == at + 1:  # the model went on without a message in between
            edit.add(at, [{self.role_field: self.host, self.blocks: blocks}])
            return
        after = edit.now(at + 1) or {**edit.plain[at + 1], self.blocks: []}
        held = after.get(self.blocks)
        if isinstance(held, str):
            held = [self.as_block(held)]
        held = held if isinstance(held, list) else []
        others = [block for block in held if isinstance(block, dict) and self.answer(block)]
        rest = [block for block in held if not any(block is each for each in others)]
        edit.change(at + 1, {**after, self.blocks: [*blocks, *others, *rest]})

    def _take_out(self, edit: Edit, placed: PlacedAnswer) -> None:
        message = edit.now(placed.at)
        assert message is not None, "it holds the answer"
        held = [block for block in message[self.blocks] if block is not placed.block]
        edit.change(placed.at, {**message, self.blocks: held} if held else None)


@dataclass(frozen=True, slots=True)
class Messages:
    """Answers are messages, right after the response."""

    to_response: Callable[[Message], Any]
    """Converts the model's message to a response; None for a message without calls."""
    answer: Callable[[Message], HistoryAnswer | None]
    has_ids: bool = True
    tells: Callable[[Message], bool] | None = None
    """Whether an answer has this form, if other forms have similar ones."""
    as_kept: Callable[[Message, Message], Message] = _as_it_is

    def knows(self, message: Message) -> bool:
        """Whether a message of the model, or an answer to it, has this form."""
        if self.to_response(message) is not None:
            return True
        return self.answer(message) is not None if self.tells is None else self.tells(message)

    def past_responses(self, messages: Sequence[Message]) -> list[PastResponse]:
        """The responses in a history that have calls, in order."""
        found: list[PastResponse] = []
        answers = {placed.at for placed in self.placed_answers(messages)}
        joins = False
        for at, message in enumerate(messages):
            response = self.to_response(message)
            if response is not None:
                until = at + 1
                while until in answers:
                    until += 1
                found.append(PastResponse((at,), response, until, joins))
            joins = response is not None or (joins and at in answers)
        return found

    def placed_answers(self, messages: Sequence[Message]) -> list[PlacedAnswer]:
        """The answers in a history, in order."""
        return _answers_in(messages, self.answer)

    def place(
        self,
        edit: Edit,
        past: PastResponse,
        found: Sequence[PlacedAnswer | None],
        answers: Sequence[Any],
    ) -> None:
        """Add the answers after existing ones."""
        assert past.until is not None
        for placed in found:
            if placed is not None and past.is_astray(placed):
                edit.change(placed.at, None)
                edit.add(past.until - 1, [placed.block])
        beside = edit.plain[past.at[-1]]
        edit.add(past.until - 1, [self.as_kept(answer, beside) for answer in answers])


@dataclass(frozen=True, slots=True)
class Items:
    """Calls and answers are items of one flat list; a response is several items of the model."""

    is_call: Callable[[Message], bool]
    is_said: Callable[[Message], bool]
    answer: Callable[[Message], HistoryAnswer | None]
    to_response: Callable[[list[Message]], Any]
    has_ids: bool = True
    as_kept: Callable[[Message, Message], Message] = _as_it_is

    def knows(self, message: Message) -> bool:
        """Whether an item has this form."""
        return self.is_call(message) or self.answer(message) is not None

    def past_responses(self, messages: Sequence[Message]) -> list[PastResponse]:
        """The responses in a history, in order. An answer may stand anywhere after its call."""
        found: list[PastResponse] = []
        run: list[int] = []
        joins = False
        for at, item in enumerate(messages):
            if self.is_said(item):
                run.append(at)
                if at + 1 < len(messages) and self.is_said(messages[at + 1]):
                    continue
                said = [messages[each] for each in run]
                if any(map(self.is_call, said)):
                    found.append(PastResponse(tuple(run), self.to_response(said), None, joins))
                    joins = True
                run = []
            elif self.answer(item) is None:
                joins = False
        return found

    def placed_answers(self, messages: Sequence[Message]) -> list[PlacedAnswer]:
        """The answers in a history, in order."""
        return _answers_in(messages, self.answer)

    def place(
        self,
        edit: Edit,
        past: PastResponse,
        found: Sequence[PlacedAnswer | None],
        answers: Sequence[Any],
    ) -> None:
        """Put the answers right after the response."""
        edit.add(past.at[-1], answers)


def _answers_in(
    messages: Sequence[Message], answer: Callable[[Message], HistoryAnswer | None]
) -> list[PlacedAnswer]:
    found = ((at, message, answer(message)) for at, message in enumerate(messages))
    return [PlacedAnswer(named, at, message) for at, message, named in found if named is not None]
