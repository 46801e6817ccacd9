"""A call that lacks a secret is answered unrun; what keeps them may fail without others (R59)."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fleets import entrusted, vault
from tests.integration.fleet import call
from toolpool import Dispatcher, Misconfigured, Settings, SyncDispatcher, Tool, ToolContext, tool
from toolpool.contract import logs
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.workers.credentials import resolver
from toolpool.workers.credentials.secret_sources import Resolve

RESOLVERS = [vault.resolve, vault.resolve_in_a_thread]
SIGN_IN = "https://sign-in.example/oauth?for=github"


@asynccontextmanager
async def pool(secrets: Resolve | None, /, **settings: Any) -> AsyncIterator[Dispatcher]:
    made = Settings(retry_delay=0.01, **settings)
    async with Dispatcher.in_memory([entrusted], settings=made, secrets=secrets) as dispatcher:
        yield dispatcher


async def asked(dispatcher: Dispatcher, name: str, user: object, **arguments: Any) -> ToolResult:
    turn = await dispatcher.dispatch(call(name, **arguments), context={"user": user}, session="s")
    return turn[0]


@pytest.mark.parametrize("resolve", RESOLVERS)
@pytest.mark.parametrize(
    ("user", "text", "details"),
    [
        (
            "nobody",
            "No credential 'api-key' is set up for tool 'needs_one'. It was not run. "
            "Tell the user: the same call can work once an operator has set it up.",
            {"lack": "missing", "name": "api-key"},
        ),
        (
            "unknown",
            "No credential 'api-key' is set up for tool 'needs_one'. It was not run. "
            "Tell the user: the same call can work once an operator has set it up.",
            {"lack": "missing", "name": "api-key"},
        ),
        (
            "stranger",
            "Tool 'needs_one' needs the user to sign in. It was not run. "
            f"Ask the user to, then call it again: {SIGN_IN}",
            {"lack": "sign_in", "name": "api-key", "url": SIGN_IN},
        ),
        (
            "strange",
            "Tool 'needs_one' needs the user to sign in. It was not run. "
            "Ask the user to, then call it again.",
            {"lack": "sign_in", "name": "api-key"},
        ),
    ],
)
async def test_what_is_missing_is_said_and_the_tool_is_not_run(
    resolve: Resolve, user: str, text: str, details: dict[str, str], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with pool(resolve) as dispatcher:
        for _ in range(5):  # it is no loop: the same call is right, once somebody has signed in
            result = await asked(dispatcher, "needs_one", user, file=str(notes))
            assert (result.code, result.executed) == (Code.REPORTED, Executed.NO), result
        after = await asked(dispatcher, "needs_one", "someone", file=str(notes))
    assert result.error == text
    assert result.details == {"credential": details}
    assert (result.retryable, result.recommendations, result.attempts) == (True, (), 1)
    assert after.ok
    assert notes.read_text().split() == ["ran"]


async def test_the_model_reads_it_in_its_language() -> None:
    async with pool(vault.resolve, locale="zh") as dispatcher:
        result = await asked(dispatcher, "reads", "stranger")
        missing = await asked(dispatcher, "reads", "nobody")
        failed = await asked(dispatcher, "reads", "down")
    assert result.error == (
        f"工具 'reads' 需要用户登录。 该调用未执行。 请让用户登录，然后再次调用：{SIGN_IN}"
    )
    assert "没有配置凭据 'api-key'" in (missing.error or "")
    assert "保管其凭据的系统出现故障" in (failed.error or "")


async def test_the_pool_does_not_try_again_what_waits_for_a_person() -> None:
    async with pool(vault.resolve) as dispatcher:
        assert (await asked(dispatcher, "reads", "stranger")).attempts == 1
        assert (await asked(dispatcher, "reads", "down")).attempts == 3, "that may pass by itself"


async def test_a_tool_may_ask_for_a_sign_in_itself() -> None:
    async with pool(vault.resolve) as dispatcher:
        result = await asked(dispatcher, "slip_on_the_loop", "u", how="sign in")
    assert (result.code, result.executed) == (Code.REPORTED, Executed.YES)
    assert result.error == (
        "Tool 'slip_on_the_loop' needs the user to sign in. Ask the user to, then call it again."
    )


@pytest.mark.parametrize("resolve", RESOLVERS)
@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("down", "it raised tests.fleets.vault.VaultDown"),
        ("exits", "it raised builtins.SystemExit"),
        ("wrong", "it returned bytes, not text"),
        ("large", "it returned more than 65,536 characters"),
        ("odd", "it returned text that is not Unicode"),
        ({"id": 1}, "the context's 'user' is dict, not text"),
        (True, "the context's 'user' is bool, not text"),
    ],
)
async def test_a_failing_secret_source_is_an_operator_error(
    resolve: Resolve, user: object, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs.forget_repeats()
    notes = tmp_path / "notes"
    async with pool(resolve) as dispatcher:
        with caplog.at_level(logging.INFO):
            results = [
                await asked(dispatcher, "needs_one", user, file=str(notes)) for _ in range(3)
            ]
        assert (await asked(dispatcher, "needs_one", "someone", file=str(notes))).ok
    for result in results:
        assert (result.code, result.executed, result.retryable) == (
            Code.INTERNAL, Executed.NO, True,
        )  # fmt: skip
        assert result.error == (
            "Tool 'needs_one' gave no result: the system that keeps its credentials failed. "
            "It was not run."
        )
    said = [r.getMessage() for r in caplog.records if "secret_unresolved" in r.getMessage()]
    assert len(said) == 1, "once a minute"
    assert said[0].startswith(
        f"secret_unresolved name=api-key tool=needs_one source=secrets=: {why}"
    )
    assert "Tk" not in caplog.text
    assert ("in _resolve" in said[0]) is (user in ("down", "exits"))


@pytest.mark.parametrize(
    ("resolve", "settings", "user", "told"),
    [
        (None, {}, "anna", "source=none: TOOLPOOL_SECRETS is not set"),
        (None, {"secrets": "env"}, "anna", "source=env: it is not set up"),
        (lambda **_: None, {}, None, "source=secrets=: it is not set up"),
        (lambda **_: None, {}, "anna", ""),
        (vault.resolve, {}, "stranger", ""),
    ],
)
async def test_a_secret_that_an_operator_has_to_set_up_is_told_to_operators(
    resolve: Resolve | None, settings: dict[str, Any], user: str | None, told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """And what a user may have to set up, or to sign in for, is not."""
    logs.forget_repeats()
    async with pool(resolve, **settings) as dispatcher:
        assert (await asked(dispatcher, "reads", user)).code is Code.REPORTED
    said = [r.getMessage() for r in caplog.records if "secret_unresolved" in r.getMessage()]
    assert said == ([f"secret_unresolved name=api-key tool=reads {told}"] if told else [])


@pytest.mark.parametrize(
    "resolve", [vault.resolve, vault.resolve_in_a_thread, vault.hangs_politely]
)
async def test_a_source_that_hangs_holds_up_no_other_call(resolve: Resolve) -> None:
    async with pool(resolve, hook_timeout=0.3, slots_loop=2) as dispatcher:
        hanging = asyncio.ensure_future(asked(dispatcher, "reads", "hangs"))
        for _ in range(20):
            assert (await asked(dispatcher, "works", "u")).ok
        assert not hanging.done()
        result = await hanging
    assert (result.code, result.executed, result.attempts) == (Code.INTERNAL, Executed.NO, 3)


async def test_a_thread_that_hangs_for_one_user_holds_up_no_other() -> None:
    async with pool(vault.resolve_in_a_thread, hook_timeout=0.3) as dispatcher:
        hanging = [asyncio.ensure_future(asked(dispatcher, "reads", "hangs")) for _ in range(3)]
        assert (await asked(dispatcher, "reads", "someone")).ok
        await asyncio.gather(*hanging)


async def test_hanging_requests_take_no_more_threads_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "_THREADS", 2)
    inside: list[str | None] = []
    goes_on = threading.Event()

    def resolve(*, tenant: str, user: str | None, name: str) -> str:
        inside.append(user)
        goes_on.wait(30)
        return "a secret"

    async with pool(resolve, hook_timeout=0.2) as dispatcher:
        calls = [asked(dispatcher, "tells_its_end", f"u{number}") for number in range(5)]
        results = await asyncio.gather(*calls)
        assert {result.code for result in results} == {Code.INTERNAL}
        assert len(inside) == 2
        goes_on.set()
        assert (await asked(dispatcher, "tells_its_end", "after")).data == "cret"


async def test_a_call_that_ends_while_it_waits_for_its_secret_was_not_run() -> None:
    async with pool(vault.hangs_politely, hook_timeout=30.0, queue_timeout=0.3) as dispatcher:
        turn = await dispatcher.dispatch(call("reads"), timeout=0.2, session="s")
        assert (turn[0].code, turn[0].executed) == (Code.EXPIRED, Executed.NO), turn[0]
        waiting = asyncio.ensure_future(dispatcher.dispatch(call("reads"), timeout=20.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(dispatcher.close(), 10)


@pytest.mark.parametrize(("user", "found"), [(7, "7"), ("7", "7"), ("", None), (None, None)])
async def test_the_user_is_what_the_context_names(user: object, found: str | None) -> None:
    who: list[tuple[str, str | None, str]] = []

    def resolve(*, tenant: str, user: str | None, name: str) -> str:
        who.append((tenant, user, name))
        return "a secret"

    async with pool(resolve, tenant="acme") as dispatcher:
        await dispatcher.dispatch(call("tells_its_end"), context={"user": user, "account": "x"})
        await dispatcher.dispatch(call("tells_its_end"))
    assert who == [("acme", found, "api-key"), ("acme", None, "api-key")]


async def test_a_tool_gets_only_what_it_declares() -> None:
    async with pool(vault.resolve) as dispatcher:
        result = await asked(dispatcher, "needs_none", "u")
    assert result.code is Code.RAISED
    assert "needs_none asks for the secret 'api-key' and does not declare it" in (
        result.error or ""
    )


async def test_without_a_source_nothing_is_set_up() -> None:
    async with pool(None) as dispatcher:
        result = await asked(dispatcher, "reads", "u")
    assert result.details == {"credential": {"lack": "missing", "name": "api-key"}}


def test_in_memory_uses_what_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(secrets="tests.fleets.vault:resolve")
    with SyncDispatcher.in_memory([entrusted.tells_its_end], settings=settings) as dispatcher:
        own = vault.value_of("default", None, "api-key")
        assert dispatcher.dispatch(call("tells_its_end"))[0].data == own[-4:]
    with pytest.raises(Misconfigured, match="cannot be loaded"):
        Dispatcher.in_memory([entrusted.works], settings=Settings(secrets="no_such:thing"))
    with pytest.raises(Misconfigured, match="secrets= is str, not a function"):
        Dispatcher.in_memory([entrusted.works], secrets="x")  # type: ignore[arg-type]


async def test_a_result_that_hiding_makes_too_long_is_refused() -> None:
    @tool(secrets=["api-key"], max_output=10_000)
    async def repeats(ctx: ToolContext) -> str:
        """Repeat it."""
        return ctx.secret("api-key") * 1_000

    settings = Settings(max_result_bytes=7_000)
    async with Dispatcher.in_memory(
        [repeats], settings=settings, secrets=lambda tenant, user, name: "123456"
    ) as dispatcher:
        result = (await dispatcher.dispatch(call("repeats")))[0]
    assert result.code is Code.BAD_RESULT
    assert "16,002 bytes; at most 7,000" in (result.error or "")


async def test_what_is_wrong_with_a_result_is_not_told_with_the_secret_in_it() -> None:
    @tool(secrets=["api-key"])
    async def returns(ctx: ToolContext) -> int:
        """Return what is not declared."""
        return ctx.secret("api-key")  # type: ignore[return-value]

    async with pool_of(returns) as dispatcher:
        result = (await dispatcher.dispatch(call("returns")))[0]
    assert result.code is Code.BAD_RESULT
    assert "hunter2" not in f"{result}"


@asynccontextmanager
async def pool_of(declared: Tool) -> AsyncIterator[Dispatcher]:
    async with Dispatcher.in_memory(
        [declared], secrets=lambda tenant, user, name: "hunter2"
    ) as dispatcher:
        yield dispatcher


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a b", "a/b", "x" * 65, 5])
def test_a_name_that_is_none_is_refused_at_declaration(name: Any) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="is not a secret name"):

        @tool(secrets=[name])
        async def needy(ctx: ToolContext) -> None:
            """Need it."""


def test_secrets_without_a_context_are_refused_at_declaration() -> None:
    with pytest.raises(ToolDeclarationInvalid, match="needs a parameter of type ToolContext"):

        @tool(secrets=["x"])
        async def needy() -> None:
            """Need it."""


def test_a_tool_can_be_tested_with_secrets_of_the_tests_own() -> None:
    context = ToolContext(call_id="c", tool="t", secrets={"api-key": "hunter2"})
    assert context.secret("api-key") == "hunter2"
    assert "hunter2" not in repr(context)
