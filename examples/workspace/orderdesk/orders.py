"""Orders: read from the nightly export, filtered and totalled."""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """One line of the export."""

    order_id: str
    customer_id: str
    sku: str
    quantity: int
    unit_price: float
    status: str


def load(path: Path) -> list[Order]:
    """All orders in the export at `path`."""
    with path.open(newline="") as file:
        return [
            Order(
                row["order_id"],
                row["customer_id"],
                row["sku"],
                int(row["quantity"]),
                float(row["unit_price"]),
                row["status"],
            )
            for row in csv.DictReader(file)
        ]


def open_orders(orders: list[Order]) -> list[Order]:
    """Those that still have to be shipped."""
    return [order for order in orders if order.status == "open"]


def total(orders: list[Order]) -> float:
    """What they come to, before discounts."""
    # TODO: cancelled orders should not count
    return sum(order.quantity * order.unit_price for order in orders)
