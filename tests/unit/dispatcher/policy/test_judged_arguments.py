"""What a policy judges is what runs: defaults, spellings and the types of the tool included."""

from pathlib import Path, PurePosixPath as UrlPath
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RedisDsn,
    SecretStr,
)

from tests.unit.dispatcher.policy.test_approvals import one_waits
from toolpool import (
    AskApproval,
    Code,
    Deny,
    Dispatcher,
    Executed,
    Hooks,
    ProposedCall,
    Rewrite,
    ToolContext,
    ToolResult,
    tool,
)

RAN: list[Any] = []
SMALL = "00000000-0000-4000-8000-00000000000a"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


class Order(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    amount: int = Field(default=5, alias="total")
    currency: str = Field(default="EUR", validation_alias=AliasChoices("cur", "currency"))


@tool
async def delete(path: str, dry_run: bool = False, account: UUID | None = None) -> str:
    """Delete files."""
    RAN.append((path, dry_run))
    return "deleted"


@tool
async def order(order: Order) -> str:
    """Order."""
    RAN.append((order.amount, order.currency))
    return "ordered"


class Basket(BaseModel):
    id: str = Field(default_factory=lambda: uuid4().hex)
    lines: list[str] = Field(default_factory=list)


@tool
async def pack(basket: Basket) -> str:
    """Pack."""
    RAN.append(basket.lines)
    return "packed"


@tool
async def mail(
    to: Annotated[str, BeforeValidator(lambda text: text.strip().lower())], urgent: bool = False
) -> str:
    """Mail."""
    RAN.append(to)
    return "sent"


@tool(
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}, "dry_run": {"type": "boolean"}},
        "required": ["path"],
    }
)
async def raw_delete(path: str, dry_run: bool = False) -> str:
    """Delete files; the schema does not know the default."""
    RAN.append((path, dry_run))
    return "deleted"


@tool
async def charge(amount: int, ctx: ToolContext, **more: Any) -> str:
    """Charge."""
    RAN.append(ctx)
    return "charged"


TOKEN, HOME = SecretStr("the real one"), UrlPath("/home")


class Open(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="allow")

    amount: int = Field(default=5, alias="total")


@tool
async def pay(payment: Open) -> str:
    """Pay."""
    RAN.append(payment.model_dump())
    return "paid"


@tool
async def sign_in(
    user: str,
    token: SecretStr = TOKEN,
    home: UrlPath | str = HOME,
    seconds: float = 10,
    folder: UrlPath = ".",  # type: ignore[assignment]
) -> str:
    """Sign in."""
    RAN.append((token.get_secret_value(), home, seconds))
    return "signed in"


class Line(BaseModel):
    text: str
    note: str = "n" * 1_000


@tool
async def print_lines(lines: list[Line]) -> str:
    """Print."""
    RAN.append(len(lines))
    return "printed"


@tool
async def ping(cache: RedisDsn) -> str:
    """Ping."""
    RAN.append(cache)
    return "pong"


TOOLS = [delete, order, pack, mail, raw_delete, charge, pay, sign_in, print_lines, ping]


async def ruled(tmp_path: Path, rule: str, name: str, **arguments: Any) -> ToolResult:
    """What comes of a call under one rule that denies."""
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[rule]]\ntool = "{name}"\naction = "deny"\n{rule}\n')
    return await hooked(Hooks(policy=policy), name, **arguments)


async def hooked(hooks: Hooks, name: str, **arguments: Any) -> ToolResult:
    async with Dispatcher.in_memory([*TOOLS, as_one_dict], hooks=hooks) as dispatcher:
        turn = await dispatcher.dispatch([{"id": "c", "name": name, "input": arguments}])
        return turn[0]


@pytest.mark.parametrize(
    ("rule", "name", "arguments"),
    [
        ('argument = "dry_run"\ndiffers_from = true', "delete", {"path": "/"}),
        ('argument = "dry_run"\nequals = false', "delete", {"path": "/"}),
        (f'argument = "account"\nequals = "{SMALL}"', "delete", {"account": SMALL.upper()}),
        ('argument = "order.cur"\nnone_of = ["USD"]', "order", {"order": {}}),
    ],
    ids=["a default that differs", "a default that equals", "a UUID in capitals", "nested"],
)
async def test_a_rule_judges_the_value_that_the_tool_gets(
    tmp_path: Path, rule: str, name: str, arguments: dict[str, Any]
) -> None:
    arguments = {"path": "/"} | arguments if name == "delete" else arguments
    result = await ruled(tmp_path, rule, name, **arguments)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])


