"""Hooks that judge every call of a row."""

import random

from toolpool import (
    AskApproval,
    Hooks,
    ProposedCall,
    Replace,
    Rewrite,
    ServerError,
    ToolResult,
)

AWAY = (ServerError, TimeoutError)
"""What is raised while the server does not answer."""


def hooks(rng: random.Random) -> Hooks:
    """A policy on both sides that changes nothing that a row looks at."""

    def before_call(call: ProposedCall) -> Rewrite | None:
        return Rewrite(call.arguments) if rng.random() < 0.2 else None

    async def after_result(result: ToolResult, _: ProposedCall) -> Replace | None:
        return Replace(data=result.data) if result.ok and rng.random() < 0.2 else None

    return Hooks(before_call=before_call, after_result=after_result)


def asking() -> Hooks:
    """A person is asked about calls whose context says for how many seconds."""

    def before_call(call: ProposedCall) -> AskApproval | None:
        expires = (call.context or {}).get("expires")
        return AskApproval("a person decides", expires=expires) if expires else None

    return Hooks(before_call=before_call)
