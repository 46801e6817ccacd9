"""Discounts and taxes."""

from orderdesk.pricing import discounted, with_tax


def test_small_orders_pay_the_list_price():
    assert discounted(100.0, 49, start=50, discount=0.08) == 100.0


def test_large_orders_are_discounted():
    assert discounted(100.0, 51, start=50, discount=0.08) == 92.0


def test_tax_is_added():
    assert with_tax(100.0, "DE") == 119.0
