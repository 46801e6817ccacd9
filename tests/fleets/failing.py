"""A tool that always reports failure."""

from toolpool import ToolError, tool


@tool
async def never_works(what: str) -> str:
    """Report failure."""
    raise ToolError(f"no {what}")
