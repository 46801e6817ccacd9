"""Every item of an OpenAI response that waits for an answer gets one in its own form (R47)."""

from typing import Any

import pytest
from openai.types.responses import Response as SdkResponse

from tests.sdk_types import hold_item
from toolpool import Dispatcher, ToolContext, tool
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.turn_result import TurnResult

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"


@tool
async def shell(commands: list[str], timeout_ms: int = 0, max_output_length: int = 0) -> Any:
    """Run commands."""
    return {"stdout": " ".join(commands), "stderr": "", "exit_code": 3}


@tool
async def local_shell(command: list[str], env: dict[str, str]) -> str:
    """Run a command."""
    return " ".join(command)


@tool
async def apply_patch(type: str, path: str, diff: str = "") -> str:
    """Patch a file."""
    return f"{type} {path}"


@tool
async def computer(actions: list[dict[str, Any]], ctx: ToolContext) -> Any:
    """Use a computer."""
    return [{"type": "image", "data": PNG, "mimeType": "image/png"}]


@tool
async def tool_search(query: str) -> list[dict[str, Any]]:
    """Find tools."""
    return [{"type": "function", "name": query, "parameters": {}, "strict": False}]


@tool(name="crm.delete")
async def crm_delete() -> str:
    """Delete a customer."""
    return "customer"


@tool(name="billing.delete")
async def billing_delete() -> str:
    """Delete an invoice."""
    return "invoice"


TOOLS = [shell, local_shell, apply_patch, computer, tool_search, crm_delete, billing_delete]
DIRECT, PROGRAM = {"type": "direct"}, {"type": "program", "caller_id": "call_p"}

ITEMS: dict[str, dict[str, Any]] = {
    "shell_call": {
        "type": "shell_call", "id": "sh_1", "call_id": "call_1", "status": "in_progress",
        "action": {"commands": ["ls"], "timeout_ms": 100, "max_output_length": 4096},
        "environment": {"type": "local"}, "caller": DIRECT,
    },
    "local_shell_call": {
        "type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "status": "completed",
        "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": None},
    },
    "apply_patch_call": {
        "type": "apply_patch_call", "id": "apc_1", "call_id": "call_1", "status": "completed",
        "operation": {"type": "update_file", "path": "a.txt", "diff": "+a"},
    },
    "computer_call": {
        "type": "computer_call", "id": "cu_1", "call_id": "call_1", "status": "completed",
        "pending_safety_checks": [], "actions": [{"type": "screenshot"}],
    },
    "tool_search_call": {
        "type": "tool_search_call", "id": "ts_1", "call_id": "call_1", "status": "completed",
        "execution": "client", "arguments": {"query": "weather"},
    },
    "mcp_approval_request": {
        "type": "mcp_approval_request", "id": "mcpr_1", "name": "drop", "arguments": "{}",
        "server_label": "db",
    },
    "custom_tool_call": {
        "type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "sql",
        "input": "select 1",
    },
    "function_call": {
        "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "delete",
        "arguments": "{}", "namespace": "crm", "caller": DIRECT,
    },
}  # fmt: skip


def response(*items: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": list(items),
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed",
    }  # fmt: skip


async def answered(*items: dict[str, Any], tools: Any = TOOLS) -> TurnResult:
    async with Dispatcher.in_memory(tools) as dispatcher:
        plain = await dispatcher.dispatch(response(*items))
        sdk = await dispatcher.dispatch(SdkResponse.model_validate(response(*items)))
        assert sdk.messages() == plain.messages()
        for item in plain.messages():
            hold_item(item)
        return plain


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "shell_call",
            {"type": "shell_call_output", "call_id": "call_1", "max_output_length": 4096,
             "caller": DIRECT,
             "output": [{"stdout": "ls", "stderr": "",
                         "outcome": {"type": "exit", "exit_code": 3}}]},
        ),
        (
            "local_shell_call",
            {"type": "local_shell_call_output", "id": "call_1", "output": "ls -l",
             "status": "completed"},
        ),
        (
            "apply_patch_call",
            {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed",
             "output": "update_file a.txt"},
        ),
        (
            "computer_call",
            {"type": "computer_call_output", "call_id": "call_1",
             "output": {"type": "computer_screenshot",
                        "image_url": f"data:image/png;base64,{PNG}"}},
        ),
        (
            "tool_search_call",
            {"type": "tool_search_output", "call_id": "call_1", "execution": "client",
             "status": "completed",
             "tools": [{"type": "function", "name": "weather", "parameters": {},
                        "strict": False}]},
        ),
        (
            "function_call",
            {"type": "function_call_output", "call_id": "call_1", "output": "customer",
             "namespace": "crm", "caller": DIRECT},
        ),
    ],
)  # fmt: skip
async def test_a_built_in_kind_calls_the_tool_of_its_name(kind: str, expected: Any) -> None:
    turn = await answered(ITEMS[kind])
    assert turn.ok, turn[0]
    assert turn.messages() == [expected]


