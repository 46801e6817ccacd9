"""A child-process tool that takes as long as it is told."""

import time

from toolpool import tool


@tool(run_in="process")
def sleep(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "slept"


@tool(run_in="process", effects="read")
def look(seconds: float) -> str:
    """Sleep; it may run twice."""
    time.sleep(seconds)
    return "seen"
