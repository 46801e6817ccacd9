"""One conversation with agents of each framework, whose provider is a stand-in on loopback.

The stand-in makes a mistake, corrects it, starts a background call and asks for its result. Prints
the answers that it was given, by framework.
"""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, ClassVar, TypedDict

from toolpool import (
    Dispatcher,
    anthropic_tools,
    langgraph_tool_node,
    openai_agents_tools,
    pydantic_ai_toolset,
)

MODEL, ASKED = "stand-in", "Export the orders of C-1."
WAIT_SECONDS = 0.5
"""How long a turn waits for a call until it goes on in the background."""


def next_call(answers: list[str]) -> tuple[str, dict[str, Any]] | None:
    """What the model calls after these answers; None when it is done."""
    match len(answers):
        case 0:
            return "search_orders", {"customer": "C-1"}
        case 1:
            return "search_orders", {"customer_id": "C-1", "limit": 1}
        case 2:
            return "export_orders", {"customer_id": "C-1"}
        case 3:
            [handle] = re.findall(r'"handle":"(\w+)"', answers[-1])
            return "task_result", {"handle": handle, "wait": 20}
    return None


class Provider(BaseHTTPRequestHandler):
    """Both providers' endpoints."""

    given: ClassVar[dict[str, dict[str, str]]] = {}
    """By framework, the answers by the ids of their calls. Some requests hold only the last."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_anthropic = self.path.endswith("/messages")
        read = self._of_anthropic if is_anthropic else self._of_openai
        answers = self.given.setdefault(self.headers["X-Framework"], {})
        answers |= read(request["messages"])
        call, id = next_call([*answers.values()]), f"call_{len(answers)}"
        body = (self._anthropic if is_anthropic else self._openai)(call, id)
        answer = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _of_anthropic(self, messages: list[Any]) -> dict[str, str]:
        blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
        results = [b for b in blocks if b["type"] == "tool_result"]
        return {b["tool_use_id"]: _text(b["content"]) for b in results}

    def _of_openai(self, messages: list[Any]) -> dict[str, str]:
        return {m["tool_call_id"]: _text(m["content"]) for m in messages if m["role"] == "tool"}

    def _anthropic(self, call: Any, id: str) -> dict[str, Any]:
        text = {"type": "text", "text": "done"}
        block = {"type": "tool_use", "id": id, "name": call[0], "input": call[1]} if call else text
        return {
            "id": f"msg-{id}", "type": "message", "role": "assistant", "model": MODEL,
            "content": [block], "stop_reason": "tool_use" if call else "end_turn",
            "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip

    def _openai(self, call: Any, id: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None if call else "done"}
        if call:
            function = {"name": call[0], "arguments": json.dumps(call[1])}
            message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
        choice = {
            "index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop",
        }  # fmt: skip
        return {
            "id": f"chatcmpl-{id}", "object": "chat.completion", "created": 0, "model": MODEL,
            "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _anthropic_client(url: str, framework: str) -> Any:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(
        api_key="stand-in", base_url=url, default_headers={"X-Framework": framework}
    )


def _openai_client(url: str, framework: str) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="stand-in", base_url=url, default_headers={"X-Framework": framework})


async def anthropic_sdk(dispatcher: Dispatcher, url: str) -> str:
    """The SDK alone: responses are dispatched as they are."""
    client, messages = _anthropic_client(url, "Anthropic SDK"), [{"role": "user", "content": ASKED}]
    while True:
        response = await client.messages.create(
            model=MODEL, max_tokens=100, messages=messages, tools=dispatcher.tools()
        )
        if response.stop_reason != "tool_use":
            return str(response.content[0].text)
        turn = await dispatcher.dispatch(response, session="anthropic", wait=WAIT_SECONDS)
        messages += [{"role": "assistant", "content": response.content}, *turn.messages()]


async def anthropic_runner(dispatcher: Dispatcher, url: str) -> str:
    """The SDK's tool runner."""
    runner = _anthropic_client(url, "Anthropic tool runner").beta.messages.tool_runner(
        model=MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": ASKED}],
        tools=anthropic_tools(dispatcher, session="runner", wait=WAIT_SECONDS),
    )
    return str((await runner.until_done()).content[0].text)


