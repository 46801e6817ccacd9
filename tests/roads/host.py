"""An agent's host: one dispatcher, and the roads that lead through it."""

import asyncio
import json
import os
import sys
from typing import Any

import msgspec

from toolpool import ApprovalRefused, Dispatcher, Hooks, ToolResult
from toolpool.contract.settings import Settings

SOON = 0.02
HOOKS = Hooks(before_call=lambda _: None)
"""With none at all, a provider is answered no at once."""
FOREIGN = "drop"
"""What a provider runs itself, once it is told that it may."""


class Case(msgspec.Struct, frozen=True):
    """One call. Each has a session of its own."""

    trace: str
    number: int
    tool: str
    session: str

    @property
    def content(self) -> list[dict[str, Any]]:
        """What the model said."""
        arguments = {"trace": self.trace, "number": self.number}
        id = f"toolu_01A09q90qw90lq{self.number:06}"
        return [{"type": "tool_use", "id": id, "name": self.tool, "input": arguments}]

    @property
    def response(self) -> Any:
        """What the provider said."""
        if self.tool != FOREIGN:
            return {"type": "message", "id": f"msg_{self.number}", "role": "assistant",
                    "content": self.content, "stop_reason": "tool_use"}  # fmt: skip
        arguments = json.dumps({"number": self.number})
        asked = {"type": "mcp_approval_request", "id": f"mcpr_{self.number}", "name": FOREIGN,
                 "arguments": arguments, "server_label": "db"}  # fmt: skip
        return {"id": f"resp_{self.number}", "object": "response", "status": "completed",
                "output": [asked]}  # fmt: skip


class Said(msgspec.Struct, frozen=True):
    """What came of a step: a result, or whether it was accepted."""

    result: ToolResult | None = None
    accepted: bool = False


class Host:
    """Takes the steps of a walk on one dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    async def do(self, what: str, case: Case, handle: str | None = None) -> Said:
        """Take a step; those with a handle are nothing where there is none yet."""
        dispatcher, session = self.dispatcher, case.session
        match what:
            case "ask" | "ask again":
                wait = 0.3 if case.tool == FOREIGN else SOON
                again = what == "ask again"
                turn = await dispatcher.dispatch(
                    case.response, session=session, wait=wait, again=again
                )
                return Said(turn[0])
            case "resume" if case.tool != FOREIGN:
                history = [{"role": "assistant", "content": case.content}]
                await dispatcher.resume(history, session=session, wait=SOON)
            case "approve" | "deny":
                return Said(accepted=await self._decide(what, case))
            case "cancel session":
                await dispatcher.cancel(session)
            case "cancel handle" if handle is not None:
                return Said(await dispatcher.task_cancel(handle, session=session))
            case "result" if handle is not None:
                return Said(await dispatcher.task_result(handle, session=session, wait=0.05))
            case "switch off":
                await dispatcher.deny(case.tool, reason="not now")
                return Said(accepted=True)
            case "switch on":
                await dispatcher.allow(case.tool)
            case "fill" | "empty":
                dispatcher._parts.in_flight._transport.is_full = what == "fill"
        return Said()

    async def _decide(self, what: str, case: Case) -> bool:
        approvals = self.dispatcher.approvals
        for approval in await approvals.waiting(session=case.session):
            try:
                decide = approvals.approve if what == "approve" else approvals.deny
                await decide(approval.id, by="anna")
            except (ApprovalRefused, KeyError):
                return False
            return True
        return False


async def _serve() -> None:
    """Take steps from stdin, each on its own; say on stdout what came of it."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Dispatcher.connect(settings=Settings(), hooks=HOOKS) as dispatcher:
        host = Host(dispatcher)

        async def answer(id: int, what: str, case: Any, handle: str | None) -> None:
            try:
                said: Any = await host.do(what, msgspec.convert(case, Case), handle)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(1, msgspec.json.encode([id, said]) + b"\n")

        os.write(1, b"ready\n")
        answering = set()
        async for line in lines:
            task = asyncio.ensure_future(answer(*json.loads(line)))
            answering.add(task)
            task.add_done_callback(answering.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
