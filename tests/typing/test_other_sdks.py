"""What LangChain, Ollama and Cohere say is read, and what they are answered they take (R49).

Their packages are needed for nothing else, so they live in an environment of their own, made here
once.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.environments import environment
from toolpool import Dispatcher, tool

PACKAGES = ["langchain-core==1.7.0", "ollama==0.6.3", "cohere==7.3.1"]
SCRIPT = Path(__file__).with_name("other_sdks.py")


@tool(effects="read")
async def look(place: str) -> dict[str, str]:
    """Look at a place."""
    return {"seen": place}


@pytest.fixture(scope="module")
def python() -> str:
    return str(environment("other-sdks", PACKAGES) / "python")


def run(python: str, verb: str, given: Any = None) -> Any:
    ran = subprocess.run(
        [python, str(SCRIPT), verb], input=json.dumps(given), capture_output=True, text=True,
        timeout=100, check=True,
    )  # fmt: skip
    return json.loads(ran.stdout)


@pytest.mark.timeout(400)
async def test_their_own_objects_are_read_and_the_answers_taken(python: str) -> None:
    answers: dict[str, list[Any]] = {}
    async with Dispatcher.in_memory([look]) as dispatcher:
        for format, responses in run(python, "objects").items():
            for response in responses:
                turn = await dispatcher.dispatch(response)
                assert (turn.format, turn.ok, len(turn)) == (format, True, 1), response
                answers[format] = [*turn.assistant(), *turn.messages()]
    taken = run(python, "take", answers)
    assert taken["langchain"] == ["ToolMessage", "c", '{"seen":"Rome"}', "success"]
    assert taken["ollama"] == {
        "role": "tool", "content": '{"seen":"Rome"}', "tool_name": "look",
    }  # fmt: skip
    assert taken["cohere"] == ["TextToolContent"]


@pytest.mark.timeout(400)
async def test_their_clients_send_the_answers(python: str) -> None:
    """Also those to a history that LangChain stored."""
    said: dict[str, list[Any]] = {}
    async with Dispatcher.in_memory([look]) as dispatcher:
        for format, responses in run(python, "objects").items():
            turn = await dispatcher.dispatch(responses[0])
            said[format] = [*turn.assistant(), *turn.messages()]
            if format == "langchain":
                said["stored"] = await dispatcher.resume(responses[:1], session="s")
    sent = run(python, "send", said)
    called, answer = sent["ollama"]
    assert called["tool_calls"][0]["function"]["arguments"] == {"place": "Rome"}
    assert answer == {"role": "tool", "content": '{"seen":"Rome"}', "tool_name": "look"}
    called, answer = sent["cohere"]
    assert called["tool_calls"][0]["id"] == "c"
    assert answer == {
        "role": "tool", "tool_call_id": "c",
        "content": [{"type": "text", "text": '{"seen":"Rome"}'}],
    }  # fmt: skip
    assert sent["langchain"] == [[["ai", ""], ["tool", '{"seen":"Rome"}']]] * 2
