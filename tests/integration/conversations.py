"""Conversations as hosts keep them, for tests of how they are resumed."""

from typing import Any

from tests.integration.twins import Gate
from toolpool import tool
from toolpool.workers.tool import Tool

OWN = "toolu_01A09q90qw90lq917835"
"""How an id begins that no provider gives twice."""
UNKNOWN = '"executed":"unknown"'


def gated(gate: Gate, effects: Any) -> Tool:
    """A tool that waits at a gate."""

    @tool(effects=effects)
    async def work(label: str) -> str:
        """Work."""
        await gate.wait(label)
        return f"did {label}"

    return work


def use(id: str, label: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "work", "input": {"label": label}}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(id: str, text: str = "mine") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": text}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def ollama(label: str) -> dict[str, Any]:
    calls = [{"function": {"name": "work", "arguments": {"label": label}}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def gemini(label: str) -> dict[str, Any]:
    part = {"functionCall": {"name": "work", "args": {"label": label}}}
    return {"role": "model", "parts": [part]}


def response_of(message: dict[str, Any], id: str = "r") -> dict[str, Any]:
    """The response that a history's message came in."""
    if "parts" in message:
        return {"responseId": id, "candidates": [{"content": message, "finishReason": "STOP"}]}
    if "tool_calls" in message:
        return {"message": message, "done": True, "done_reason": "stop"}
    return {"type": "message", "id": id, "stop_reason": "tool_use", **message}


CALL = {"type": "function_call", "name": "work", "status": "completed"}


def item(n: int) -> dict[str, Any]:
    return {
        **CALL,
        "call_id": f"call_8Zk3Qw7Lx2VbPq5Rt9Yn4{n}",
        "arguments": f'{{"label": "{n}"}}',
    }


def output(n: int) -> dict[str, Any]:
    made = {"type": "function_call_output", "call_id": f"call_8Zk3Qw7Lx2VbPq5Rt9Yn4{n}"}
    return {**made, "output": f"did {n}"}


def chat(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": "work", "arguments": '{"label":"x"}'}}
        for id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def told(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "mine"}
