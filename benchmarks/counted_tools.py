"""The tools of `benchmarks.call_counts`. A worker that imports them counts its function calls."""

from benchmarks import function_counter
from toolpool import tool

function_counter.begin()


@tool(effects="read")
async def function_calls() -> dict[str, int]:
    """The Python and C function calls of this worker process."""
    return function_counter.counts()


@tool(effects="read")
async def functions(most_common: int) -> list[tuple[str, int]]:
    """The functions that were called most often since this was last asked."""
    found = function_counter.by_function().most_common(most_common)
    function_counter.clear()
    return found


@tool
async def echo(text: str) -> str:
    """Give back the text."""
    return text


@tool(run_in="process", effects="read")
def echo_in_child(text: str) -> str:
    """Give back the text."""
    return text
