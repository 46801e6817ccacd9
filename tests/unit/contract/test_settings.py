"""Settings from the environment, and what is said of those that cannot be."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from pydantic import SecretStr, ValidationError

from toolpool import Dispatcher
from toolpool.cli.options import load_settings
from toolpool.contract.errors import Misconfigured, SigningKeyMissing, ToolDeclarationInvalid
from toolpool.contract.redis_keys import RedisKeys, is_queue
from toolpool.contract.server import connection, password_masking, process_secrets
from toolpool.contract.server.unix_sockets import why_not_private
from toolpool.contract.settings import Settings, mistyped_variables, warn_of_mistyped_variables
from toolpool.contract.signing import Keyring, generate_key
from toolpool.contract.spec import RunIn
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.embedded import EmbeddedServer
from toolpool.workers.tool import tool


def test_every_setting_has_a_variable_a_default_and_a_description(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name
    monkeypatch.setenv("TOOLPOOL_QUEUE_TIMEOUT", "7.5")
    monkeypatch.setenv("TOOLPOOL_WORKSPACE", "/srv/work")
    settings = Settings()
    assert (settings.queue_timeout, settings.workspace) == (7.5, Path("/srv/work"))


def test_a_variable_of_a_renamed_setting_is_refused_with_its_new_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLPOOL_QUEUE_WAIT", "5")
    with pytest.raises(
        ValidationError, match="rename TOOLPOOL_QUEUE_WAIT to TOOLPOOL_QUEUE_TIMEOUT"
    ):
        Settings()


def test_a_variable_of_a_removed_setting_is_refused_with_what_holds_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLPOOL_BATCH_BYTES", "5")
    with pytest.raises(ValidationError, match="unset TOOLPOOL_BATCH_BYTES: a message is full at"):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUEUE_TIMEOUT", "0"), ("QUEUE_TIMEOUT", "soon"), ("MAX_ARGUMENT_BYTES", "-1"),
        ("SLOTS_LOOP", "0"), ("BASH", "perhaps"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TOOLPOOL_{name}", value)
    with pytest.raises(pydantic.ValidationError, match=name.lower()):
        Settings()


def test_a_lease_outlives_three_late_renewals() -> None:
    assert Settings(lease_ttl=3.0).lease_interval == 0.75


def test_no_key_is_ever_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", "s3cret-s3cret-s3cret")
    assert "s3cret" not in repr(Settings())
    assert "s3cret" not in Settings().model_dump_json()


def test_each_kind_of_tool_has_its_own_slots() -> None:
    settings = Settings(slots_loop=4, slots_thread=5, slots_process=6)
    assert [settings.slots(kind) for kind in RunIn] == [4, 5, 6]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "no Redis URL: set TOOLPOOL_REDIS_URL=redis://host:6379/0"),
        ("", "no Redis URL: set TOOLPOOL_REDIS_URL=redis://host:6379/0"),
        ("http://host", "starts with http://, which is not one of redis://, rediss:// or unix://"),
        ("host:6379", "which is not one of redis://, rediss:// or unix://"),
        ("redis://:pa/hunter2@host:1/0", "cannot be parsed: write it as"),
        ("redis://:[hunter2]@host:1/0", "cannot be parsed: write it as"),
        ("redis://:pa[ss@host:1/0", "cannot be parsed: write it as"),
        ("redis://host:0/0", "cannot be parsed: write it as"),
    ],
)
def test_a_url_that_cannot_be_says_what_to_set(url: str | None, message: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        connection.require_redis_url(Settings(redis_url=url))
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_what_is_set_to_nothing_opens_metrics_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_METRICS_HOST", "")
    assert Settings().metrics_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("queue_timoeut", "there is no setting queue_timoeut; did you mean queue_timeout?"),
        ("signing_keys", "there is no setting signing_keys; did you mean signing_key?"),
        ("colour", "there is no setting colour"),
        ("lease_gone", "there is no setting lease_gone: it is lease_ttl now"),
        ("lease_renewed", "there is no setting lease_renewed any more: a lease is renewed four"),
    ],
)
def test_a_setting_that_there_is_not_is_refused_with_the_one_that_was_meant(
    name: str, said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**{name: "hunter2"})  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("seconds", [1e12, float("inf"), float("nan")])
def test_a_time_that_redis_cannot_count_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="queue_timeout"):
        Settings(queue_timeout=seconds)


@pytest.mark.parametrize("name", ["QUEUE_TIMEOUT", "KEY_PREFIX", "RECORD", "BASH", "REDIS_URL"])
def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"TOOLPOOL_{name}", "")
    field = Settings.model_fields[name.lower()]
    assert getattr(load_settings(), name.lower()) == field.default


@pytest.mark.parametrize(
    "name", ["POLICY", "SIGNING_KEY", "BEFORE_CALL", "AFTER_RESULT", "APPROVAL_WEBHOOK_SECRET"]
)
def test_an_empty_variable_that_would_protect_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else calls would run without the rules that somebody believes in."""
    monkeypatch.setenv(f"TOOLPOOL_{name}", "")
    with pytest.raises(Misconfigured, match=f"TOOLPOOL_{name} is wrong: it is empty"):
        load_settings()
    monkeypatch.setenv(f"TOOLPOOL_{name}", "given")
    assert getattr(load_settings(), name.lower())
    monkeypatch.setenv(f"TOOLPOOL_{name}", "")
    assert getattr(load_settings(**{name.lower(): "given"}), name.lower())


