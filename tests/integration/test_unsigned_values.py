"""What an operator's commands make of values that somebody without our key wrote to the server."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from toolpool import find
from toolpool.cli import main
from toolpool.contract.envelope import (
    BackgroundCall,
    CallMessage,
    Envelope,
    Question,
)
from toolpool.contract.inspection import (
    Answer,
    CallStatus,
    DispatcherReport,
    answer_stream,
    signed_answer,
)
from toolpool.contract.names import Names
from toolpool.contract.server.connection import keyring
from toolpool.contract.settings import Settings
from toolpool.fleet import read_fleet, turn_switch

NAMES = Names()
Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def settings(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", redis_url)
    return Settings(redis_url=redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as connected:
        yield connected
        connected.delete(NAMES.switches)


@pytest.fixture
def command(settings: Settings, capfd: pytest.CaptureFixture[str]) -> Command:
    def run(*argv: str) -> tuple[int, Any]:
        capfd.readouterr()
        code = main([*argv, "--json"])
        out, err = capfd.readouterr()
        return int(code), json.loads(out) if out else err

    return run


def handed_over(settings: Settings, client: Any, handle: str, **more: Any) -> BackgroundCall:
    """A background call as a dispatcher stores it."""
    message = CallMessage(id="c", key="k-1", tool="t", digest="", arguments={}, session="s")
    known = {"tenant": settings.tenant, "session": "s", "queue": "q", "started_at": time.time()}
    call = BackgroundCall(handle=handle, message=message, deadline=0.0, **(known | more))
    body = Envelope(keyring(settings)).encode_background(call)
    client.set(NAMES.background(handle), body, ex=60)
    return call


def test_an_answer_to_another_question_is_not_believed(
    settings: Settings, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "q" * 32)
    envelope = Envelope(keyring(settings))
    stream = answer_stream(NAMES, Question(id="q" * 32, ends_at=0.0))
    for question, code in (("old", "aborted.cancelled"), ("q" * 32, "")):
        status = CallStatus(call="c", tool="t", key="k", state="RUNNING", age=1.0, cancelled=code)
        answer = Answer(question=question, dispatcher="d", calls=[status])
        client.xadd(stream, {"b": signed_answer(envelope, answer)})
    client.expire(stream, 60)
    report = DispatcherReport(
        id="d", host="h", pid=1, version="1", tenant="default", started_at=0.0
    )
    answers = find.ask(settings, [report], key="k", cancel=True)
    assert [status.cancelled for _, status in answers.calls] == [""]


@pytest.mark.parametrize(("handle", "tenant"), [("one", "another"), ("copied", "default")])
def test_a_handle_of_another_tenant_or_another_handles_copy_is_unknown(
    settings: Settings, client: Any, handle: str, tenant: str
) -> None:
    handed_over(settings, client, "one", tenant=tenant)
    client.copy(NAMES.background("one"), NAMES.background("copied"), replace=True)
    assert find.Finder(settings).handed_over(handle) is None


def test_an_old_state_of_a_switch_does_not_show_as_denied(settings: Settings, client: Any) -> None:
    assert not turn_switch(settings, "t", None, None, "incident", on=True)
    [denied] = client.hvals(NAMES.switches)
    assert [switch.tool for switch in read_fleet(settings).switches] == ["t"]
    assert turn_switch(settings, "t", None, None, "", on=False)
    client.hset(NAMES.switches, "copy", denied)
    assert read_fleet(settings).switches == []
    assert not turn_switch(settings, "t", None, None, "", on=False)
