"""A conversation as a host keeps it: which calls in it have no answer, and where one goes.

Providers refuse a history in which a call has no answer, or an answer stands elsewhere than they
want it. `Blocks` is for those who take the answers of a response as blocks of the next message,
`Messages` for those who take a message each, `Items` for a flat list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from toolpool.contract.call import ToolCall
from toolpool.dispatcher.formats.names import PLAIN, alias
from toolpool.dispatcher.formats.sdk_objects import sendable

Message = dict[str, Any]
Holder = Callable[[Message], Any]


class Answer(NamedTuple):
    """What an answer in a history names: the call's id, or the tool's name where there is none."""

    id: str | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """One response in a history: the position of its last message, and the answers to it.

    `response` is as the format's `parse` takes it.
    """

    at: int
    response: Any
    answers: tuple[Answer, ...]

    def matches(self, calls: Sequence[ToolCall]) -> list[int | None]:
        """For each call the place of its answer among the answers; None where it has none."""
        left = dict(enumerate(self.answers))
        found: list[int | None] = []
        for call in calls:
            place = next((n for n, answer in left.items() if _names(answer, call)), None)
            if place is not None:
                del left[place]
            found.append(place)
        return found


def _names(answer: Answer, call: ToolCall) -> bool:
    if answer.id is not None and call.id_given:
        return answer.id == call.provider_id
    return answer.id is None and answer.name in (None, call.name, alias(call.name, PLAIN))


class History(Protocol):
    """How a provider's history is read and completed.

    `has_ids` says that each call in it has an id, given or made up.
    """

    has_ids: bool

    def knows(self, message: Message) -> bool:
        """Whether a message of the model, or an answer to it, is of this form."""
        ...

    def spoken(self, messages: Sequence[Message]) -> list[Spoken]:
        """The responses in a history, in order."""
        ...

    def placed(
        self, messages: list[Any], spoken: Spoken, matches: list[int | None], answers: list[Any]
    ) -> None:
        """Put the rendered answers of a response where they belong.

        `matches` says which of its calls had one, and where among those that were there.
        """
        ...


@dataclass(frozen=True, slots=True)
class Blocks:
    """Answers are blocks of the message after the response.

    `said` makes a response of the model's message, `answer` reads a block that is an answer, and
    `blocks` is the field that holds a message's blocks.
    """

    role: str
    blocks: str
    is_call: Callable[[Message], bool]
    said: Holder
    answer: Callable[[Message], Answer | None]
    as_block: Callable[[str], Message]
    has_ids: bool = True

    def knows(self, message: Message) -> bool:
        """See `History.knows`."""
        return any(self.is_call(b) or self.answer(b) for b in self._blocks(message))

    def _blocks(self, message: Any) -> list[Message]:
        held = message.get(self.blocks) if isinstance(message, dict) else None
        return [b for b in held if isinstance(b, dict)] if isinstance(held, list) else []

    def spoken(self, messages: Sequence[Message]) -> list[Spoken]:
        """See `History.spoken`."""
        found: list[Spoken] = []
        for at, message in enumerate(messages):
            if message.get("role") == self.role and any(map(self.is_call, self._blocks(message))):
                after = self._blocks(messages[at + 1]) if at + 1 < len(messages) else []
                answers = tuple(a for block in after if (a := self.answer(block)) is not None)
                found.append(Spoken(at, self.said(message), answers))
        return found

    def placed(
        self, messages: list[Any], spoken: Spoken, matches: list[int | None], answers: list[Any]
    ) -> None:
        """See `History.placed`. Before what the next message says, or in one of their own."""
        [answer] = answers
        after = sendable(messages[spoken.at + 1]) if spoken.at + 1 < len(messages) else None
        if not isinstance(after, dict) or after.get("role") == self.role:
            messages.insert(spoken.at + 1, answer)
            return
        held = after.get(self.blocks)
        if isinstance(held, str):
            held = [self.as_block(held)]
        held = held if isinstance(held, list) else []
        told = [block for block in held if isinstance(block, dict) and self.answer(block)]
        new = iter(answer[self.blocks])
        in_order = [next(new) if place is None else told[place] for place in matches]
        late = [block for n, block in enumerate(told) if n not in matches]
        others = [block for block in held if not any(block is each for each in told)]
        messages[spoken.at + 1] = {**after, self.blocks: [*in_order, *late, *others]}


@dataclass(frozen=True, slots=True)
class Messages:
    """Answers are messages, right after the response."""

    said: Callable[[Message], Any]
    """A response of the model's message; None for a message without calls."""
    answer: Callable[[Message], Answer | None]
    has_ids: bool = True

    def knows(self, message: Message) -> bool:
        """See `History.knows`."""
        return self.said(message) is not None or self.answer(message) is not None

    def spoken(self, messages: Sequence[Message]) -> list[Spoken]:
        """See `History.spoken`."""
        found: list[Spoken] = []
        for at, message in enumerate(messages):
            response = self.said(message)
            if response is not None:
                found.append(Spoken(at, response, tuple(self._after(messages, at))))
        return found

    def _after(self, messages: Sequence[Any], at: int) -> list[Answer]:
        answers: list[Answer] = []
        for message in messages[at + 1 :]:
            answer = self.answer(message) if isinstance(message, dict) else None
            if answer is None:
                break
            answers.append(answer)
        return answers

    def placed(
        self, messages: list[Any], spoken: Spoken, matches: list[int | None], answers: list[Any]
    ) -> None:
        """See `History.placed`. After the answers that are there."""
        end = spoken.at + 1 + len(spoken.answers)
        messages[end:end] = answers


@dataclass(frozen=True, slots=True)
class Items:
    """Calls and answers are items of one flat list; a response is a run of the model's items."""

    is_call: Callable[[Message], bool]
    is_said: Callable[[Message], bool]
    answer: Callable[[Message], Answer | None]
    said: Callable[[list[Message]], Any]
    has_ids: bool = True

    def knows(self, message: Message) -> bool:
        """See `History.knows`."""
        return self.is_call(message) or self.answer(message) is not None

    def spoken(self, messages: Sequence[Message]) -> list[Spoken]:
        """See `History.spoken`. An answer may stand anywhere after its call."""
        found: list[Spoken] = []
        run: list[Message] = []
        for at, item in enumerate(messages):
            if self.is_said(item):
                run.append(item)
            if run and (at + 1 == len(messages) or not self.is_said(messages[at + 1])):
                if any(map(self.is_call, run)):
                    after = [self.answer(later) for later in messages[at + 1 :]]
                    answers = tuple(answer for answer in after if answer is not None)
                    found.append(Spoken(at, self.said(run), answers))
                run = []
        return found

    def placed(
        self, messages: list[Any], spoken: Spoken, matches: list[int | None], answers: list[Any]
    ) -> None:
        """See `History.placed`. Right after the response."""
        messages[spoken.at + 1 : spoken.at + 1] = answers
