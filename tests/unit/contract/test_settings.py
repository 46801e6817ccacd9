"""Settings from the environment, and what is said of those that cannot be."""

from pathlib import Path
from typing import Any

import pydantic
import pytest
from pydantic import SecretStr

from contract import connection
from contract.errors import Misconfigured, SigningKeyMissing
from contract.names import Names, is_queue
from contract.settings import Settings
from contract.signing import Keyring, generate_key
from contract.spec import RunIn
from toolpool.cli.options import load_settings


def test_every_setting_has_a_variable_a_default_and_a_description(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name
    monkeypatch.setenv("TOOLPOOL_QUEUE_WAIT", "7.5")
    monkeypatch.setenv("TOOLPOOL_WORKSPACE", "/srv/work")
    settings = Settings()
    assert (settings.queue_wait, settings.workspace) == (7.5, Path("/srv/work"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUEUE_WAIT", "0"), ("QUEUE_WAIT", "soon"), ("MAX_MESSAGE", "-1"),
        ("BATCH_LOOP", "0"), ("BASH", "perhaps"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TOOLPOOL_{name}", value)
    with pytest.raises(pydantic.ValidationError, match=name.lower()):
        Settings()


@pytest.mark.parametrize(
    ("renewed", "gone"), [("7", None), (None, "5"), ("2", "5.9"), ("3600", "8")]
)
def test_a_lease_that_is_not_renewed_in_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, renewed: str | None, gone: str | None
) -> None:
    """A worker of such a lease would start nothing, or end what it runs."""
    for name, value in (("RENEWED", renewed), ("GONE", gone)):
        if value is not None:
            monkeypatch.setenv(f"TOOLPOOL_LEASE_{name}", value)
    with pytest.raises(Misconfigured, match="TOOLPOOL_LEASE_RENEWED is .* TOOLPOOL_LEASE_GONE"):
        load_settings()


def test_a_lease_that_is_renewed_often_is_taken() -> None:
    assert Settings(lease_renewed=1.0, lease_gone=3.0).lease_gone == 3.0


def test_no_key_is_ever_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", "s3cret-s3cret-s3cret")
    assert "s3cret" not in repr(Settings())
    assert "s3cret" not in Settings().model_dump_json()


def test_each_kind_of_tool_has_its_own_batches_and_slots() -> None:
    settings = Settings(
        batch_loop=1, batch_thread=2, batch_process=3,
        slots_loop=4, slots_thread=5, slots_process=6,
    )  # fmt: skip
    assert [settings.batch_size(kind) for kind in RunIn] == [1, 2, 3]
    assert [settings.slots(kind) for kind in RunIn] == [4, 5, 6]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "no Redis URL: set TOOLPOOL_REDIS_URL=redis://host:6379/0"),
        ("", "no Redis URL: set TOOLPOOL_REDIS_URL=redis://host:6379/0"),
        ("http://host", "starts with http://, which is not one of redis://, rediss:// or unix://"),
        ("host:6379", "which is not one of redis://, rediss:// or unix://"),
    ],
)
def test_a_url_that_cannot_be_says_what_to_set(url: str | None, message: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        connection.require_redis_url(Settings(redis_url=url))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("rediss://host/0", "rediss://host/0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock"),
    ],
)
def test_the_broker_is_the_same_server_in_celerys_spelling(url: str, expected: str) -> None:
    assert connection.broker_url(Settings(redis_url=url)) == expected
    other = Settings(redis_url=url, broker_url="amqp://other")
    assert connection.broker_url(other) == "amqp://other"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:s3cret@host/0", "redis://user:***@host/0"),
        ("redis://:s3cret@host/0", "redis://:***@host/0"),
        ("redis://host/0", "redis://host/0"),
    ],
)
def test_no_message_shows_a_password(url: str, shown: str) -> None:
    assert connection.without_password(url) == shown
    said = connection.unreachable(Settings(redis_url=url), OSError("refused"))
    assert "s3cret" not in said
    assert shown in said


@pytest.mark.parametrize(
    ("fields", "needs_key"),
    [
        ({"redis_url": "redis://127.0.0.1/0"}, True),
        ({"redis_url": "rediss://host/0"}, True),
        ({"redis_url": "unix:///run/s"}, False),
        ({"redis_url": "unix:///run/s", "broker_url": "amqp://host"}, True),
        ({"redis_url": "redis://host/0", "signing_key": SecretStr("")}, True),
    ],
)
def test_only_a_private_socket_needs_no_key(fields: dict[str, Any], needs_key: bool) -> None:
    settings = Settings(**fields)
    if not needs_key:
        assert connection.keyring(settings).key_id == Keyring.local().key_id
        return
    with pytest.raises(SigningKeyMissing, match="make one with `toolpool keygen`"):
        connection.keyring(settings)
    key = generate_key()
    with_key = settings.model_copy(update={"signing_key": SecretStr(key)})
    assert connection.keyring(with_key).key_id == Keyring([key]).key_id


@pytest.mark.parametrize(
    ("info", "policy", "fault"),
    [
        ({"redis_version": "7.2.4"}, "noeviction", None),
        ({"redis_version": "6.2"}, None, None),
        ({"redis_version": "6.0.16"}, "noeviction", "the server is version 6.0.16"),
        ({"redis_version": "7.2", "redis_mode": "cluster"}, "noeviction", "Redis Cluster"),
        ({"redis_version": "7.2", "cluster_enabled": 1}, "noeviction", "Redis Cluster"),
        ({"redis_version": "7.2"}, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
        ({}, None, "toolpool needs Redis 6.2 or Valkey 7.2"),
    ],
)
def test_an_unfit_server_is_named_with_its_remedy(
    info: dict[str, Any], policy: str | None, fault: str | None
) -> None:
    faults = connection.server_faults(info, policy)
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]


@pytest.mark.parametrize("prefix", ["a b", "", "a*", "a\n", "ü", "x" * 65, "a{b}"])
def test_a_prefix_that_would_break_names_is_refused(prefix: str) -> None:
    """With a space in it replies never came."""
    with pytest.raises(pydantic.ValidationError, match="1 to 64 letters, digits and the signs"):
        Settings(key_prefix=prefix)


@pytest.mark.parametrize("prefix", ["toolpool", "team:a", "team.a", "A-1_b"])
def test_a_sound_prefix_is_taken(prefix: str) -> None:
    assert Settings(key_prefix=prefix).key_prefix == prefix


def test_two_prefixes_never_mean_the_same_queue() -> None:
    names = {
        Names(prefix).queue(queue, kind)
        for prefix in ("a", "a.b", "a.b.c")
        for queue in ("b", "c", "d")
        for kind in RunIn
        if is_queue(queue)
    }
    assert len(names) == 27
    assert not is_queue("b.c")
    assert Names().queue("default", RunIn.LOOP) == "toolpool.default.loop"