def test_a_mistyped_variable_is_named_with_the_one_that_was_meant() -> None:
    found = mistyped_variables({
        "TOOLPOOL_POLCY": "rules.toml", "TOOLPOOL_REDIS_ULR": "redis://h", "TOOLPOOL_COLOUR": "red",
        "TOOLPOOL_METRIC_PORT": "9", "TOOLPOOL_POLICY": "rules.toml", "POLCY": "x",
    })  # fmt: skip
    assert found == {
        "TOOLPOOL_POLCY": "TOOLPOOL_POLICY",
        "TOOLPOOL_REDIS_ULR": "TOOLPOOL_REDIS_URL",
        "TOOLPOOL_METRIC_PORT": "TOOLPOOL_METRICS_PORT",
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("REDIS_URI", "REDIS_URL"),
        ("BROKER_URI", "BROKER_URL"),
        ("SIGN_KEY", "SIGNING_KEY"),
        ("RECORD_TLL", "RECORD_TTL"),
        ("POLICIES", "POLICY"),
        ("POLICY_FILE", "POLICY"),
    ],
)
def test_a_variable_that_resembles_a_setting_is_named_in_any_case(name: str, meant: str) -> None:
    for variable in (f"TOOLPOOL_{name}", f"toolpool_{name.lower()}"):
        assert mistyped_variables({variable: "x"}) == {variable: f"TOOLPOOL_{meant}"}


def test_an_empty_variable_in_lower_case_that_would_protect_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("toolpool_policy", "")
    with pytest.raises(ValidationError, match="it is empty"):
        Settings()
    monkeypatch.setenv("TOOLPOOL_POLICY", "rules.toml")
    assert Settings().policy is not None


def test_what_kubernetes_sets_for_a_service_is_not_taken_for_a_setting() -> None:
    assert not mistyped_variables({
        "TOOLPOOL_PORT": "tcp://10.0.0.1:9090",
        "TOOLPOOL_SERVICE_HOST": "10.0.0.1",
        "TOOLPOOL_SERVICE_PORT": "9090",
        "TOOLPOOL_SERVICE_PORT_METRICS": "9090",
        "TOOLPOOL_PORT_9090_TCP_ADDR": "10.0.0.1",
        "TOOLPOOL_METRIC_SERVICE_HOST": "10.0.0.1",
        "TOOLPOOL_METRIC_PORT": "tcp://10.0.0.1:9090",
        "TOOLPOOL_SIGNING_KEY_FILE": "/run/secrets/key",
        "TOOLPOOL_SECRET_TENANT": "x",
    })  # fmt: skip


