"""More tools of other frameworks: those that fail, and those that are refused."""

from typing import Annotated

from agents import function_tool
from langchain_core.tools import InjectedToolArg, ToolException, tool as langchain
from pydantic import AfterValidator
from pydantic_ai import RunContext, Tool

from toolpool import (
    ToolDeclarationInvalid,
    langchain_tool,
    openai_agents_tool,
    pydantic_ai_tool,
    tool,
)


def even(number: int) -> int:
    if number % 2:
        raise ValueError("only even numbers")
    return number


@langchain
def halve(number: Annotated[int, AfterValidator(even)]) -> float:
    """Halve an even number."""
    if number == 0:
        raise ToolException("nothing to halve")
    if number < 0:
        raise RuntimeError("on purpose")
    return number / 2


@langchain
def of_agent(number: int, state: Annotated[dict[str, str], InjectedToolArg]) -> int:
    """It needs the agent's state."""
    return number


def of_run(ctx: RunContext[None], number: int) -> int:
    """It needs the agent's run."""
    return number


async def double(number: Annotated[int, AfterValidator(even)]) -> int:
    """Double an even number."""
    return 2 * number


@function_tool
def fail(number: int) -> int:
    """Fail."""
    raise RuntimeError("on purpose")


halved = langchain_tool(halve)
doubled = pydantic_ai_tool(Tool(double), effects="read")
failing = openai_agents_tool(fail, run_in="process")


@tool
def refused() -> list[str]:
    """Why tools are refused where they are declared."""
    reasons = []
    for declare, theirs in (
        (langchain_tool, of_agent),
        (langchain_tool, of_run),
        (pydantic_ai_tool, of_run),
        (openai_agents_tool, of_run),
    ):
        try:
            declare(theirs)
        except ToolDeclarationInvalid as error:
            reasons.append(str(error))
    return reasons
