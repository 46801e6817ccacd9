"""People are told by a webhook that a call waits: signed, and in nobody's way."""

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

SECRET = "a word of our own"


@tool(effects="write", approval=True)
async def pay(amount: int) -> int:
    """Pay."""
    return amount


class Taken:
    """What was posted: headers and body."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def address(taken: Taken) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.posts.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(taken.answers.pop(0) if taken.answers else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(200)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook"


def settings(url: str) -> Settings:
    return Settings(approval_webhook=url, approval_webhook_secret=SecretStr(SECRET))


def call(number: int = 1) -> dict[str, Any]:
    return {"id": f"c-{number}", "name": "pay", "input": {"amount": number}}


async def test_r57_a_call_that_waits_is_posted_signed_and_again_where_it_is_not_taken(
    address: str, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    taken.answers = [500]
    async with Dispatcher.in_memory([pay], settings=settings(address)) as dispatcher:
        await dispatcher.dispatch(call(), session="s-1", wait=0)
        await eventually(lambda: len(taken.posts) == 2, "it is posted again")
        [approval] = await dispatcher.approvals.waiting()
    for headers, body in taken.posts:
        assert json.loads(body)["data"]["id"] == approval.id == headers["webhook-id"]
        signed = f"{approval.id}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.digest(SECRET.encode(), signed, hashlib.sha256)
        assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert "HTTP 500" in caplog.text and "/hook" not in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # cut connections
async def test_r57_a_webhook_that_hangs_takes_no_thread_of_the_hosts(silent: str) -> None:
    """R57: what asyncio runs in threads goes on, such as the look for a server's address."""
    async with Dispatcher.in_memory([pay], settings=settings(silent)) as dispatcher:
        for number in range(100):
            await dispatcher.dispatch(call(number), session=f"s-{number}", wait=0)

        async def all_wait() -> bool:
            return len(await dispatcher.approvals.waiting()) == 100

        await eventually(all_wait, "the calls wait")
        async with asyncio.timeout(4):  # less than one post takes
            await asyncio.to_thread(int)


@pytest.mark.parametrize(
    "url",
    [
        "shop.example/hook",
        "ftp://shop.example/hook",
        "http://",
        "http://[::1/hook",
        "http://shop.example:99999/hook",
        "http://shop.example/a hook",
        "http://shop.example/\nhook",
        "http://anna:word@shop.example/hook",
    ],
)
def test_r62_an_address_that_cannot_be_posted_to_is_refused_at_once(url: str) -> None:
    with pytest.raises(Misconfigured, match="TOOLPOOL_APPROVAL_WEBHOOK must"):
        Dispatcher.in_memory([pay], settings=settings(url))