async def test_a_dispatcher_warns_of_a_mistyped_variable_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOOLPOOL_POLCY", "hunter2")
    warn_of_mistyped_variables.cache_clear()

    @tool
    async def some() -> None: ...

    for _ in range(2):
        async with Dispatcher.in_memory([some]):
            pass
    warn_of_mistyped_variables.cache_clear()
    told = [record.getMessage() for record in caplog.records if record.name == "toolpool.settings"]
    assert told == ["setting_unknown name=TOOLPOOL_POLCY: did you mean TOOLPOOL_POLICY?"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host/0?passwort=hunter2",
        "redis://:hunter2@host/0?ssl_cert_reqs=none",
        "rediss://:hunter2@host/0?ssl_cert_reqs=CERT_NONE",
        "redis://:hunter2@host/0?socket_timeout=hunter2",
        "redis://:hunter2@host/0?max_connections=-1",
        "redis://:hunter2@host/0?retry_on_error=hunter2",
        "redis://:hunter2@host/first",
    ],
)
def test_a_redis_url_with_an_option_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="TOOLPOOL_REDIS_URL") as caught:
        connection.require_redis_url(Settings(redis_url=url))
    assert "hunter2" not in str(caught.value)


def test_a_wrong_value_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_EVENTS", "hunter2")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("rediss://host/0", "rediss://host/0"),
        ("redis://host:6379?db=4", "redis://host:6379/4"),
        ("redis://host/1?db=4", "redis://host/4"),
        ("redis://host/0?socket_timeout=5&max_connections=30&protocol=3", "redis://host/0"),
        (
            "rediss://host/0?ssl_cert_reqs=none&socket_timeout=5",
            "rediss://host/0?ssl_cert_reqs=none",
        ),
        ("unix:///run/redis.sock?socket_timeout=5", "redis+socket:///run/redis.sock"),
        (
            "redis://host:6379/2?password=p%40s&client_name=x",
            "redis://:p%40s@host:6379/2",
        ),
        ("redis://host/0?username=u&password=p", "redis://u:p@host/0"),
        ("redis://u@host/0?password=p", "redis://u:p@host/0"),
        ("redis://:a@host/0?username=u&password=p", "redis://u:a@host/0"),
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
        ("redis://:s3@cret/#1@host/0", "redis://:***@host/0"),
        ("redis://host/0", "redis://host/0"),
        (
            "redis://host/0?password=s3cret&client_name=x",
            "redis://host/0?password=***&client_name=x",
        ),
    ],
)
def test_no_message_shows_a_password(url: str, shown: str) -> None:
    assert password_masking.without_password(url) == shown
    said = connection.unreachable(Settings(redis_url=url), OSError(f"refused {url} s3cret"))
    assert "s3cret" not in said or "s3cret" not in url
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
        (
            {"redis_version": "7.2", "redis_mode": "cluster"},
            "noeviction",
            "one address that always",
        ),
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
    with pytest.raises(
        pydantic.ValidationError, match="1 to 64 letters, digits and the characters"
    ):
        Settings(key_prefix=prefix)


@pytest.mark.parametrize("prefix", ["toolpool", "team:a", "team.a", "A-1_b"])
def test_a_sound_prefix_is_taken(prefix: str) -> None:
    assert Settings(key_prefix=prefix).key_prefix == prefix


def test_two_prefixes_never_mean_the_same_queue() -> None:
    names = {
        RedisKeys(prefix).queue(queue, kind)
        for prefix in ("a", "a.b", "a.b.c")
        for queue in ("b", "c", "d")
        for kind in RunIn
        if is_queue(queue)
    }
    assert len(names) == 27
    assert not is_queue("b.c")
    assert RedisKeys().queue("default", RunIn.LOOP) == "toolpool.default.loop"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "sentinel://:pw1@h1:26379;sentinel://user:pw2@h2:26379/0",
            "sentinel://:***@h1:26379;sentinel://user:***@h2:26379/0",
        ),
        ("sentinel://h1:26379;sentinel://:pw2@h2", "sentinel://h1:26379;sentinel://:***@h2"),
        ("amqp://user:pw1@host//", "amqp://user:***@host//"),
        ("unix:///tmp/a:b@c/s", "unix:///tmp/a:b@c/s"),
        ("redis://:@host", "redis://:@host"),
    ],
)
def test_no_password_of_any_server_is_shown(url: str, shown: str) -> None:
    assert password_masking.without_password(url) == shown
    said = password_masking.without_passwords_of(url, f"cannot connect to {url}: pw1 pw2 refused")
    assert not [word for word in ("pw1", "pw2") if word in url and word in said]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://x", "names no broker that Celery knows"),
        ("foo://user:s3cret@x", "names no broker that Celery knows"),
        ("redis://:s3cret@host:port/0", "is no URL"),
        ("confluentkafka://host", "needs a package that is not installed"),
    ],
)
def test_a_broker_that_cannot_be_is_said_plainly(url: str, said: str) -> None:
    settings = Settings(
        redis_url="redis://host", broker_url=url, signing_key=SecretStr(generate_key())
    )
    for attempt in (connection.broker_url, RedisTransport):
        with pytest.raises(Misconfigured, match=said) as caught:
            attempt(settings)
        assert "TOOLPOOL_BROKER_URL" in str(caught.value)
        assert "s3cret" not in str(caught.value)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def listening(path: Path, mode: int) -> str:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    path.chmod(mode)
    return f"unix://{path}?db=1"