@pytest.mark.parametrize(
    ("rule", "name", "arguments"),
    [
        ('argument = "order.total"\nabove = 100', "order", {"order": {"amount": 900}}),
        ('argument = "order.cur"\nequals = "USD"', "order", {"order": {"currency": "USD"}}),
        ('argument = "to"\nequals = "ceo@shop.example"', "mail", {"to": " CEO@shop.example"}),
        ('argument = "dry_run"\nequals = false', "raw_delete", {"path": "/"}),
    ],
    ids=["a field by its name", "another alias", "a validator that rewrites", "a raw default"],
)
async def test_a_worker_refuses_arguments_that_its_types_read_in_another_way(
    tmp_path: Path, rule: str, name: str, arguments: dict[str, Any]
) -> None:
    result = await ruled(tmp_path, rule, name, **arguments)
    assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])
    assert "in another way" in (result.error or "")


async def test_a_hook_sees_what_the_tool_gets_and_the_worker_holds_the_call_to_it() -> None:
    seen: list[ProposedCall] = []
    assert (await hooked(Hooks(before_call=seen.append), "delete", path="/")).ok
    assert seen[0].arguments == {"path": "/", "dry_run": False, "account": None}
    refused = await hooked(Hooks(before_call=seen.append), "mail", to="A@b.example")
    assert (refused.code, refused.executed, RAN) == (Code.DENIED, Executed.NO, [("/", False)])


async def test_arguments_that_nobody_judges_are_sent_as_they_are(tmp_path: Path) -> None:
    rule = 'context = "role"\nequals = "guest"'
    assert (await ruled(tmp_path, rule, "order", order={"amount": 7})).ok
    assert RAN == [(7, "EUR")]


async def test_arguments_that_no_rule_looks_at_may_be_read_in_another_way(tmp_path: Path) -> None:
    assert (await ruled(tmp_path, 'context = "role"\nequals = "guest"', "mail", to=" A ")).ok
    assert RAN == ["a"]


async def test_only_the_paths_that_rules_look_at_are_compared(tmp_path: Path) -> None:
    rule = 'argument = "urgent"\nequals = true'
    assert (await ruled(tmp_path, rule, "mail", to=" A ")).ok
    assert RAN == ["a"]


async def test_a_rule_sees_an_empty_list_that_a_factory_makes(tmp_path: Path) -> None:
    rule = 'argument = "basket.lines"\nequals = []'
    result = await ruled(tmp_path, rule, "pack", basket={})
    assert (result.code, RAN) == (Code.DENIED, []) and "in another way" not in result.error


async def test_without_a_policy_arguments_are_sent_as_they_are() -> None:
    assert (await hooked(Hooks(), "mail", to=" A ")).ok
    assert (await hooked(Hooks(), "order", order={"amount": 7})).ok
    assert RAN == ["a", (7, "EUR")]


async def test_a_rewrite_is_judged_and_run_with_its_defaults(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nargument = "dry_run"\nequals = false\naction = "deny"\n')
    hooks = Hooks(before_call=lambda _: Rewrite({"path": "/tmp"}), policy=policy)
    result = await hooked(hooks, "delete", path="/", dry_run=True)
    assert (result.code, RAN) == (Code.DENIED, [])


async def test_a_person_is_shown_the_arguments_that_the_tool_gets() -> None:
    hooks = Hooks(before_call=lambda _: AskApproval())
    async with Dispatcher.in_memory(TOOLS, hooks=hooks) as dispatcher:
        sent = [{"id": "c", "name": "delete", "input": {"path": "/"}}]
        preview = (await dispatcher.preview(sent))[0]
        await dispatcher.dispatch(sent, session="s", turn="t", wait=0.01)
        approval = await one_waits(dispatcher)
        assert approval.arguments == {"path": "/", "dry_run": False, "account": None}
        assert preview.arguments == approval.arguments
        await dispatcher.dispatch(sent, session="s", turn="t", wait=0.01)
        assert await one_waits(dispatcher) == approval


async def test_a_switch_on_a_value_holds_for_the_default_and_other_spellings() -> None:
    async with Dispatcher.in_memory(TOOLS) as dispatcher:
        await dispatcher.deny("delete", argument="dry_run", value=False, reason="Not now.")
        await dispatcher.deny("delete", argument="account", value=SMALL.upper(), reason="No.")
        for arguments in ({}, {"dry_run": True, "account": SMALL}):
            sent = [{"id": "c", "name": "delete", "input": {"path": "/", **arguments}}]
            result = (await dispatcher.dispatch(sent))[0]
            assert (result.code, result.executed, RAN) == (Code.DENIED, Executed.NO, [])


@tool(
    input_schema={
        "type": "object",
        "properties": {"dry_run": {"type": "boolean", "default": False}},
        "additionalProperties": False,
    }
)
async def as_one_dict(arguments: dict[str, Any], ctx: ToolContext) -> str:
    """Take all arguments as one."""
    RAN.append(arguments)
    return "done"


@pytest.mark.parametrize("more", [{}, {"ctx": 1}])
async def test_a_field_that_is_injected_hides_no_default(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    rule = 'argument = "dry_run"\nequals = false'
    result = await ruled(tmp_path, rule, "as_one_dict", **more)
    assert (result.code, RAN) == (Code.DENIED, [])


async def test_a_model_cannot_give_what_is_injected() -> None:
    result = await hooked(Hooks(), "charge", amount=1, ctx={"context": {"role": "admin"}})
    assert (result.code, result.executed, RAN) == (Code.INVALID_ARGUMENTS, Executed.NO, [])


ENDLESS = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/N"}, "stop": {"type": "boolean"}},
    "$defs": {
        "N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N", "default": {}}}}
    },
}


