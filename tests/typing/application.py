"""What an application writes with toolpool: checked by type checkers, as strictly as they go."""

import asyncio
from collections.abc import Iterable

from anthropic.types import Message, MessageParam, ToolUnionParam
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.responses import ResponseInputItemParam, ToolParam
from pydantic import SecretStr

from toolpool import (
    Dispatcher,
    NeedsSignIn,
    Observer,
    Settings,
    SyncDispatcher,
    ToolContext,
    ToolError,
    ToolResult,
    TurnResult,
    WorkerObserver,
    tool,
)


@tool(timeout=20, effects="read", recommendations=["Ask for the customer's number."])
async def search_orders(customer_id: str, limit: int = 10) -> list[str]:
    """Find a customer's orders."""
    if not customer_id:
        raise ToolError("no customer", retry_after=1.0)
    return [customer_id] * limit


async def secret_of(*, tenant: str, user: str | None, name: str) -> str | None:
    """What a host knows of its users."""
    if user is None:
        raise NeedsSignIn(f"https://shop.example/connect/{name}")
    return f"{tenant}/{user}/{name}"


@tool(secrets=["bank"], effects="write", idempotent=True)
async def pay(cents: int, context: ToolContext) -> str:
    """Pay."""
    return f"{context.idempotency_key}: {len(context.secret('bank'))}"


def in_memory() -> list[SyncDispatcher]:
    """Dispatchers whose tools have secrets."""
    plain = SyncDispatcher.in_memory([pay], secrets=lambda tenant, user, name: name)
    return [plain, SyncDispatcher.in_memory([pay], secrets=secret_of)]


@tool
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


@tool(run_in="thread", background=True, heartbeat=5)
def count(context: ToolContext, to: int) -> str:
    """Count."""
    for number in range(to):
        context.progress(number, to, "counting")
    return f"{context.session}: {context.remaining}"


async def call_tools_as_functions() -> int:
    """A decorated tool keeps its signature."""
    orders: list[str] = await search_orders("c-1", limit=2)
    total: int = add(1, second=len(orders))
    return total


class Slow(Observer):
    """Needs no types of ours to be derived from."""

    def circuit(self, tool: str, state: str) -> None:
        print(tool.upper(), state)


class Watching(WorkerObserver):
    """Nor does this."""

    def refused(self, reason: str) -> None:
        print(reason.upper())


SETTINGS = Settings(
    redis_url="redis://localhost:6379/0",
    signing_key=SecretStr("0" * 64),
    queue_timeout=3,
    circuit_scope="fleet",
)


def send_to_anthropic(messages: Iterable[MessageParam], tools: Iterable[ToolUnionParam]) -> Message:
    """Stands for the provider's API."""
    raise NotImplementedError((messages, tools))


def send_to_openai(
    messages: Iterable[ChatCompletionMessageParam], tools: Iterable[ChatCompletionToolUnionParam]
) -> object:
    """Stands for the provider's API."""
    raise NotImplementedError((messages, tools))


def send_to_responses(
    messages: Iterable[ResponseInputItemParam], tools: Iterable[ToolParam]
) -> object:
    """Stands for the provider's API."""
    raise NotImplementedError((messages, tools))


def shown(result: ToolResult) -> str:
    """Everything a result has, with its type."""
    retry: float | None = result.retry_after
    advice: str = " ".join(result.recommendations)
    return f"{result.call_id} {result.name} {result.ok} {result.executed.value} {retry} {advice}"


async def converse() -> None:
    """The loop of an agent, for three providers."""
    messages: list[MessageParam] = [{"role": "user", "content": "How many orders?"}]
    chat: list[ChatCompletionMessageParam] = []
    items: list[ResponseInputItemParam] = []
    async with Dispatcher.connect(settings=SETTINGS, observers=[Slow()]) as dispatcher:
        response = send_to_anthropic(messages, dispatcher.tools("anthropic"))
        turn: TurnResult = await dispatcher.dispatch(
            response, session="s-1", context={"user": 7}, wait=2.5
        )
        messages += turn.messages()
        answered = send_to_openai(chat, dispatcher.tools("openai"))
        chat.extend((await dispatcher.dispatch(answered)).messages())
        answered = send_to_responses(items, dispatcher.tools("openai_responses", only={"add"}))
        items.extend((await dispatcher.dispatch(answered)).messages("openai_responses"))
        print([shown(result) for result in turn], turn.ok, turn[0].data)
        async for event in dispatcher.events():
            print(event.kind.upper())
        async for handle in dispatcher.completed(session="s-1"):
            final: ToolResult | None = await dispatcher.task_result(handle, session="s-1", wait=5)
            print(final)
    async with Dispatcher.local([search_orders, "shop.tools"]) as local:
        print((await local.dispatch([])).messages(), local.in_flight())
    async with Dispatcher.in_memory([search_orders, add, count], only=["add"]) as memory:
        print(await memory.cancel(session="s-1"))


def blocking() -> None:
    """The same, for code that blocks."""
    with SyncDispatcher.connect(settings=SETTINGS, only=["add"]) as dispatcher:
        turn: TurnResult = dispatcher.dispatch([], session="s", timeout=3.0)
        print(turn.messages(), dispatcher.tools("gemini"), dispatcher.check([]))
        for event in dispatcher.events():
            print(event.kind.upper())
    with SyncDispatcher.in_memory([add]) as memory:
        print(memory.output("handle", page=2)["text"])


if __name__ == "__main__":
    asyncio.run(converse())
    blocking()
