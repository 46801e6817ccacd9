"""Keeps turns in flight and their answers in order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from toolpool.cli.running.answer import AnsweredLine
from toolpool.cli.running.lines import Line

_WINDOW = 8
"""How many turns may be read and not yet written, as a multiple of `concurrency`."""


class Stream:
    """Answers lines, at most `concurrency` at once, and delivers the answers in the lines' order.

    A line is answered when it arrives; its answer leaves as soon as all before it have left.
    """

    def __init__(
        self,
        answer: Callable[[Line], Coroutine[Any, Any, AnsweredLine]],
        deliver: Callable[[list[AnsweredLine]], Coroutine[Any, Any, None]],
        *,
        concurrency: int,
    ) -> None:
        self._answer = answer
        self._deliver = deliver
        self._running = asyncio.Semaphore(concurrency)
        self._window = asyncio.Semaphore(concurrency * _WINDOW)
        self._order: deque[tuple[Line, asyncio.Task[AnsweredLine]]] = deque()
        """The turns in flight, in order; at most as many as the window allows."""
        self._all_read = False
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._stopped = False
        self.given_up: list[int] = []
        """The numbers of the lines that were read but not answered, because of `stop()`."""

    def stop(self) -> None:
        """Stop reading and cancel unfinished lines; `run` still delivers finished ones."""
        self._stopped = self._all_read = True
        self._changed.set()
        if self._reading is not None:
            self._reading.cancel()
        for _, task in self._order:
            task.cancel()

    async def run(self, lines: AsyncIterator[Line]) -> None:
        """Answer every line; after `stop()`, deliver only the answers of finished lines.

        Raises what reading, answering or delivering raises; no turn is left running.
        """
        self._reading = asyncio.create_task(self._read(lines))
        try:
            await self._hand_over()
            if not self._stopped:
                await self._reading
        finally:
            # Including ended ones: an unretrieved exception is reported at a bad moment.
            everything = [self._reading, *(task for _, task in self._order)]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _read(self, lines: AsyncIterator[Line]) -> None:
        try:
            async for line in lines:
                await self._window.acquire()
                await self._running.acquire()
                if self._stopped:
                    return
                task = asyncio.create_task(self._answer(line))
                task.add_done_callback(lambda _: self._running.release())
                self._order.append((line, task))
                self._changed.set()
        finally:
            self._all_read = True
            self._changed.set()

    async def _hand_over(self) -> None:
        while await self._wait_for_more():
            await asyncio.wait([self._order[0][1]])
            answers, left = [], 0
            # Answers that waited for the first leave in the same write.
            while self._order and self._order[0][1].done():
                line, task = self._order.popleft()
                left += 1
                if task.cancelled():
                    self.given_up.append(line.number)
                else:
                    answers.append(task.result())
            if answers:
                await self._deliver(answers)
            for _ in range(left):
                self._window.release()

    async def _wait_for_more(self) -> bool:
        """Wait for a turn to end; False once all lines are read and delivered."""
        while not self._order and not self._all_read:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._order)