@tool(input_schema=ENDLESS)
async def endless(arguments: dict[str, Any]) -> str:
    """Never ends."""
    RAN.append(arguments)
    return "ended"


@pytest.mark.parametrize("sent", [{}, {"next": {}}])
async def test_a_call_whose_defaults_have_no_end_is_denied(sent: dict[str, Any]) -> None:
    hooks = Hooks(before_call=lambda _: Rewrite({"next": {}}))
    async with Dispatcher.in_memory([endless], hooks=hooks) as dispatcher:
        turn = await dispatcher.dispatch([{"id": "c", "name": "endless", "input": sent}])
    assert (turn[0].code, turn[0].executed, RAN) == (Code.DENIED, Executed.NO, [])


async def test_a_hook_that_denies_judges_defaults() -> None:
    def before(call: ProposedCall) -> Deny | None:
        return None if call.arguments["dry_run"] else Deny("Only dry runs.")

    assert (await hooked(Hooks(before_call=before), "delete", path="/")).code is Code.DENIED


async def test_another_field_cannot_stand_beside_the_one_that_a_rule_judges(tmp_path: Path) -> None:
    rule = 'argument = "payment.total"\nabove = 100'
    for payment in ({"amount": 500}, {"total": 5, "amount": 500}):
        assert (await ruled(tmp_path, rule, "pay", payment=payment)).code is Code.DENIED
    assert RAN == []
    assert (await ruled(tmp_path, rule, "pay", payment={"total": 5, "note": "x"})).ok


async def test_a_default_that_json_cannot_show_stays_what_it_is(tmp_path: Path) -> None:
    """A SecretStr's is shown as asterisks, and a path in a union with text would become a text."""
    rule = 'argument = "user"\nequals = "eve"'
    assert (await ruled(tmp_path, rule, "sign_in", user="ann")).ok
    assert (await hooked(Hooks(before_call=lambda _: None), "sign_in", user="ann")).ok
    assert all(ran == ("the real one", HOME, 10) for ran in RAN)
    assert len(RAN) == 2
    folder = 'argument = "folder"\nequals = "."'
    assert (await ruled(tmp_path, folder, "sign_in", user="ann")).code is Code.DENIED
    assert (await ruled(tmp_path, folder, "sign_in", user="ann", folder="x")).ok
    about_it = rule.replace('"user"', '"token"')
    assert (await ruled(tmp_path, about_it, "sign_in", user="ann")).code is Code.DENIED


async def test_arguments_that_are_too_large_with_their_defaults_are_denied_at_once(
    tmp_path: Path,
) -> None:
    rule = 'argument = "lines[*].text"\nequals = "x"'
    lines = [{"text": "a"}] * 3_000
    denied = await ruled(tmp_path, rule, "print_lines", lines=lines)
    assert (denied.code, denied.executed) == (Code.DENIED, Executed.NO)
    assert (await ruled(tmp_path, rule, "print_lines", lines=lines[:1_000])).ok
    written = await hooked(
        Hooks(before_call=lambda _: Rewrite({"lines": lines})), "print_lines", lines=[]
    )
    assert written.code is Code.DENIED


async def test_a_rule_does_not_compare_addresses_that_their_type_completes(tmp_path: Path) -> None:
    rule = 'argument = "cache"\nequals = "redis://localhost"'
    for cache in ("redis://localhost:6379/0", "redis://other"):
        assert (await ruled(tmp_path, rule, "ping", cache=cache)).code is Code.DENIED