async def openai_sdk(dispatcher: Dispatcher, url: str) -> str:
    """The SDK alone."""
    client, messages = _openai_client(url, "OpenAI SDK"), [{"role": "user", "content": ASKED}]
    while True:
        response = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=dispatcher.tools("openai_chat")
        )
        message = response.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        turn = await dispatcher.dispatch(response, session="openai", wait=WAIT_SECONDS)
        messages += [message, *turn.messages()]


async def openai_agents(dispatcher: Dispatcher, url: str) -> str:
    """The OpenAI Agents SDK."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(MODEL, _openai_client(url, "OpenAI Agents SDK"))
    tools = openai_agents_tools(dispatcher, session="agents", wait=WAIT_SECONDS)
    agent = Agent(name="clerk", model=model, tools=tools)
    return str((await Runner.run(agent, ASKED)).final_output)


async def pydantic_ai(dispatcher: Dispatcher, url: str) -> str:
    """Pydantic AI."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(openai_client=_openai_client(url, "Pydantic AI"))
    tools = pydantic_ai_toolset(dispatcher, session="pydantic", wait=WAIT_SECONDS)
    agent = Agent(OpenAIChatModel(MODEL, provider=provider), toolsets=[tools])
    return str((await agent.run(ASKED)).output)


async def pydantic_ai_direct(dispatcher: Dispatcher, url: str) -> str:
    """Pydantic AI's models without an agent: their responses are dispatched as they are."""
    from pydantic_ai.direct import model_request
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.tools import ToolDefinition

    provider = OpenAIProvider(openai_client=_openai_client(url, "Pydantic AI's models"))
    model = OpenAIChatModel(MODEL, provider=provider)
    offered = [ToolDefinition(**tool) for tool in dispatcher.tools("pydantic_ai")]
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt(ASKED)]
    while True:
        response = await model_request(
            model,
            messages,
            model_request_parameters=ModelRequestParameters(function_tools=offered),
        )
        if not response.tool_calls:
            return str(response.text)
        turn = await dispatcher.dispatch(response, session="direct", wait=WAIT_SECONDS)
        assert turn.format == "pydantic_ai"
        stored = ModelMessagesTypeAdapter.validate_python(turn.assistant())
        assert stored[0].tool_calls == response.tool_calls
        told = ModelMessagesTypeAdapter.validate_python(turn.messages())
        messages += [response, *told]


async def langgraph(dispatcher: Dispatcher, url: str) -> str:
    """LangGraph, with its own condition between the nodes."""
    from langchain_core.messages import AIMessage, convert_to_openai_messages
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, StateGraph
    from langgraph.graph.message import add_messages
    from langgraph.prebuilt import tools_condition

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    client = _openai_client(url, "LangGraph")

    async def model(state: State) -> dict[str, Any]:
        response = await client.chat.completions.create(
            model=MODEL,
            messages=convert_to_openai_messages(state["messages"]),
            tools=dispatcher.tools("openai_chat"),
        )
        message = response.choices[0].message
        calls = [
            {"id": c.id, "name": c.function.name, "args": json.loads(c.function.arguments)}
            for c in message.tool_calls or ()
        ]
        return {"messages": [AIMessage(message.content or "", tool_calls=calls)]}

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tools", langgraph_tool_node(dispatcher, wait=WAIT_SECONDS))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    agent = graph.compile(checkpointer=InMemorySaver())
    state = await agent.ainvoke(
        {"messages": [("user", ASKED)]}, {"configurable": {"thread_id": "thread-1"}}
    )
    return str(state["messages"][-1].content)


AGENTS: tuple[Callable[[Dispatcher, str], Awaitable[str]], ...] = (
    anthropic_sdk, anthropic_runner, openai_sdk, openai_agents, pydantic_ai,
    pydantic_ai_direct, langgraph,
)  # fmt: skip


async def _main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    async with Dispatcher.local(["agent_tools"]) as dispatcher:
        said = [await agent(dispatcher, url) for agent in AGENTS]
    server.shutdown()
    told = {name: [*answers.values()] for name, answers in Provider.given.items()}
    print(json.dumps([said, told]))


if __name__ == "__main__":
    asyncio.run(_main())
