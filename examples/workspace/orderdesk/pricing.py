"""Prices: list price, volume discount, tax."""

TAX = {"DE": 0.19, "FR": 0.20, "NL": 0.21, "PL": 0.23}


def discounted(amount: float, quantity: int, *, start: int, discount: float) -> float:
    """`amount` less the volume discount, where the quantity earns one."""
    if quantity > start:  # TODO: the contract says "from 50 units"
        return amount * (1 - discount)
    return amount


def with_tax(amount: float, country: str) -> float:
    """`amount` with the country's tax; unknown countries pay none."""
    return round(amount * (1 + TAX.get(country, 0.0)), 2)