@pytest.mark.parametrize("kind", ITEMS)
async def test_what_no_tool_is_there_for_is_answered_all_the_same(kind: str) -> None:
    turn = await answered(ITEMS[kind], tools=[billing_delete])
    [result] = turn
    assert result.code is (Code.DENIED if "approval" in kind else Code.UNKNOWN_TOOL)
    if kind not in ("custom_tool_call", "function_call", "mcp_approval_request"):
        assert (result.error or "").startswith(f"'{kind}' is not supported here: no tool is named")
    first = turn.messages()[0]
    assert first["type"] == kind.replace("request", "response").replace(
        "_call", "_call_output"
    ) or (first["type"] in ("tool_search_output", "function_call_output"))
    assert ITEMS[kind].get("call_id", "mcpr_1") in first.values()


async def test_a_computer_call_without_a_picture_is_told_in_words_beside_an_empty_one() -> None:
    turn = await answered(ITEMS["computer_call"], tools=[shell])
    picture, words = turn.messages()
    assert picture["output"]["image_url"].startswith("data:image/png;base64,")
    assert "'computer_call' is not supported here" in words["content"]


async def test_an_action_with_open_safety_checks_is_not_run() -> None:
    checks = [{"id": "sc_1", "code": "malicious_instructions", "message": "look at this"}]
    turn = await answered({**ITEMS["computer_call"], "pending_safety_checks": checks})
    assert turn[0].code is Code.DENIED


async def test_a_request_for_approval_is_denied_where_nobody_can_approve() -> None:
    turn = await answered(ITEMS["mcp_approval_request"])
    assert turn.messages() == [
        {
            "type": "mcp_approval_response",
            "approval_request_id": "mcpr_1",
            "approve": False,
            "reason": "Nobody here can approve calls. It was not run.",
        }
    ]


async def test_hosted_items_are_left_to_the_api() -> None:
    turn = await answered(
        {**ITEMS["tool_search_call"], "execution": "server"},
        {**ITEMS["shell_call"], "environment": {
            "type": "container_reference", "container_id": "c"}},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {
            "type": "search", "query": "x"}},
    )  # fmt: skip
    assert (list(turn), turn.messages()) == ([], [])


async def test_a_namespace_is_part_of_the_name() -> None:
    """R48: two tools called `delete` are two tools; one of the tool's own name is none."""
    crm = ITEMS["function_call"]
    billing = {**crm, "namespace": "billing", "call_id": "call_2"}
    own = {**crm, "name": "shell", "namespace": "shell", "call_id": "call_3"}
    own["arguments"] = '{"commands": []}'
    other = {**crm, "namespace": "hr", "call_id": "call_4"}
    turn = await answered(crm, billing, own, other)
    assert [result.data for result in turn[:2]] == ["customer", "invoice"]
    assert turn[2].ok
    assert turn[3].code is Code.UNKNOWN_TOOL


async def test_a_program_gets_the_bare_value() -> None:
    """R48: no note and nothing around it; a failure is the payload as JSON."""
    note = {"arguments": "```json\n{}\n```", "caller": PROGRAM}
    turn = await answered({**ITEMS["function_call"], **note})
    [item] = turn.messages()
    assert turn[0].note is not None
    assert (item["output"], item["caller"]) == ("customer", PROGRAM)
    missing = {**ITEMS["function_call"], "name": "none", "caller": PROGRAM}
    [item] = (await answered(missing)).messages()
    assert item["output"].startswith('{"ok":false')


async def test_an_origin_is_of_its_own_form_only() -> None:
    turn = await answered(ITEMS["shell_call"])
    [message] = turn.messages("anthropic")
    assert message["content"][0]["type"] == "tool_result"
    assert turn.messages("bare")[0]["ok"] is True


async def test_a_result_asked_for_again_has_its_origin_again() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        turns = [
            await dispatcher.dispatch(response(ITEMS["shell_call"]), session="s") for _ in range(2)
        ]
    assert turns[0].messages() == turns[1].messages()
    assert isinstance(turns[1][0], ToolResult)
