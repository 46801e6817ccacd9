"""Tools of an imaginary shop, declared as a user of toolpool would declare theirs.

They work on the folder that `TOOLPOOL_WORKSPACE` names, as the built-in file tools do. Some of them
go wrong on purpose, each in its own way: see the README beside this file.
"""

import asyncio
import csv
import json
import os
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from toolpool import ToolContext, ToolError, tool

OrderId = Annotated[str, Field(pattern=r"^O-\d{4}$", description="Such as O-1001.")]
Sku = Annotated[str, Field(description="The article's number, such as LAMP-01.")]

# Euros a parcel and euros a kilogram.
SHIPPING_RATES = {"DE": (4.9, 0.8), "FR": (7.5, 1.1), "NL": (6.2, 0.9), "PL": (8.0, 1.2)}


@tool(timeout=10, effects="read")
async def search_orders(
    customer_id: Annotated[str | None, Field(description="Such as C-101.")] = None,
    status: Literal["open", "shipped", "cancelled"] | None = None,
    placed_since: Annotated[date | None, Field(description="First day, YYYY-MM-DD.")] = None,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> dict[str, Any]:
    """Find orders, newest first. Without arguments: the latest ones."""
    orders = await asyncio.to_thread(_table, "orders.csv")
    found = [
        order
        for order in reversed(orders)
        if customer_id in (None, order["customer_id"])
        and status in (None, order["status"])
        and (placed_since is None or date.fromisoformat(order["placed"]) >= placed_since)
    ]
    return {"total": len(found), "orders": found[:limit]}


@tool(timeout=10, effects="read")
async def customer_profile(customer_id: str) -> dict[str, Any]:
    """A customer's name, country, and number of orders by status."""
    text = await asyncio.to_thread((_workspace() / "data/customers.json").read_text)
    customers = {customer["customer_id"]: customer for customer in json.loads(text)}
    if customer_id not in customers:
        # A failure the model should read and can act on, in the form that many tools use.
        return {
            "ok": False,
            "error": f"There is no customer {customer_id}.",
            "recommendations": [f"Customers are {', '.join(sorted(customers))}."],
        }
    orders = await asyncio.to_thread(_table, "orders.csv")
    counts = Counter(o["status"] for o in orders if o["customer_id"] == customer_id)
    return {"ok": True, "data": {**customers[customer_id], "orders": dict(sorted(counts.items()))}}


@tool(timeout=10, effects="read")
async def quote_shipping(
    country: Annotated[str, Field(pattern="^[A-Z]{2}$", description="Two letters, such as DE.")],
    weight_kg: Annotated[float, Field(gt=0, le=100)],
) -> dict[str, Any]:
    """What a parcel to a country costs, in euros."""
    base, per_kg = SHIPPING_RATES[country]  # a country without a rate: the tool raises
    return {"country": country, "price": round(base + per_kg * weight_kg, 2)}


@tool(timeout=10, effects="read")
async def list_warehouses() -> list[str]:
    """The warehouses that check_stock knows."""
    return ["north", "south", "west"]


@tool(timeout=1, effects="read")
async def check_stock(sku: Sku, warehouse: Literal["north", "south", "west"]) -> dict[str, Any]:
    """Units of an article in a warehouse, asked from the warehouse itself."""
    if warehouse == "north":
        await asyncio.sleep(60)  # its system has been slow for weeks: the call times out
    for row in await asyncio.to_thread(_table, "stock.csv"):
        if (row["sku"], row["warehouse"]) == (sku, warehouse):
            return {"sku": sku, "warehouse": warehouse, "units": int(row["units"])}
    raise ToolError(
        f"{warehouse} does not know an article {sku}.",
        recommendations=["Look the number up in data/stock.csv."],
    )


@tool(timeout=30, effects="read")
def month_report(
    month: Annotated[str, Field(pattern=r"^\d{4}-\d{2}$", description="YYYY-MM.")],
    context: ToolContext,
) -> dict[str, Any]:
    """Orders and revenue of a month by article, cancelled orders left out."""
    orders = [order for order in _table("orders.csv") if order["placed"].startswith(month)]
    revenue: dict[str, float] = {}
    for done, order in enumerate(orders, 1):
        if order["status"] != "cancelled":
            amount = int(order["quantity"]) * float(order["unit_price"])
            revenue[order["sku"]] = round(revenue.get(order["sku"], 0.0) + amount, 2)
        context.progress(done, len(orders), order["order_id"])
    return {"month": month, "orders": len(orders), "revenue": dict(sorted(revenue.items()))}


@tool(timeout=3, effects="read")
def forecast_demand(sku: Sku, months: Annotated[int, Field(ge=1, le=600)] = 3) -> list[float]:
    """Units of an article that will be sent in each of the coming months."""
    sold = [int(o["quantity"]) for o in _table("orders.csv") if o["sku"] == sku]
    if not sold:
        raise ToolError(f"{sku} was never sold, so there is nothing to forecast from.")
    level = sum(sold) / len(sold)
    forecast = []
    for month in range(months):
        # Each month takes four times as long as the one before: a long forecast never ends and,
        # being plain Python, can only be stopped by killing its process.
        for _ in range(4**month):
            level = 0.9 * level + 0.1 * sold[month % len(sold)]
        forecast.append(round(level, 1))
    return forecast


@tool(timeout=30, effects="read")
def convert_report(
    path: Annotated[str, Field(description="A CSV file below data/.")],
    format: Literal["html", "markdown", "pdf"],
) -> str:
    """Turn a CSV file into a document."""
    if format == "pdf":
        # Stands for a native renderer that takes the whole process down with it.
        os._exit(134)
    source = _workspace() / "data" / Path(path).name
    if not source.exists():
        raise ToolError(f"There is no data/{source.name}.")
    rows = list(csv.reader(source.read_text().splitlines()))
    if format == "markdown":
        rows.insert(1, ["---"] * len(rows[0]))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    cells = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


@tool(timeout=10, effects="write")
async def refund_order(
    order_id: OrderId,
    amount: Annotated[float, Field(gt=0, description="In euros.")],
    reason: Annotated[str, Field(min_length=3, max_length=200)],
) -> dict[str, Any]:
    """Note a refund for the bookkeeping, which pays it out at night."""
    order = next(
        (o for o in await asyncio.to_thread(_table, "orders.csv") if o["order_id"] == order_id),
        None,
    )
    if order is None:
        raise ToolError(f"There is no order {order_id}.")
    total = int(order["quantity"]) * float(order["unit_price"])
    if amount > total:
        raise ToolError(
            f"{order_id} came to {total:.2f}, so {amount:.2f} cannot be refunded.",
            recommendations=[f"Refund at most {total:.2f}.", "Ask whether another order is meant."],
        )
    refund = {"order_id": order_id, "amount": amount, "reason": reason}
    await asyncio.to_thread(_keep, f"refunds/{order_id}.json", json.dumps(refund))
    return refund


@tool(timeout=10)
async def notify_carrier(carrier: str, message: str) -> str:
    """Send a note to a carrier's dispatch desk."""
    if carrier == "northwind":
        raise ToolError("northwind takes no more messages at the moment.", retry_after=60)
    return f"{carrier} has {len(message)} characters from us."


def _workspace() -> Path:
    return Path(os.environ.get("TOOLPOOL_WORKSPACE", "examples/workspace"))


def _table(name: str) -> list[dict[str, str]]:
    with (_workspace() / "data" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _keep(name: str, text: str) -> None:
    path = _workspace() / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
