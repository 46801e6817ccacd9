"""The tools of the agents in `agents_of_frameworks.py`."""

import asyncio

from toolpool import tool


@tool(effects="read")
async def search_orders(customer_id: str, limit: int = 10) -> list[str]:
    """Find a customer's orders."""
    return ["O-1001", "O-1002"][:limit]


@tool(effects="read", background=True)
async def export_orders(customer_id: str) -> str:
    """Export a customer's orders to a file. Takes a while."""
    await asyncio.sleep(2)
    return f"{customer_id}.csv"
