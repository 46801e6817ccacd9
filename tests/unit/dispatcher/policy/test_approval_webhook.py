"""People are told by a signed webhook that a call waits for them."""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from tests.waiting import eventually
from toolpool import Dispatcher, Misconfigured, Settings, tool

SECRET = base64.b64encode(b"a word of our own").decode()


@tool(effects="write", approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Chat:
    """Where it is posted; answers with these statuses, in order, and 200 after them."""

    def __init__(self, *statuses: int) -> None:
        self.posted: list[tuple[dict[str, str], bytes]] = []
        chat, left = self, list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                chat.posted.append((headers, body))
                self.send_response(left.pop(0) if left else 200)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def chat(request: pytest.FixtureRequest) -> Iterator[Chat]:
    chat = Chat(*getattr(request, "param", ()))
    yield chat
    chat.close()


def settings(chat: Chat, secret: str = SECRET) -> Settings:
    return Settings(
        approval_webhook=chat.url, approval_webhook_secret=SecretStr(secret), background_wait=0.0
    )


async def one_is_asked(chat: Chat, secret: str = SECRET, times: int = 1) -> str:
    """The id of the approval that is told of."""
    async with Dispatcher.in_memory([pay], settings=settings(chat, secret)) as dispatcher:
        await dispatcher.dispatch({"id": "c", "name": "pay", "input": {"amount": 5}}, session="s-1")
        await eventually(lambda: len(chat.posted) >= times, "it is posted", within_seconds=20)
        [approval] = await dispatcher.approvals.waiting()
        return approval.id


@pytest.mark.parametrize(
    "secret", [SECRET, f"whsec_{SECRET}", SECRET.rstrip("="), f"whsec_{SECRET.rstrip('=')}"]
)
async def test_it_is_signed_as_standard_webhooks_are(chat: Chat, secret: str) -> None:
    """Their library reads base64 with and without its prefix and padding."""
    id = await one_is_asked(chat, secret)
    headers, body = chat.posted[0]
    signed = f"{id}.{headers['webhook-timestamp']}.".encode() + body
    signature = base64.b64encode(hmac.digest(b"a word of our own", signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"
    assert headers["webhook-id"] == id and headers["content-type"] == "application/json"
    told = json.loads(body)
    assert told["type"] == "approval.waiting"
    assert (told["data"]["id"], told["data"]["arguments"]) == (id, {"amount": 5})


@pytest.mark.parametrize("chat", [(500, 302)], indirect=True)
async def test_what_is_not_taken_is_posted_again_and_no_redirection_followed(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.policy.approval_webhook._FIRST_PAUSE_SECONDS", 0.01)
    await one_is_asked(chat, times=3)
    assert len({body for _, body in chat.posted}) == 1


@pytest.mark.parametrize("chat", [(500,) * 9], indirect=True)
async def test_a_call_waits_for_approval_without_a_notifier(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.policy.approval_webhook._FIRST_PAUSE_SECONDS", 0.01)
    async with Dispatcher.in_memory([pay], settings=settings(chat)) as dispatcher:
        asking = asyncio.ensure_future(
            dispatcher.dispatch({"name": "pay", "input": {"amount": 5}}, session="s", wait=30)
        )
        await eventually(lambda: len(chat.posted) == 4, "four times")
        told = "hook_failed hook=webhook tool=pay call=: HTTP 500"
        await eventually(lambda: told in caplog.text, "operators are told at last")
        [approval] = await dispatcher.approvals.waiting()
        await dispatcher.approvals.approve(approval.id, by="anna")
        assert (await asking)[0].ok
    assert "toolpool approvals list" in caplog.text and SECRET not in caplog.text
    assert "HTTP 500" in caplog.text and "/hook" not in caplog.text


async def test_a_webhook_that_hangs_takes_no_thread_of_the_hosts() -> None:
    """R57: what asyncio runs in threads goes on, such as the look for a server's address."""

    def posting() -> bool:
        return any(thread.name == "toolpool webhook" for thread in threading.enumerate())

    with socket.socket() as silent:  # it takes connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen(200)
        hangs = Settings(
            approval_webhook=f"http://127.0.0.1:{silent.getsockname()[1]}",
            approval_webhook_secret=SecretStr(SECRET),
            hook_timeout=60,
        )
        async with Dispatcher.in_memory([pay], settings=hangs) as dispatcher:
            for i in range(100):
                asked = {"id": f"c-{i}", "name": "pay", "input": {"amount": i}}
                await dispatcher.dispatch(asked, session=f"s-{i}", wait=0)
            await eventually(posting, "it is posted")
            async with asyncio.timeout(20):
                await asyncio.to_thread(int)
            assert posting()
            silent.close()
    await eventually(lambda: not posting(), "the connections are cut")


@pytest.mark.parametrize(
    ("url", "secret", "told"),
    [
        ("ftp://x", SECRET, "https://"),
        ("chat", SECRET, "https://"),
        ("http://", SECRET, "https://"),
        ("http://[::1/hook", SECRET, "https://"),
        ("http://chat.example:99999/hook", SECRET, "https://"),
        ("http://chat.example/a hook", SECRET, "https://"),
        ("http://chat.example/\nhook", SECRET, "https://"),
        ("http://anna:word@chat.example/hook", SECRET, "https://"),
        ("https://chat.example", "", "TOOLPOOL_APPROVAL_WEBHOOK_SECRET"),
        ("https://chat.example", "whsec_!", "base64"),
        ("https://chat.example", "a word of our own", "base64"),
        ("https://chat.example", "whsec_", "base64"),
        ("https://chat.example", "abcde", "base64"),
    ],
)
def test_a_webhook_that_cannot_be_used_is_refused_at_once(url: str, secret: str, told: str) -> None:
    wrong = Settings(
        approval_webhook=url, approval_webhook_secret=SecretStr(secret) if secret else None
    )
    with pytest.raises(Misconfigured, match=told):
        Dispatcher.in_memory([pay], settings=wrong)
