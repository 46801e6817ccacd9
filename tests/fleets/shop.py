"""A shop's tools, for conversations in which hosts and people decide."""

from typing import Any

from toolpool import ToolContext, tool


@tool(effects="write")
async def refund(order: str, amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Pay money back."""
    return {"order": order, "amount": amount, "key": ctx.idempotency_key}


@tool(effects="write", approval=True)
async def close_account(customer: str) -> str:
    """Close an account, for good."""
    return f"closed {customer}"


@tool(effects="read")
async def customer(name: str) -> dict[str, str]:
    """Look a customer up."""
    return {"name": name, "card": "4111-1111-1111-1111"}


@tool(effects="read", secrets=["mail"])
async def inbox(ctx: ToolContext) -> str:
    """Read the user's own mail."""
    return f"signed in with {len(ctx.secret('mail'))} characters"


@tool(effects="read", rate="2/min", rate_per="session")
async def quote(sku: str) -> str:
    """What something costs; not too often."""
    return f"{sku}: 5"


TOOLS = [refund, close_account, customer, inbox, quote]


def secret_of(*, tenant: str, user: str | None, name: str) -> str | None:
    """Anna has signed in to her mail, and nobody else."""
    from toolpool import NeedsSignIn

    if user == "anna":
        return "anna's own password"
    raise NeedsSignIn(f"https://shop.example/sign-in/{name}")
