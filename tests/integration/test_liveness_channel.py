"""The channel by which a server knows that a worker lives."""

from collections.abc import Iterator

import pytest

from tests.chaos.servers import Server
from tests.waiting import wait_until
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.workers import liveness_channel
from toolpool.workers.liveness_channel import LivenessChannel

TIMES = 120
"""More than redis-py's pool has connections."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"), aof=False)
    yield started
    started.close()


def test_it_is_subscribed_again_however_often_it_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_channel, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(liveness_channel, "_STOP_SECONDS", 0.01)
    changes: list[bool] = []
    client = connection.open_sync(Settings(redis_url=server.url))
    channel = LivenessChannel(client, "c", lambda: changes.append(channel.is_open))
    channel.start()
    with server.client() as other:
        for number in range(TIMES):
            wait_until(lambda seen=number: changes.count(True) > seen, "it is subscribed")
            assert dict(other.pubsub_numsub("c")) == {b"c": 1}
            if number % 2:
                channel.reopen()
            else:
                other.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            wait_until(lambda seen=number: changes.count(False) > seen, "it knows it", 5.0)
        assert channel.closed_at > 0
    assert client.ping()
    channel.stop()


def test_a_user_without_the_right_to_subscribe_is_not_subscribed(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liveness_channel, "_PAUSE_SECONDS", 0.001)
    caplog.set_level("INFO", "toolpool")
    with server.client() as other:
        other.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-subscribe")
    url = server.url.replace("unix://", "unix://mute:x@")
    client = connection.open_sync(Settings(redis_url=url))
    channel = LivenessChannel(client, "c", lambda: None)
    channel.start()
    wait_until(lambda: "liveness_channel_closed" in caplog.text, "it is refused")
    assert not channel.is_open
    assert channel.closed_at == float("-inf")
    channel.stop()