def is_private(url: str) -> bool:
    return why_not_private(url) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_socket_that_others_may_open_needs_a_key(folder: Path, mode: int) -> None:
    folder.chmod(0o755)
    url = listening(folder / "s", mode)
    assert not is_private(url)
    with pytest.raises(SigningKeyMissing, match="unixsocketperm 700"):
        connection.keyring(Settings(redis_url=url))
    with_key = Settings(redis_url=url, signing_key=SecretStr(generate_key()))
    assert connection.keyring(with_key)


def test_a_socket_of_this_user_alone_needs_none(folder: Path) -> None:
    """By its own mode, or because nobody else comes to it."""
    open_one, closed = listening(folder / "s", 0o777), listening(folder / "t", 0o700)
    assert is_private(open_one)
    folder.chmod(0o755)
    assert not is_private(open_one)
    assert is_private(closed)
    assert connection.keyring(Settings(redis_url=closed))
    (folder / "link").symlink_to(folder / "s")
    assert not is_private(f"unix://{folder}/link")


def test_a_socket_that_others_may_replace_needs_a_key(folder: Path) -> None:
    url = listening(folder / "s", 0o700)
    folder.chmod(0o777)
    assert not is_private(url)
    folder.chmod(0o1777)  # as /tmp
    assert is_private(url)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_socket_of_another_user_needs_a_key(folder: Path) -> None:
    url = listening(folder / "s", 0o700)
    os.chown(folder / "s", 65534, 65534)
    assert not is_private(url)


def test_the_embedded_servers_socket_is_private(server: EmbeddedServer) -> None:
    assert is_private(server.url)


@pytest.mark.parametrize("queue", ["gpu.large", "", "a b", "x" * 65])
def test_a_tool_names_a_queue_that_can_be(queue: str) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="is not a queue name"):

        @tool(queue=queue)
        async def render() -> None:
            """Render."""


def test_secrets_are_read_from_the_files_that_variables_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("SIGNING_KEY", "a key of some length\n"), ("REDIS_URL", "redis://h/0")):
        file = tmp_path / name
        file.write_text(text)
        monkeypatch.setenv(f"TOOLPOOL_{name}_FILE", str(file))
    settings = Settings()
    assert settings.signing_key == SecretStr("a key of some length")
    assert settings.redis_url == "redis://h/0"
    (tmp_path / "REDIS_URL").unlink()
    assert Settings(redis_url="redis://given/0").redis_url == "redis://given/0"


def test_a_file_that_is_of_no_use_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY_FILE", str(file))
    with pytest.raises(Misconfigured, match="SIGNING_KEY_FILE names .*No such file"):
        load_settings()
    file.write_text("\n")
    with pytest.raises(Misconfigured, match="which is empty"):
        load_settings()
    file.write_text("a key of some length")
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", "another of some length")
    with pytest.raises(Misconfigured, match="are both set: unset one"):
        load_settings()


def test_what_names_the_file_of_a_secret_is_forgotten_with_it() -> None:
    environment = {"TOOLPOOL_SIGNING_KEY_FILE": "/run/key", "TOOLPOOL_TENANT": "t"}
    left = process_secrets.without_secrets(environment, ["signing_key"])
    assert left == {"TOOLPOOL_TENANT": "t"}
